"""Recall on the real embedded store: what it finds, and what it must not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from connectors.query.question import RecallQuery
from connectors.query.recall import Recall
from stores.embedded import open_embedded
from stores.ids import content_id
from stores.milvus import MilvusStore
from stores.protocols import Vectors
from tests.connectors.query.fakes import SCOPE, FakeClock, atom, event

BOB = "acme/helper/bob"


class WordEmbedder:
    """Texts that share words are near: enough meaning for a test, and the same every time."""

    name = "words"
    dimension = 64

    async def embed_query(self, text: str) -> Vectors:
        vector: Vectors = self.embed([text])[0]
        return vector

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return self.embed(texts)

    def embed(self, texts: Sequence[str]) -> Vectors:
        rows = np.full((len(texts), self.dimension), 0.01, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"[a-z]+|[\u4e00-\u9fff]", text.lower()):
                row[int(content_id(word), 16) % self.dimension] += 1
        unit: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit


@pytest.fixture(scope="module")
def recall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recall]:
    folder: Path = tmp_path_factory.mktemp("recall")
    embedder = WordEmbedder()
    atoms = [
        atom("a-old", "Ana lives in Lyon", status="superseded"),
        atom("a-city", "Ana lives in Berlin", sources=("e-city",), day=9),
        atom("a-food", "安娜喜欢吃火锅", sources=("e-food",)),
        atom("b-city", "Bob lives in Berlin", scope=BOB),
    ]
    events = [
        event("e-city", "Ana lives in Berlin"),
        event("e-food", "我最喜欢的菜是重庆火锅，每个周末都吃"),
        event("e-piano", "My piano stayed with my sister", day=3),
        event("b-piano", "My piano is out of tune", scope=BOB),
        # The best keyword match of all, under a scope that looks much like ours.
        event("c-city", "Where does Ana live? Ana lives in Berlin", scope=f"{SCOPE}a"),
    ]
    with open_embedded(folder) as embedded:
        store = MilvusStore(
            embedded.uri,
            token=embedded.token,
            prefix="t",
            dimension=embedder.dimension,
            embedding_name=embedder.name,
            timeout_s=60.0,
            reads=embedded.reads,
        )
        store.ensure_collections()
        store.upsert_atoms(atoms, embedder.embed([one.text for one in atoms]))
        store.upsert_events(events, embedder.embed([one.text for one in events]))
        made = Recall(store, embedder, FakeClock(), full_text=store.full_text)
        yield made
        made.close()
        store.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("question", "first"),
    [("Where does Ana live?", "a-city"), ("火锅", "a-food"), ("Who has the piano?", "e-piano")],
)
async def test_it_finds_english_and_chinese_by_both_arms(
    recall: Recall, question: str, first: str
) -> None:
    answer = await recall.recall(RecallQuery(SCOPE, question))
    assert answer.items[0].id == first
    assert set(answer.items[0].ranks) == {"dense", "keyword"}
    assert answer.degraded == ()


@pytest.mark.asyncio
async def test_never_another_scopes_and_never_superseded(recall: Recall) -> None:
    ana = await recall.recall(RecallQuery(SCOPE, "Where does Ana live? In Lyon? piano", limit=100))
    assert {one.id for one in ana.items} == {"a-city", "a-food", "e-food", "e-piano"}
    assert [cut.ids for cut in ana.cut] == [("e-city",)]  # its atom says the same
    bob = await recall.recall(RecallQuery(BOB, "Where does Ana live? In Lyon? piano", limit=100))
    assert {one.id for one in bob.items} == {"b-city", "b-piano"}
    nobody = await recall.recall(RecallQuery("acme/helper/nobody", "Where does Ana live?"))
    assert nobody.items == ()


@pytest.mark.asyncio
async def test_layers_session_and_time_narrow_the_answer(recall: Recall) -> None:
    events = await recall.recall(RecallQuery(SCOPE, "Ana piano", layers=("events",)))
    assert {one.layer for one in events.items} == {"event"}
    elsewhere = await recall.recall(RecallQuery(SCOPE, "Ana piano", session_id="s2"))
    assert elsewhere.items == ()
    piano = events.items[[one.id for one in events.items].index("e-piano")]
    when = piano.occurred_at
    since = await recall.recall(RecallQuery(SCOPE, "Ana piano", since=when))
    until = await recall.recall(RecallQuery(SCOPE, "Ana piano", until=when))
    assert {one.id for one in since.items} == {"a-city", "e-piano"}
    assert {one.id for one in until.items} == {"a-food", "e-city", "e-food"}

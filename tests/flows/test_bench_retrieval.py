"""What a row shows, by hand: the fusion of plain, what counts as shown, vectors kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from connectors.query.models import RecallItem
from connectors.query.question import RecallQuery
from connectors.query.recall import Recall, RecallPolicy
from connectors.settings import Settings
from flows.bench.data import Question
from flows.bench.retrieval import (
    BUDGETS,
    ITEM_CHARS,
    ITEMS,
    Retriever,
    _fused,
    _sources,
    cut_at,
)
from flows.bench.rows import ROWS, Row
from flows.bench.vectors import KeptVectors
from stores.protocols import Hit, Vectors
from stores.records import IndexedEvent, Position
from tests.connectors.query.fakes import (
    SCOPE,
    FakeEmbedder,
    FakeSearcher,
    atom,
    event,
    hits,
    profile,
)

WHEN = datetime(2024, 1, 1, tzinfo=timezone.utc)


def hit(name: str, text: str = "said") -> Hit:
    event = IndexedEvent("b/l/c", name, "s", "user", text, WHEN, Position("l0", 0, 0))
    return Hit(name, 1.0, event)


def item(name: str, *, truncated: bool) -> RecallItem:
    return RecallItem(
        id=name,
        layer="event",
        type="user",
        text="said",
        score=1.0,
        ranks={},
        occurred_at=WHEN,
        session_id="s",
        source_event_ids=(name,),
        truncated=truncated,
    )


def test_plain_fuses_by_place_alone_with_60() -> None:
    arms = {"dense": [hit("a"), hit("b"), hit("c")], "keyword": [hit("c"), hit("d"), hit("b")]}
    fused = _fused(arms)  # type: ignore[arg-type]
    assert [one.id for one in fused] == ["c", "b", "a", "d"]
    # c: third and first; b: second and third; a: first; d: second.
    assert [round(one.score, 6) for one in fused] == [
        round(score, 6) for score in (1 / 63 + 1 / 61, 1 / 62 + 1 / 63, 1 / 61, 1 / 62)
    ]


def test_plain_shows_no_event_without_text() -> None:
    assert _fused({"dense": [hit("a", " \u202e")], "keyword": []}) == []


def test_what_was_cut_short_is_no_evidence() -> None:
    shown = _sources([item("a", truncated=False), item("b", truncated=True)])
    assert shown == (frozenset({"a"}), frozenset())


def test_tokens_are_told_by_layer() -> None:
    fact = item("f", truncated=False).model_copy(update={"layer": "atom", "text": "a b c d"})
    items = [item("a", truncated=False), fact, item("b", truncated=False)]
    bare = cut_at(1000, items)
    shown = cut_at(1000, items, persona="Likes tea.", system_share=0.25)
    assert bare.layers == {"system": 0, "event": 2, "atom": 4}
    assert shown.layers == {**bare.layers, "system": shown.tokens - bare.tokens}


def filled() -> FakeSearcher:
    """Forty events, atoms on some of them, scenes and a persona, in their store's answers."""
    store = FakeSearcher()
    events = [event(f"e{n}", f"topic {n} was told in words of its own: {n * 7}") for n in range(40)]
    atoms = [atom(f"a{n}", f"holds {n * 11}", sources=(f"e{n}",)) for n in range(10)]
    scenes = [profile("scene", f"s{n}.md", "long", f"summary {n} " * 5) for n in range(6)]
    store.profiles = [*scenes, profile("persona", "persona.md", "Likes rowing at dawn. " * 40)]
    for arm in ("dense", "keyword"):
        store.answers["events", arm] = hits(*events)
        store.answers["atoms", arm] = hits(*atoms)
        store.answers["profiles", arm] = hits(*scenes)
    return store


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind == "recall"], ids=lambda r: r.name)
def test_a_cut_answer_is_what_the_recall_gives_at_that_budget(row: Row) -> None:
    store, settings = filled(), Settings()
    retriever = Retriever(settings, store, FakeEmbedder())
    policy = replace(
        RecallPolicy.of(settings), max_chars_per_memory=ITEM_CHARS, max_total_recall_chars=10**9
    )
    question = Question("q", "t", "topic 3", "h", 40, WHEN, "", "dev")

    async def both() -> None:
        recall = Recall(store, FakeEmbedder(), At(WHEN + timedelta(seconds=1)), policy)
        found = await retriever.find(row, SCOPE, question, ())
        for budget in BUDGETS:
            query = RecallQuery(SCOPE, "topic 3", limit=ITEMS, budget_tokens=budget,
                                layers=row.layers)  # fmt: skip
            answer = await recall.recall(query)
            shown = found.by_budget[budget]
            contexts = filter(None, (answer.system_context, answer.user_context))
            assert shown.context == "\n".join(contexts)
            assert shown.tokens == answer.tokens
            whole = [set(one.source_event_ids) for one in answer.items if not one.truncated]
            assert shown.events == set().union(*whole)
        recall.close()

    try:
        asyncio.run(both())
    finally:
        retriever.close()


class At:
    """A clock that stands."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def now(self) -> datetime:
        return self.moment


class Counting:
    """Embeds a text as its length, and counts the texts."""

    name = "counting"
    dimension = 2

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return np.array([[len(text), 1.0] for text in texts], np.float32)

    async def embed_query(self, text: str) -> Vectors:
        self.texts.append(text)
        return np.array([len(text), 2.0], np.float32)


def test_a_text_is_embedded_once_and_a_question_every_time(tmp_path: Path) -> None:
    first, second = Counting(), Counting()

    async def embed(inner: Counting, texts: Sequence[str]) -> Vectors:
        with KeptVectors(inner, tmp_path / "vectors.sqlite") as kept:
            await kept.embed_query("q")
            return await kept.embed_passages(texts)

    one = asyncio.run(embed(first, ["aa", "b", "aa"]))
    two = asyncio.run(embed(second, ["ccc", "b", "aa"]))
    assert one.tolist() == [[2, 1], [1, 1], [2, 1]]
    assert two.tolist() == [[3, 1], [1, 1], [2, 1]]
    assert first.texts == ["q", "aa", "b"]
    assert second.texts == ["q", "ccc"]

"""What the rows of one question share changes nothing but the time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from connectors.settings import Settings
from connectors.tokens import count_tokens
from flows.bench.data import Question
from flows.bench.retrieval import Found, Retriever
from flows.bench.rows import ROWS
from flows.bench.sharing import LineTokens
from stores.errors import ServiceUnavailable
from stores.protocols import Vectors
from tests.connectors.query.fakes import SCOPE, FakeEmbedder, FakeSearcher
from tests.flows.test_bench_retrieval import filled

ASKED = [row for row in ROWS if row.kind in {"plain", "recall"}]
QUESTION = Question(
    "q", "t", "topic 3", "h", 40, datetime(2024, 1, 1, tzinfo=timezone.utc), "", "dev"
)


class CountingEmbedder(FakeEmbedder):
    """Counts the questions that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[str] = []

    async def embed_query(self, text: str) -> Vectors:
        self.questions.append(text)
        return await super().embed_query(text)


def found_by_all(
    retriever: Retriever, question: Question = QUESTION, *, timed: bool
) -> list[Found]:
    async def ask() -> list[Found]:
        return [await retriever.find(row, SCOPE, question, (), timed=timed) for row in ASKED]

    return asyncio.run(ask())


@pytest.mark.parametrize("empty", [True, False], ids=["no-profiles", "profiles"])
def test_rows_that_share_find_the_same_with_fewer_searches(empty: bool) -> None:
    alone, shared = filled(), filled()
    if empty:
        for store in (alone, shared):
            store.profiles = []
            store.answers["profiles", "dense"] = store.answers["profiles", "keyword"] = []
    embedder = CountingEmbedder()
    one, other = (Retriever(Settings(), store, embedder) for store in (alone, shared))
    try:
        timed = found_by_all(one, timed=True)
        untimed = found_by_all(other, timed=False)
        again = len(shared.asked)
        found_by_all(other, replace(QUESTION, id="q2"), timed=False)
    finally:
        one.close()
        other.close()
    assert all(found.latency_ms is not None for found in timed)
    assert untimed == [replace(found, latency_ms=None) for found in timed]
    assert len(set(shared.asked)) == again < len(alone.asked)
    assert len(shared.asked) == 2 * again  # another question, even in the same words
    assert embedder.questions == ["topic 3"] * 2  # once for each retriever


def test_a_search_that_failed_is_made_again() -> None:
    store = FakeSearcher()
    store.answers["events", "dense"] = ServiceUnavailable(service="milvus", message="busy")
    retriever = Retriever(Settings(), store, FakeEmbedder())
    try:
        failed = [one for one in found_by_all_recalls(retriever) if one.degraded]
        assert len(failed) > 1
        store.answers = filled().answers
        assert not [one for one in found_by_all_recalls(retriever) if one.degraded]
    finally:
        retriever.close()


def found_by_all_recalls(retriever: Retriever) -> list[Found]:
    async def ask() -> list[Found]:
        return [
            await retriever.find(row, SCOPE, QUESTION, (), timed=False)
            for row in ASKED
            if "events" in row.layers
        ]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<memories>\n2024-01-01:\n- user said: Likes tea.\n2024-01-02:\n- user said: 喜欢茶！\n",
        "# Persona\n\nLikes tea...\n  - and rowing\n/etc is a path.\n",
        "one\r\ntwo!\n/three\n\n\nfour\n \nfive",
    ],
)
def test_tokens_by_line_are_the_tokens_of_the_text(text: str) -> None:
    count = LineTokens()
    assert count(text) == count(text) == count_tokens(text)

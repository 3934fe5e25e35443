"""Asks the memory one question the way a row says, and cuts the answer at several budgets.

Tokens are those of the text that a reader is given, fence, dates and speakers included. So
that a row is judged by its ranking, three bounds of the service are wide here, for all rows
alike: items (:data:`ITEMS`), characters of an item (:data:`ITEM_CHARS`) and of all items.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from connectors.query.budget import Budget, fit
from connectors.query.fence import clean_text, render
from connectors.query.models import RecallItem
from connectors.query.parts import item_of
from connectors.query.question import RecallQuery, clean_query
from connectors.query.ranking import Ranked
from connectors.query.recall import Recall, RecallPolicy
from connectors.settings import Settings
from connectors.tokens import count_tokens
from flows.bench.data import Message, Question
from flows.bench.rows import Row
from stores.errors import ServiceUnavailable
from stores.milvus import MilvusStore
from stores.protocols import Embedder, Filter, Hit, SearchArm, Span, Vectors
from stores.records import IndexedEvent, Profile, ProfileKind

__all__ = ["BUDGETS", "ITEMS", "ITEM_CHARS", "Found", "Retriever", "Shown"]

BUDGETS = (250, 500, 1000, 2000, 4000)
"""Tokens at which every answer is cut."""
ITEMS = 100
ITEM_CHARS = 4000
_UNBOUNDED = 1_000_000_000
_PLAIN_K = 60  # the constant of the paper on reciprocal rank fusion
_FETCH = 100
_TIMEOUT_S = 120.0  # a slow machine must not change what is found
_ARMS: tuple[SearchArm, ...] = ("dense", "keyword")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a reader is given within one budget.

    :arg context: system and user context, rendered.
    :arg sources: for each item, the events it comes from; of an item that was cut short, none.
    """

    context: str
    tokens: int
    sources: tuple[frozenset[str], ...]

    @property
    def events(self) -> frozenset[str]:
        """All events that are shown, themselves or by an atom that cites them."""
        return frozenset().union(*self.sources)


@dataclass(frozen=True, slots=True)
class Found:
    """What a row found for a question.

    :arg by_budget: of a row whose size no budget bounds, the same at all of them.
    :arg ranked: the events that each item comes from, best first, at most :data:`ITEMS`.
    :arg latency_ms: from the question to the rendered text, query embedding included; ``None``
        where nothing is asked.
    :arg degraded: parts of the recall that failed; its figures then mean little.
    :arg bounded: False for rows that budgets do not apply to.
    """

    by_budget: Mapping[int, Shown]
    ranked: tuple[frozenset[str], ...]
    latency_ms: float | None
    degraded: tuple[str, ...] = ()
    bounded: bool = True


class Retriever:
    """Asks one opened memory.

    :arg budgets: tokens at which answers are cut, ascending.
    :arg monotonic: seconds, for latency only.
    """

    def __init__(
        self,
        settings: Settings,
        store: MilvusStore,
        embedder: Embedder,
        budgets: Sequence[int] = BUDGETS,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._budgets = tuple(budgets)
        self._monotonic = monotonic
        self._clock = _AskedAt()
        self._embedder = _Remembered(embedder)
        self._store = _RememberedSearches(store)
        policy = replace(
            RecallPolicy.of(settings),
            timeout_s=_TIMEOUT_S,
            max_chars_per_memory=ITEM_CHARS,
            max_total_recall_chars=_UNBOUNDED,
        )
        self._recall = Recall(
            self._store, self._embedder, self._clock, policy, full_text=store.full_text
        )

    def close(self) -> None:
        """Give the search threads back."""
        self._recall.close()

    async def find(
        self, row: Row, scope: str, question: Question, visible: Sequence[Message]
    ) -> Found:
        """Find what the row gives to a reader.

        Raises :class:`~stores.errors.ServiceUnavailable` when the store does not answer.
        """
        if row.kind == "nothing":
            nothing = Shown("", 0, ())
            return Found(dict.fromkeys(self._budgets, nothing), (), None)
        if row.kind == "history":
            return self._history(visible)
        self._clock.moment = question.asked_at
        self._store.forget(neighbours=row.neighbours)
        self._embedder.forget()
        if row.kind == "plain":
            return await self._plain(scope, question)
        return await self._recalled(row, scope, question)

    def _history(self, visible: Sequence[Message]) -> Found:
        lines = [
            f"[{one.said_at:%Y-%m-%d %H:%M}, {one.name or one.role}] {one.text}" for one in visible
        ]
        context = "\n".join(lines)
        sources = tuple(frozenset({one.event_id}) for one in visible)
        shown = Shown(context, count_tokens(context), sources)
        return Found(dict.fromkeys(self._budgets, shown), sources, None, bounded=False)

    async def _recalled(self, row: Row, scope: str, question: Question) -> Found:
        query = RecallQuery(scope, question.text, limit=ITEMS, layers=row.layers)
        by_budget: dict[int, Shown] = {}
        latency_ms: float | None = None
        degraded: set[str] = set()
        ranked: tuple[frozenset[str], ...] = ()
        for budget in (*self._budgets, _UNBOUNDED):
            started = self._monotonic()
            answer = await self._recall.recall(replace(query, budget_tokens=budget))
            # The first of them asks; the others find its searches remembered.
            latency_ms = latency_ms or (self._monotonic() - started) * 1000
            degraded |= {f"{part.part}:{part.reason}" for part in answer.degraded}
            if budget == _UNBOUNDED:
                ranked = tuple(frozenset(item.source_event_ids) for item in answer.items)
                break
            contexts = filter(None, (answer.system_context, answer.user_context))
            by_budget[budget] = Shown("\n".join(contexts), answer.tokens, _sources(answer.items))
        return Found(by_budget, ranked, latency_ms, tuple(sorted(degraded)))

    async def _plain(self, scope: str, question: Question) -> Found:
        started = self._monotonic()
        text, _ = clean_query(question.text)
        ask = self._store
        keyword = asyncio.to_thread(ask.search_keyword, "events", scope, text, _FETCH, Filter())
        vector = await self._embedder.embed_query(text)
        dense = asyncio.to_thread(ask.search_dense, "events", scope, vector, _FETCH, Filter())
        arms: dict[SearchArm, list[Hit]] = {}
        arms["dense"], arms["keyword"] = await asyncio.gather(dense, keyword)
        items = [item_of(one, explain=False) for one in _fused(arms)[:ITEMS]]
        by_budget: dict[int, Shown] = {}
        latency_ms: float | None = None
        for tokens in self._budgets:
            budget = Budget(ITEMS, tokens, ITEM_CHARS, _UNBOUNDED)
            fitted = fit(items, budget, render, count_tokens)
            by_budget[tokens] = Shown(fitted.context, fitted.tokens, _sources(fitted.items))
            latency_ms = latency_ms or (self._monotonic() - started) * 1000
        ranked = tuple(frozenset(item.source_event_ids) for item in items)
        return Found(by_budget, ranked, latency_ms)


def _fused(arms: Mapping[SearchArm, Sequence[Hit]]) -> list[Ranked]:
    """Fuse by place alone; equal scores by the order of the ids."""
    ranks: dict[str, dict[SearchArm, int]] = {}
    records: dict[str, IndexedEvent] = {}
    for arm in _ARMS:
        for rank, hit in enumerate(arms[arm], start=1):
            if isinstance(hit.record, IndexedEvent) and clean_text(hit.record.text).strip():
                ranks.setdefault(hit.id, {})[arm] = rank
                records[hit.id] = hit.record
    fused = [
        Ranked(
            "events", records[key], sum(1 / (_PLAIN_K + rank) for rank in places.values()), places
        )
        for key, places in ranks.items()
    ]
    return sorted(fused, key=lambda one: (-one.score, one.id))


def _sources(items: Sequence[RecallItem]) -> tuple[frozenset[str], ...]:
    return tuple(
        frozenset() if item.truncated else frozenset(item.source_event_ids) for item in items
    )


class _AskedAt:
    """The clock of a recall: event time of the question, so that recency depends on no wall."""

    def __init__(self) -> None:
        self.moment: datetime | None = None

    def now(self) -> datetime:
        assert self.moment is not None
        return self.moment + timedelta(seconds=1)


class _Remembered:
    """Embeds a question once, until it is told to forget."""

    def __init__(self, embedder: Embedder) -> None:
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._embedder = embedder
        self._vector: tuple[str, Vectors] | None = None

    def forget(self) -> None:
        self._vector = None

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return await self._embedder.embed_passages(texts)

    async def embed_query(self, text: str) -> Vectors:
        if self._vector is None or self._vector[0] != text:
            self._vector = (text, await self._embedder.embed_query(text))
        return self._vector[1]


class _RememberedSearches:
    """Asks the store once for each search, until it is told to forget.

    So one row's answer is cut at many budgets for the cost of one, and every row pays its own.
    """

    def __init__(self, store: MilvusStore) -> None:
        self._store = store
        self._known: dict[tuple[Any, ...], Any] = {}
        self._neighbours = True

    def forget(self, *, neighbours: bool) -> None:
        self._known.clear()
        self._neighbours = neighbours

    def search_dense(
        self, layer: str, scope: str, vector: Vectors, limit: int, where: Filter
    ) -> list[Hit]:
        return self._once(
            ("dense", layer, scope, vector.tobytes(), limit, where),
            lambda: self._store.search_dense(layer, scope, vector, limit, where),
        )

    def search_keyword(
        self, layer: str, scope: str, text: str, limit: int, where: Filter
    ) -> list[Hit]:
        return self._once(
            ("keyword", layer, scope, text, limit, where),
            lambda: self._store.search_keyword(layer, scope, text, limit, where),
        )

    def events_within(self, scope: str, spans: Sequence[Span], where: Filter) -> list[IndexedEvent]:
        if not self._neighbours:
            return []
        return self._once(
            ("within", scope, tuple(spans), where),
            lambda: self._store.events_within(scope, spans, where),
        )

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        return self._once(("profiles", scope, kind), lambda: self._store.profiles_of(scope, kind))

    def _once(self, key: tuple[Any, ...], ask: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = ask()
        found: T = self._known[key]
        return found


def unavailable(parts: Sequence[str]) -> ServiceUnavailable:
    """Say that a recall missed parts, so that its figures would mean nothing."""
    message = f"parts of a recall failed ({', '.join(parts)}); run the same command again"
    return ServiceUnavailable(service="recall", message=message)

"""Asks the memory one question the way a row says, and cuts the answer at several budgets.

Tokens are those of the text that a reader is given, fence, dates and speakers included. So
that a row is judged by its ranking, three bounds of the service are wide here, for all rows
alike: items (:data:`ITEMS`), characters of an item (:data:`ITEM_CHARS`) and of all items.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from connectors.query.budget import Budget, fit_answer
from connectors.query.fence import clean_text, render
from connectors.query.models import Layer, RecallItem
from connectors.query.parts import Parts, item_of
from connectors.query.question import RecallQuery, clean_query
from connectors.query.ranking import Ranked
from connectors.query.recall import Recall, RecallPolicy, RecallStore
from connectors.settings import Settings
from connectors.tokens import count_tokens
from flows.bench.data import Message, Question
from flows.bench.rows import Row
from flows.bench.sharing import LineTokens, QuestionVector, SharedSearches
from stores.errors import ServiceUnavailable
from stores.protocols import Embedder, Filter, Hit, SearchArm
from stores.records import IndexedEvent, ProfileKind

__all__ = [
    "BUDGETS",
    "ITEMS",
    "ITEM_CHARS",
    "Found",
    "Retriever",
    "Shown",
    "cut_at",
    "unavailable",
]

BUDGETS = (250, 500, 1000, 2000, 4000)
"""Tokens at which every answer is cut."""
ITEMS = 100
ITEM_CHARS = 4000
_UNBOUNDED = 1_000_000_000
_PLAIN_K = 60  # the constant of the paper on reciprocal rank fusion
_FETCH = 100
_TIMEOUT_S = 120.0  # a slow machine must not change what is found
_ARMS: tuple[SearchArm, ...] = ("dense", "keyword")
_PROFILES: Mapping[ProfileKind, Layer] = {"persona": "persona", "scene": "scenes"}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a reader is given within one budget.

    :arg context: system and user context, rendered.
    :arg sources: for each item, the events it comes from; of an item that was cut short, none.
    :arg layers: tokens of the texts of each layer's items, without dates, and under ``system``
        those of persona and scene lines.
    """

    context: str
    tokens: int
    sources: tuple[frozenset[str], ...]
    layers: Mapping[str, int] = field(default_factory=dict)

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
        where nothing is asked, or searches were shared.
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
    :arg full_text: False when the store has no keyword search.
    :arg monotonic: seconds, for latency only.
    """

    def __init__(
        self,
        settings: Settings,
        store: RecallStore,
        embedder: Embedder,
        budgets: Sequence[int] = BUDGETS,
        *,
        full_text: bool = True,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._budgets = tuple(budgets)
        self._monotonic = monotonic
        self._clock = _AskedAt()
        self._embedder = QuestionVector(embedder, monotonic)
        self._store = SharedSearches(store)
        self._policy = replace(
            RecallPolicy.of(settings),
            timeout_s=_TIMEOUT_S,
            max_chars_per_memory=ITEM_CHARS,
            max_total_recall_chars=_UNBOUNDED,
        )
        # Without a system context, which cut_at fits into each budget, all scenes stay items.
        bare = replace(self._policy, system_share=0.0)
        self._recall = Recall(self._store, self._embedder, self._clock, bare, full_text=full_text)
        self._asking = ""
        self._answers: dict[Hashable, Found] = {}  # to the question that is asked
        self._count = LineTokens()

    def close(self) -> None:
        """Give the search threads back."""
        self._recall.close()

    async def find(
        self,
        row: Row,
        scope: str,
        question: Question,
        visible: Sequence[Message],
        *,
        timed: bool = True,
    ) -> Found:
        """Find what the row gives to a reader.

        :arg timed: search for this row alone, and say how long that took; otherwise rows of a
            question that is asked of several of them in a row share their searches.

        Raises :class:`~stores.errors.ServiceUnavailable` when the store does not answer.
        """
        if row.kind == "nothing":
            nothing = Shown("", 0, ())
            return Found(dict.fromkeys(self._budgets, nothing), (), None)
        if row.kind == "history":
            return self._history(visible)
        self._clock.moment = question.asked_at
        self._store.neighbours = row.neighbours
        self._store.shared = not timed
        if question.id != self._asking:
            self._asking = question.id
            self._store.forget()
            self._answers.clear()
            self._count = LineTokens()
        text, _ = clean_query(question.text)
        embedding_s = await self._embedder.ready(text)
        started = self._monotonic() - embedding_s
        if row.kind == "plain":
            found = await self._plain(scope, text, started)
        elif timed:
            found = await self._recalled(row.layers, scope, question, started)
        else:
            found = await self._recalled_once(row, scope, question, started)
        return found if timed else replace(found, latency_ms=None)

    def _history(self, visible: Sequence[Message]) -> Found:
        lines = [
            f"[{one.said_at:%Y-%m-%d %H:%M}, {one.name or one.role}] {one.text}" for one in visible
        ]
        context = "\n".join(lines)
        sources = tuple(frozenset({one.event_id}) for one in visible)
        shown = Shown(context, count_tokens(context), sources)
        return Found(dict.fromkeys(self._budgets, shown), sources, None, bounded=False)

    async def _recalled_once(
        self, row: Row, scope: str, question: Question, started: float
    ) -> Found:
        """Take another row's answer where the two differ in layers that hold nothing."""
        seen = await asyncio.to_thread(self._store.profiles_seen, scope)
        held = {one.profile.kind for one in seen}
        empty = {layer for kind, layer in _PROFILES.items() if kind not in held}
        layers = tuple(one for one in row.layers if one not in empty)
        key = (layers, row.neighbours)
        if key in self._answers:
            return self._answers[key]
        found = await self._recalled(layers, scope, question, started)
        if not found.degraded:
            self._answers[key] = found
        return found

    async def _recalled(
        self, layers: tuple[Layer, ...], scope: str, question: Question, started: float
    ) -> Found:
        query = RecallQuery(
            scope, question.text, limit=ITEMS, budget_tokens=_UNBOUNDED, layers=layers
        )
        answer = await self._recall.recall(query)
        latency_ms = (self._monotonic() - started) * 1000
        told = Parts(self._monotonic, query, question.asked_at)
        if {"persona", "scenes"} & set(layers):
            told.take_profiles(await asyncio.to_thread(self._store.profiles_seen, scope))
        by_budget = {
            tokens: cut_at(
                tokens,
                answer.items,
                self._count,
                persona=told.persona if "persona" in layers else "",
                navigation=told.navigation if "scenes" in layers else {},
                system_share=self._policy.system_share,
            )
            for tokens in self._budgets
        }
        ranked = tuple(frozenset(item.source_event_ids) for item in answer.items)
        degraded = {f"{part.part}:{part.reason}" for part in answer.degraded}
        return Found(by_budget, ranked, latency_ms, tuple(sorted(degraded)))

    async def _plain(self, scope: str, text: str, started: float) -> Found:
        ask = self._store
        vector = await self._embedder.embed_query(text)
        keyword = asyncio.to_thread(ask.search_keyword, "events", scope, text, _FETCH, Filter())
        dense = asyncio.to_thread(ask.search_dense, "events", scope, vector, _FETCH, Filter())
        arms: dict[SearchArm, list[Hit]] = {}
        arms["dense"], arms["keyword"] = await asyncio.gather(dense, keyword)
        items = [item_of(one, explain=False) for one in _fused(arms)[:ITEMS]]
        render(items)
        latency_ms = (self._monotonic() - started) * 1000
        by_budget = {tokens: cut_at(tokens, items, self._count) for tokens in self._budgets}
        ranked = tuple(frozenset(item.source_event_ids) for item in items)
        return Found(by_budget, ranked, latency_ms)


def cut_at(
    tokens: int,
    items: Sequence[RecallItem],
    count_tokens: Callable[[str], int] = count_tokens,
    *,
    persona: str = "",
    navigation: Mapping[str, str] | None = None,
    system_share: float = 0.0,
) -> Shown:
    """Cut one answer at a budget, with the recall's own code.

    To recall once for each budget would rank the same items again and again.

    :arg items: of an answer that no budget bounded.
    """
    lines = navigation or {}
    fitted = fit_answer(
        items,
        Budget(ITEMS, tokens, ITEM_CHARS, _UNBOUNDED),
        count_tokens,
        persona=persona,
        navigation=lines,
        system_share=system_share,
    )
    contexts = filter(None, (fitted.about.context, fitted.items.context))
    tokens_shown = fitted.about.tokens + fitted.items.tokens
    layers = Counter({"system": fitted.about.tokens})
    for item in fitted.items.items:
        layers[item.layer] += item.tokens
    sources = _sources(fitted.items.items)
    return Shown("\n".join(contexts), tokens_shown, sources, dict(layers))


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


def unavailable(parts: Sequence[str]) -> ServiceUnavailable:
    """Say that a recall missed parts, so that its figures would mean nothing."""
    message = f"parts of a recall failed ({', '.join(parts)}); run the same command again"
    return ServiceUnavailable(service="recall", message=message)

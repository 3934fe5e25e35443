"""Recall: one question, four layers, one bounded answer.

```
           ┌─ profiles ──────────┬──────────────────────────────── system context ┐
           ├─ embed ─ dense: scenes, atoms, events ┐                              ├─ answer
question ──┴─ keyword: the same three ─────────────┴─ fuse ─ look around ─ weigh ─ fit ─┘
```
A part that is slow or dead costs its share only, and is named in the answer. When no part
answers there is nothing to answer with: that is an error, never an empty list.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

from connectors.metrics import RECALL_DEGRADED
from connectors.query.budget import Budget, fit_answer, report_cut
from connectors.query.models import Layer, RecallAnswer, SearchLayer
from connectors.query.parts import ARMS, Parts, item_of, nearest_scenes
from connectors.query.question import RecallQuery, clean_query
from connectors.query.ranking import Ranked, Weights, distinct, spread
from connectors.query.relevance import OFFLINE_FLOOR, Relevance
from connectors.settings import Settings
from connectors.tokens import count_tokens
from stores.errors import SedimentError, ServiceUnavailable, UserError
from stores.protocols import (
    Clock,
    Embedder,
    Filter,
    Hit,
    Neighbours,
    SearchArm,
    Searcher,
    SeenProfile,
    Span,
    Vectors,
)
from stores.records import IndexedEvent
from stores.scenes import HeatCounters

__all__ = ["Recall", "RecallPolicy", "RecallStore"]

_SEARCHED: Mapping[Layer, str] = {"scenes": "profiles", "atoms": "atoms", "events": "events"}

_OVERFETCH = 3
"""Each arm is asked for this many times the limit: a record in the middle of both arms can
then still beat one at the end of a single arm."""
_MIN_FETCH = 30
_NOBODY = "%nobody"  # no scope: in a scope's key every % is escaped
_NEAR_HITS = 12  # best events whose neighbours are looked at
_NEAR_SPAN = timedelta(minutes=10)  # before and after: the silence that ends a window

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecallPolicy:
    """What bounds and weighs an answer.

    :arg timeout_s: after this many seconds the answer is made of what is there.
    :arg half_life: of what recency adds to a score.
    :arg system_share: of the token budget, at most, for persona and scenes; less where many
        items are asked for (:meth:`~connectors.query.budget.Budget.for_system`).
    :arg floor: see :class:`~connectors.query.relevance.Relevance`.
    """

    timeout_s: float = 5.0
    max_chars_per_memory: int = 800
    max_total_recall_chars: int = 3000
    half_life: timedelta = timedelta(days=90)
    floor: float | None = None
    system_share: float = 0.25

    @classmethod
    def of(cls, settings: Settings) -> RecallPolicy:
        """Read it from the settings."""
        floor = settings.recall_min_similarity
        if floor is None and not settings.embeddings_base_url:
            floor = OFFLINE_FLOOR
        return cls(
            timeout_s=settings.recall_timeout_s,
            max_chars_per_memory=settings.max_chars_per_memory,
            max_total_recall_chars=settings.max_total_recall_chars,
            half_life=timedelta(days=settings.recall_half_life_days),
            floor=floor,
            system_share=settings.recall_system_share,
        )


class RecallStore(Searcher, Neighbours, Protocol):
    """What recall reads."""

    def profiles_seen(self, scope: str) -> list[SeenProfile]:
        """Read the scenes and the persona of a scope, by kind and path; as fresh as a search."""
        ...


class Recall:
    """Answers questions from a store. One for a process; safe for concurrent calls.

    :arg store: blocking; called from a bounded pool of threads for each arm, so that a
        hanging arm cannot take the threads of the other.
    :arg clock: says what is now, for recency and for what has expired.
    :arg heat: counts the scenes that answers tell of.
    :arg full_text: False when the store has no keyword search; every answer then says so.
    :arg threads: searches running at once, for each arm.
    :arg monotonic: seconds, for timings only.
    """

    def __init__(
        self,
        store: RecallStore,
        embedder: Embedder,
        clock: Clock,
        policy: RecallPolicy | None = None,
        *,
        full_text: bool = True,
        heat: HeatCounters | None = None,
        threads: int = 8,
        count_tokens: Callable[[str], int] = count_tokens,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._clock = clock
        self._policy = policy or RecallPolicy()
        self._full_text = full_text
        self._heat = heat
        self._count_tokens = count_tokens
        self._monotonic = monotonic
        self._pools = {
            arm: ThreadPoolExecutor(threads, thread_name_prefix=f"recall-{arm}") for arm in ARMS
        }

    @classmethod
    def of(
        cls,
        settings: Settings,
        store: RecallStore,
        embedder: Embedder,
        clock: Clock,
        *,
        full_text: bool = True,
        heat: HeatCounters | None = None,
    ) -> Recall:
        """Build it as the settings say."""
        policy = RecallPolicy.of(settings)
        return cls(store, embedder, clock, policy, full_text=full_text, heat=heat)

    def close(self) -> None:
        """Take no further searches. Does not wait for one that hangs."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    async def warm_up(self) -> None:
        """Do once what the first question would wait for: clients are made, caches are filled.

        Reads a scope that nobody has. What does not answer in time is left for those who ask.
        """

        async def ask() -> None:
            self._count_tokens(_NOBODY)
            vector = await self._embedder.embed_query(_NOBODY)
            search = self._store.search_dense
            await self._run("dense", partial(search, "events", _NOBODY, vector, 1, Filter()))

        with suppress(Exception):
            await asyncio.wait_for(ask(), self._policy.timeout_s)

    async def recall(self, query: RecallQuery) -> RecallAnswer:
        """Answer a question within the timeout; a repeated question gives the same answer.

        Raises :class:`~stores.errors.UserError` for a question without text, and
        :class:`~stores.errors.ServiceUnavailable` when no part answered.
        """
        text, notes = clean_query(query.text)
        if not text:
            message = "the query is empty; say what to recall"
            raise UserError(message)
        if not self._full_text:
            notes = (*notes, "the store has no keyword search; this answer is by meaning only")
        now = query.as_of or self._clock.now()
        started = self._monotonic()
        parts = Parts(self._monotonic, query, now)
        await self._within_time(self._ask(query, text, parts))
        for part in parts.degraded:
            RECALL_DEGRADED.labels(f"{part.part}:{part.reason}").inc()
        if not parts.answered:
            reasons = ", ".join(f"{part.part} {part.reason}" for part in parts.degraded)
            message = f"no part of it answered ({reasons}); try again"
            raise ServiceUnavailable(service="recall", message=message)

        rank_started = self._monotonic()
        answer, shown = self._answer(query, parts, now)
        parts.timed("rank", rank_started)
        parts.timed("total", started)
        if self._heat is not None and (told := parts.scenes_of(shown)):
            # Nobody waits for it: a hit that is not counted is no fault of the answer.
            self._pools["keyword"].submit(_count_hits, self._heat, query.scope, told)
        return answer.model_copy(
            update={
                "degraded": tuple(sorted(parts.degraded, key=lambda part: part.part)),
                "notes": notes,
                "timings_ms": parts.timings_ms,
            }
        )

    def _answer(
        self, query: RecallQuery, parts: Parts, now: datetime
    ) -> tuple[RecallAnswer, Sequence[str]]:
        """Give the answer, and the ids of all that was found and is told in it."""
        weights = Weights(now, self._policy.half_life, query.text)
        merged = weights.weigh(item for layer in parts.ranked.values() for item in layer)
        navigation = parts.navigation if "scenes" in query.layers else {}
        # Scenes that the system context tells of give their places to what comes after them.
        places = query.limit + len(navigation)
        ranked, folded = distinct(merged, places)
        fitted = fit_answer(
            [item_of(one, query.explain) for one in ranked[:places]],
            Budget(
                limit=query.limit,
                tokens=query.budget_tokens,
                chars_per_memory=self._policy.max_chars_per_memory,
                total_chars=self._policy.max_total_recall_chars,
            ),
            self._count_tokens,
            persona=parts.persona if "persona" in query.layers else "",
            navigation=navigation,
            system_share=self._policy.system_share,
            beyond=[one.id for one in ranked[places:]],
        )
        cut = [*fitted.about.cut, *fitted.items.cut]
        if said := [*(one.id for one in folded), *fitted.told]:
            cut.append(report_cut("said_by_another", said))
        answer = RecallAnswer(
            items=fitted.items.items,
            system_context=fitted.about.context,
            user_context=fitted.items.context,
            tokens=fitted.about.tokens + fitted.items.tokens,
            budget_tokens=query.budget_tokens,
            cut=tuple(cut),
            timings_ms={},
        )
        return answer, [*(item.id for item in answer.items), *fitted.told]

    async def _within_time(self, work: Coroutine[None, None, None]) -> None:
        """Run ``work`` until it ends or the time is up; what it has gathered by then counts."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task], timeout=self._policy.timeout_s)
        finally:
            # Also when the caller is gone: a search not yet begun leaves its pool's queue.
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ask(self, query: RecallQuery, text: str, parts: Parts) -> None:
        """Ask every part at once; what stands around events as soon as these are there."""
        layers = query.searched()
        embedding = asyncio.ensure_future(self._embed(text, parts)) if layers else None
        reading = asyncio.ensure_future(self._profiles(query, parts))
        fetch = max(_MIN_FETCH, _OVERFETCH * query.limit)
        relevant = Relevance(text, self._policy.floor)

        async def keyword(layer: SearchLayer) -> None:
            call = self._store.search_keyword
            where = query.where(layer)
            ask = partial(call, _SEARCHED[layer], query.scope, text, fetch, where)
            await self._search(layer, "keyword", ask, parts)

        async def dense(layer: SearchLayer) -> None:
            vector = await embedding if embedding is not None else None
            if vector is None:
                return
            if layer == "scenes":
                # All of them are read anyway, for the system context.
                if (seen := await reading) is not None:
                    parts.keep(layer, "dense", nearest_scenes(seen, vector, fetch))
                return
            call = self._store.search_dense
            where = query.where(layer)
            ask = partial(call, _SEARCHED[layer], query.scope, vector, fetch, where)
            await self._search(layer, "dense", ask, parts)

        async def both(layer: SearchLayer) -> None:
            arms = [keyword(layer), dense(layer)] if self._full_text else [dense(layer)]
            try:
                await asyncio.gather(*arms)
            finally:
                ranked = parts.rank(layer, relevant) if layer != "scenes" else []
            if layer == "events" and ranked:
                await self._look_around(query, ranked, parts)

        try:
            await asyncio.gather(reading, *(both(layer) for layer in layers))
        finally:
            if "scenes" in layers:  # last, for the other layers know who speaks
                parts.rank("scenes", relevant.without(parts.speakers()))

    async def _embed(self, text: str, parts: Parts) -> Vectors | None:
        return await parts.answer_of("embed", self._embedder.embed_query(text))

    async def _search(
        self, layer: SearchLayer, arm: SearchArm, call: Callable[[], list[Hit]], parts: Parts
    ) -> None:
        hits = await parts.answer_of(f"{layer}.{arm}", self._run(arm, call))
        if hits is not None:
            parts.answered = True
            parts.keep(layer, arm, hits)

    async def _profiles(self, query: RecallQuery, parts: Parts) -> Sequence[SeenProfile] | None:
        if query.as_of is not None or not {"persona", "scenes"} & set(query.layers):
            return None
        call = partial(self._store.profiles_seen, query.scope)
        seen = await parts.answer_of("profiles", self._run("keyword", call))
        if seen is not None:
            parts.take_profiles(seen)
        return seen

    async def _look_around(
        self, query: RecallQuery, events: Sequence[Ranked], parts: Parts
    ) -> None:
        """Fetch what stands beside the best events, and let it share in their scores."""
        spans = [
            Span(item.record.session_id, item.record.occurred_at - _NEAR_SPAN,
                 item.record.occurred_at + _NEAR_SPAN)
            for item in events[:_NEAR_HITS]
            if isinstance(item.record, IndexedEvent)
        ]  # fmt: skip
        call = partial(self._store.events_within, query.scope, spans, query.where("events"))
        around = await parts.answer_of("events.near", self._run("keyword", call))
        if around is not None:
            parts.ranked["events"] = spread(events, parts.shown(around))

    def _run(self, arm: SearchArm, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._pools[arm], call)


def _count_hits(heat: HeatCounters, scope: str, paths: Sequence[str]) -> None:
    try:
        for path in paths:
            heat.add(scope, path)
    except SedimentError as error:
        RECALL_DEGRADED.labels(f"heat:{error.reason}").inc()

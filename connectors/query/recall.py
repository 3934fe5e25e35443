"""Recall: one question, two layers, two arms each, one bounded answer.

```
           ┌─ atoms.keyword ────────┐
question ──┼─ events.keyword ───────┤
           └─ embed ┬─ atoms.dense ─┼─ fuse each layer ─ merge ─ fold ─ fit ─ answer
                    └─ events.dense ┘
```
A part that is slow or dead costs its share only, and is named in the answer. When no part
answers there is nothing to answer with: that is an error, never an empty list.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from connectors.metrics import RECALL_DEGRADED, RECALL_SECONDS
from connectors.query.budget import Budget, fit, report_cut
from connectors.query.fence import clean_text, render
from connectors.query.models import Degraded, ItemLayer, Layer, RecallAnswer, RecallItem
from connectors.query.ranking import Ranked, fold_sources, merge, rank_layer
from connectors.settings import Settings
from connectors.tokens import count_tokens
from stores.errors import RequestTimedOut, SedimentError, ServiceUnavailable, UserError
from stores.protocols import Embedder, Filter, Hit, SearchArm, Searcher
from stores.records import Atom

__all__ = ["MAX_QUERY_CHARS", "Recall", "RecallQuery", "clean_query"]

MAX_QUERY_CHARS = 2048
LAYERS: tuple[Layer, ...] = ("atoms", "events")
_ARMS: tuple[SearchArm, ...] = ("dense", "keyword")

_OVERFETCH = 3
"""Each arm is asked for this many times the limit: a record in the middle of both arms can
then still beat one at the end of a single arm."""
_MIN_FETCH = 20

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """One question to one scope.

    :arg scope: the scope key, already checked against the caller's credential.
    :arg limit: items at most.
    :arg budget_tokens: tokens of the rendered answer at most.
    :arg session_id: only what was said in this session, or what came from it.
    :arg since: event time, inclusive.
    :arg until: event time, exclusive.
    """

    scope: str
    text: str
    limit: int = 10
    budget_tokens: int = 1000
    layers: tuple[Layer, ...] = LAYERS
    session_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def clean_query(text: str) -> tuple[str, tuple[str, ...]]:
    r"""Give the question as it is searched for, and notes on what was changed.

    >>> clean_query("where\x00 do I live?\n")
    ('where do I live?', ())
    """
    cleaned = " ".join(clean_text(text).split())
    if len(cleaned) <= MAX_QUERY_CHARS:
        return cleaned, ()
    note = f"the query has {len(cleaned)} characters; only the first {MAX_QUERY_CHARS} were used"
    return cleaned[:MAX_QUERY_CHARS], (note,)


class Recall:
    """Answers questions from a store. One for a process; safe for concurrent calls.

    :arg searcher: blocking; called from a bounded pool of threads for each arm, so that a
        hanging arm cannot take the threads of the other.
    :arg full_text: False when the store has no keyword search; every answer then says so.
    :arg timeout_s: after this many seconds the answer is made of what is there.
    :arg threads: searches running at once, for each arm.
    :arg monotonic: seconds, for timings only.
    """

    def __init__(
        self,
        searcher: Searcher,
        embedder: Embedder,
        *,
        full_text: bool = True,
        timeout_s: float = 5.0,
        max_chars_per_memory: int = 800,
        max_total_recall_chars: int = 3000,
        threads: int = 8,
        count_tokens: Callable[[str], int] = count_tokens,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._searcher = searcher
        self._embedder = embedder
        self._full_text = full_text
        self._timeout_s = timeout_s
        self._max_chars_per_memory = max_chars_per_memory
        self._max_total_recall_chars = max_total_recall_chars
        self._count_tokens = count_tokens
        self._monotonic = monotonic
        self._pools = {
            arm: ThreadPoolExecutor(threads, thread_name_prefix=f"recall-{arm}") for arm in _ARMS
        }

    @classmethod
    def of(
        cls, settings: Settings, searcher: Searcher, embedder: Embedder, *, full_text: bool = True
    ) -> Recall:
        """Build it as the settings say."""
        return cls(
            searcher,
            embedder,
            full_text=full_text,
            timeout_s=settings.recall_timeout_s,
            max_chars_per_memory=settings.max_chars_per_memory,
            max_total_recall_chars=settings.max_total_recall_chars,
        )

    def close(self) -> None:
        """Take no further searches. Does not wait for one that hangs."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

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
        started = self._monotonic()
        parts = _Parts(self._monotonic)
        await self._search(query, text, parts)
        for part in parts.degraded:
            RECALL_DEGRADED.labels(f"{part.part}:{part.reason}").inc()
        if not parts.hits:
            reasons = ", ".join(f"{part.part} {part.reason}" for part in parts.degraded)
            message = f"no part of it answered ({reasons}); try again"
            raise ServiceUnavailable(service="recall", message=message)

        rank_started = self._monotonic()
        merged = merge(
            rank_layer(layer, {arm: parts.hits.get((layer, arm), []) for arm in _ARMS})
            for layer in dict.fromkeys(query.layers)
        )
        ranked, folded = fold_sources(merged, query.limit)
        fitted = fit(
            [_item(one) for one in ranked[: query.limit]],
            Budget(
                limit=query.limit,
                tokens=query.budget_tokens,
                chars_per_memory=self._max_chars_per_memory,
                total_chars=self._max_total_recall_chars,
            ),
            render,
            self._count_tokens,
        )
        cut = [*fitted.cut]
        if beyond := [one.id for one in ranked[query.limit :]]:
            cut.append(report_cut("limit", beyond))
        if folded:
            cut.append(report_cut("said_by_atom", [one.event_id for one in folded]))
        parts.timed("rank", rank_started)
        parts.timed("total", started)
        return RecallAnswer(
            items=fitted.items,
            context=fitted.context,
            tokens=fitted.tokens,
            budget_tokens=query.budget_tokens,
            cut=tuple(cut),
            degraded=tuple(sorted(parts.degraded, key=lambda part: part.part)),
            notes=notes,
            timings_ms=parts.timings_ms,
        )

    async def _search(self, query: RecallQuery, text: str, parts: _Parts) -> None:
        """Ask every part at once; return when all have answered or the time is up."""
        loop = asyncio.get_running_loop()
        where = Filter(
            session_id=query.session_id, since=query.since, until=query.until, only_active=True
        )
        fetch = max(_MIN_FETCH, _OVERFETCH * query.limit)
        layers = tuple(dict.fromkeys(query.layers))

        async def search(layer: Layer, arm: SearchArm, call: Callable[[], list[Hit]]) -> None:
            answer = loop.run_in_executor(self._pools[arm], call)
            hits = await parts.answer_of(f"{layer}.{arm}", answer)
            if hits is not None:
                parts.keep(layer, arm, hits, query.scope)

        async def keyword(layer: Layer) -> None:
            call = self._searcher.search_keyword
            await search(layer, "keyword", partial(call, layer, query.scope, text, fetch, where))

        async def dense() -> None:
            vector = await parts.answer_of("embed", self._embedder.embed_query(text))
            if vector is None:
                return
            call = self._searcher.search_dense
            await asyncio.gather(
                *(
                    search(layer, "dense", partial(call, layer, query.scope, vector, fetch, where))
                    for layer in layers
                )
            )

        searches = [dense(), *map(keyword, layers if self._full_text else ())]
        tasks = [asyncio.create_task(one) for one in searches]
        try:
            await asyncio.wait(tasks, timeout=self._timeout_s)
        finally:
            # Also when the caller is gone: a search not yet begun leaves its pool's queue.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Parts:
    """What the parts of one recall answered, how long each took, and which did not."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.hits: dict[tuple[Layer, SearchArm], list[Hit]] = {}
        self.degraded: list[Degraded] = []
        self.timings_ms: dict[str, float] = {}
        self._monotonic = monotonic

    async def answer_of(self, part: str, answer: Awaitable[T]) -> T | None:
        """Wait for one part; ``None``, and a line in ``degraded``, when it fails or is stopped."""
        started = self._monotonic()
        try:
            return await answer
        except asyncio.CancelledError:
            self._lost(part, RequestTimedOut.reason)
            raise
        except SedimentError as error:
            self._lost(part, error.reason)
        except Exception as error:
            # A fault of ours or of a library: it costs its share like any other. Its text may
            # hold what was asked, so only its class is logged.
            _log.error("recall: %s failed with %s", part, type(error).__name__)
            self._lost(part, "error")
        finally:
            self.timed(part, started)
        return None

    def keep(self, layer: Layer, arm: SearchArm, hits: list[Hit], scope: str) -> None:
        """Take the hits of one arm without what must not be shown.

        The store filters already; a stale read or a fault in it must not reach a prompt. And a
        record without visible text, such as a tool call, has nothing to show.
        """
        own = [hit for hit in hits if hit.record.scope == scope]
        if len(own) < len(hits):
            _log.error("recall: %s.%s gave records of another scope; they are dropped", layer, arm)
            self._lost(f"{layer}.{arm}", "foreign_scope")
        self.hits[layer, arm] = [
            hit
            for hit in own
            if clean_text(hit.record.text).strip()
            and not (isinstance(hit.record, Atom) and hit.record.status != "active")
        ]

    def timed(self, step: str, started: float) -> None:
        """Note that ``step`` took from ``started`` until now."""
        seconds = self._monotonic() - started
        RECALL_SECONDS.labels(step).observe(seconds)
        self.timings_ms[step] = round(seconds * 1000, 3)

    def _lost(self, part: str, reason: str) -> None:
        self.degraded.append(Degraded(part=part, reason=reason))


def _item(ranked: Ranked) -> RecallItem:
    record = ranked.record
    layer: ItemLayer
    kind: str
    if isinstance(record, Atom):
        layer, kind, sources = "atom", record.type, record.source_event_ids
    else:
        layer, kind, sources = "event", record.role, (record.event_id,)
    return RecallItem(
        id=ranked.id,
        layer=layer,
        type=kind,
        text=clean_text(record.text).strip(),
        score=ranked.score,
        ranks=dict(ranked.ranks),
        occurred_at=record.occurred_at,
        session_id=record.session_id,
        source_event_ids=sources,
    )

"""The L0 index: every message becomes searchable as it was said, before any window closes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from zlib import crc32

import bytewax.operators as op
from bytewax.operators import KeyedStream

from connectors.metrics import RECALLABLE_SECONDS
from flows.async_stage import AsyncStage, Done, Failed, async_stage
from flows.dedup import first_only
from flows.forget.events import EventForgetter
from flows.forget.request import is_request
from stores.protocols import Clock, Embedder, EventIndex
from stores.records import IndexedEvent, SourcedEvent

__all__ = ["LANES", "Indexer", "has_text", "index"]

LANES = 4
"""Queues that events are spread over by scope. One call takes a whole batch from one of them,
so few lanes make large batches, and more than one lets embedding and writing overlap."""


class Indexer:
    """Work of the index stage: embed a batch of events and write them. Idempotent by event.

    A forget request takes the same way as the events before it, and deletes what of them it
    covers; an event that a request covers is not written.
    """

    def __init__(
        self,
        index: EventIndex,
        embedder: Embedder,
        clock: Clock,
        forgetting: EventForgetter | None = None,
    ) -> None:
        """``clock`` is for the freshness metric only. Without ``forgetting`` requests pass by."""
        self._index = index
        self._embedder = embedder
        self._clock = clock
        self._forgetting = forgetting

    async def __call__(
        self, items: Sequence[SourcedEvent], previous_error: str | None
    ) -> Sequence[None]:
        """Index ``items``, in order. Raises what embedder and index raise; then none counts."""
        for asked, group in groupby(items, is_request):
            if not asked:
                await self._write(list(group))
            elif self._forgetting is not None:
                for one in group:
                    await asyncio.to_thread(self._forgetting.forget, one)
        return [None] * len(items)

    async def _write(self, items: Sequence[SourcedEvent]) -> None:
        if self._forgetting is not None:
            items = [one for one in items if not self._forgetting.covers(one)]
        if not items:
            return
        events = [IndexedEvent.of(item) for item in items]
        vectors = await self._embedder.embed_passages([event.search_text() for event in events])
        await asyncio.to_thread(self._index.upsert_events, events, vectors)
        now = self._clock.now().timestamp()
        freshness = RECALLABLE_SECONDS.labels("events")
        for item in items:
            freshness.observe(max(0.0, now - item.record.timestamp_ms / 1000))


def index(
    step_id: str,
    up: KeyedStream[Sequence[SourcedEvent]],
    stage: AsyncStage[SourcedEvent, None],
    *,
    dedup_ids: int,
) -> KeyedStream[Done[SourcedEvent, None] | Failed[SourcedEvent]]:
    """Index every message that has text; of a repeated event the first record stays.

    Forget requests go through in the order of their scope.
    """

    def wanted(events: Sequence[SourcedEvent]) -> Sequence[SourcedEvent] | None:
        return [one for one in events if has_text(one) or is_request(one)] or None

    messages = op.filter_map_value(f"{step_id}_messages", up, wanted)
    first = op.key_rm(f"{step_id}_any", first_only(f"{step_id}_first", messages, dedup_ids))
    lanes = op.key_on(f"{step_id}_lanes", first, _lane)
    return async_stage(step_id, lanes, stage)


def has_text(sourced: SourcedEvent) -> bool:
    """Say whether an event is indexed: a message with more than white space."""
    return sourced.event.type == "message" and bool(sourced.event.text().strip())


def _lane(sourced: SourcedEvent) -> str:
    return f"lane-{crc32(sourced.scope.encode()) % LANES}"

"""What a stage's work shows of itself: how fresh scenes and personas are, and traces.

Around the work, so that the work knows nothing of either. Without traces a stage costs what it did
before: decode, windows and work are wrapped when a flow is built, and only when traces are on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import bytewax.operators as op
from bytewax.operators import KeyedStream

from connectors import tracing
from connectors.metrics import RECALLABLE_SECONDS
from connectors.tracing import Attributes
from flows.async_stage import Work
from flows.forget.request import Forgetting
from flows.persona import PersonaResult, QueuedPersonaJob
from flows.reconcile import NewAtoms, StoredAtoms
from flows.scenes import JoinedJob, SceneResult
from stores.ids import event_key, scope_hash
from stores.protocols import Clock
from stores.records import LogRecord, SourcedEvent, Window

__all__ = ["observed", "trace_decoded", "trace_windows"]

_MAX_IDS = 50


def observed(step: str, work: Work[Any, Any], clock: Clock) -> Work[Any, Any]:
    """Give the work of a stage with what is measured around it; maybe the work itself."""
    if step in ("scenes", "persona"):
        work = _fresh(step, work, clock)
    return _traced(step, work) if tracing.on() else work


def trace_decoded(
    events: KeyedStream[Sequence[SourcedEvent]],
) -> KeyedStream[Sequence[SourcedEvent]]:
    """Make a span of each event that was read: from the log's time for it until now."""
    if not tracing.on():
        return events

    def look(together: Sequence[SourcedEvent]) -> Sequence[SourcedEvent]:
        for sourced in together:
            mark(sourced)
        return together

    def mark(sourced: SourcedEvent) -> None:
        record = sourced.record
        topic, partition, offset = record.position
        attributes: Attributes = {
            "sediment.scope": scope_hash(sourced.scope),
            "sediment.event_key": event_key(sourced.scope, sourced.event.event_id),
            "sediment.event_type": sourced.event.type,
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.kafka.offset": offset,
        }
        with tracing.span(
            "decode",
            attributes,
            parents=[tracing.origin_of(record)],
            kind="CONSUMER",
            started_s=record.timestamp_ms / 1000,
        ):
            pass

    return op.map_value("trace_decoded", events, look)


def trace_windows(step_id: str, ended: Any) -> Any:
    """Make a span of each window: from the log's time for its first event until it closed."""
    if not tracing.on():
        return ended

    def look(one: Any) -> Any:
        if isinstance(one, Window):
            records = _records(one)
            attributes = {**_about(one), "sediment.closed_by": one.closed_by}
            with tracing.span(
                "window",
                attributes,
                parents=tracing.origins_of(records),
                started_s=records[0].timestamp_ms / 1000,
            ):
                return one
        return one

    return op.map_value(step_id, ended, look)


def _fresh(step: str, work: Work[Any, Any], clock: Clock) -> Work[Any, Any]:
    measured = RECALLABLE_SECONDS.labels(step)

    async def call(items: Sequence[Any], previous_error: str | None) -> Sequence[Any]:
        outputs = await work(items, previous_error)
        for item, output in zip(items, outputs, strict=True):
            if isinstance(output, (SceneResult, PersonaResult)) and output.result == "applied":
                measured.observe(max(0.0, (clock.now() - _said_at(item)).total_seconds()))
        return outputs

    return call


def _said_at(item: JoinedJob | QueuedPersonaJob) -> datetime:
    return item.at if isinstance(item, JoinedJob) else item.job.occurred_at


def _traced(step: str, work: Work[Any, Any]) -> Work[Any, Any]:
    async def call(items: Sequence[Any], previous_error: str | None) -> Sequence[Any]:
        records = [record for item in items for record in _records(item)]
        attributes = {**_about(items[-1]), "sediment.items": len(items)}
        with tracing.span(step, attributes, parents=tracing.origins_of(records)):
            outputs = await work(items, previous_error)
            made = [one for output in outputs for one in _made(output)]
            if made:
                tracing.note({"sediment.atom_ids": made[:_MAX_IDS], "sediment.atoms": len(made)})
        return outputs

    return call


def _records(item: Any) -> list[LogRecord]:
    """Give the records of the events that an item is about, newest last."""
    if isinstance(item, NewAtoms):
        item = item.window
    if isinstance(item, Window):
        return [sourced.record for sourced in item.events]
    if isinstance(item, Forgetting):
        return [item.sourced.record]
    return [item.record] if isinstance(item, SourcedEvent) else []


def _about(item: Any) -> dict[str, Any]:
    """Say what an item is about, in hashes."""
    if isinstance(item, NewAtoms):
        item = item.window
    if isinstance(item, Window):
        return {
            "sediment.scope": scope_hash(item.scope),
            "sediment.window_id": item.window_id,
            "sediment.events": len(item.events),
        }
    if isinstance(item, Forgetting):
        return {"sediment.scope": scope_hash(item.sourced.scope)}
    if isinstance(item, SourcedEvent):
        return {"sediment.scope": scope_hash(item.scope)}
    if isinstance(item, JoinedJob):
        return {
            "sediment.scope": scope_hash(item.scope),
            "sediment.window_ids": [one.job.window_id for one in item.jobs][:_MAX_IDS],
            "sediment.atom_ids": list(item.atom_ids[:_MAX_IDS]),
        }
    if isinstance(item, QueuedPersonaJob):
        return {"sediment.scope": scope_hash(item.job.scope)}
    return {}


def _made(output: Any) -> list[str]:
    if isinstance(output, NewAtoms):
        return [atom.atom_id for atom in output.atoms]
    return [atom.atom_id for atom in output.touched] if isinstance(output, StoredAtoms) else []

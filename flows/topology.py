"""The dataflows: which stages stand behind which topic.

Five of them, from the same functions:

- ``all``: all layers in one dataflow. The embedded default, and a small Kafka set-up.
- ``l0``: the index alone, so that it scales and fails apart from extraction.
- ``l1``: decode, window, extract, reconcile. Writes dead letters and outcomes.
- ``l2``: scenes, behind the jobs topic that ``l1`` writes (:mod:`flows.layers`).
- ``l3``: personas, behind the one that ``l2`` writes.

A forget or reject request goes the way of its scope's events, through index and windows; what it
covers is kept out from the moment it is decoded. Every flow writes its tombstone, in the same
epoch: a restart finds it in the topic or reads the request again.

On Kafka each of them reads its topic with its own group and recovery store.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow, Stream
from bytewax.inputs import Source
from bytewax.operators import KeyedStream
from bytewax.outputs import FixedPartitionedSink
from prometheus_client import Counter

from connectors.dataflow import Written, write_records, written_of
from connectors.kafka.redrive import as_it_was
from connectors.metrics import EVENTS_DECODED
from connectors.settings import ScopeField
from connectors.tombstones_topic import tombstone_records
from flows import outputs
from flows.async_stage import AsyncStage, Done, Failed, async_stage
from flows.decode import by_scope, decode
from flows.extract.text import has_user_text
from flows.forget.request import Forgetting, is_edit, is_request, without_forgotten
from flows.index import has_text, index
from flows.layers import Layers, behind_atoms, persona_flow, scene_flow
from flows.observed import trace_decoded, trace_windows
from flows.outputs import Topics
from flows.progress import EVENT_FLOWS, FLOWS, FlowName, Progress, source_topic
from flows.reconcile import Leaving, NewAtoms, StoredAtoms
from flows.window import Ended, Forgotten, Requested, Skipped, WindowPolicy, window
from stores.errors import InvalidEvent, SettingsError
from stores.protocols import Clock
from stores.records import LogRecord, OutRecord, SourcedEvent, Window
from stores.tombstones import Tombstones, tombstone_of

__all__ = [
    "EVENT_FLOWS",
    "FLOWS",
    "FlowName",
    "Parts",
    "Progress",
    "build_flow",
    "source_topic",
]

ToExtract = Window | Forgetting | Leaving
ToReconcile = NewAtoms | Forgetting | Leaving


@dataclass(frozen=True)
class Parts:
    """What a dataflow is made of. Real or fake, it cannot tell.

    :arg live: the log is followed, so windows may also close by processing time.
    :arg stopping: true once the flow was asked to stop.
    :arg kept_out: what was forgotten or rejected; read from its topic before the flow begins.
    :arg layers: scenes and persona; ``None`` where they are switched off.
    """

    source: Source[LogRecord]
    sink: FixedPartitionedSink[Sequence[OutRecord], None]
    topics: Topics
    scope_fields: tuple[ScopeField, ...]
    window: WindowPolicy
    clock: Clock
    live: bool
    stopping: Callable[[], bool]
    progress: Progress
    indexing: AsyncStage[SourcedEvent, None]
    extracting: AsyncStage[ToExtract, ToReconcile]
    reconciling: AsyncStage[ToReconcile, StoredAtoms]
    kept_out: Tombstones = field(default_factory=Tombstones)
    layers: Layers | None = None


def build_flow(name: FlowName, parts: Parts) -> Dataflow:
    """Wire one of the dataflows. Nothing is opened or started."""
    flow = Dataflow(f"sediment_{name}")
    records = op.input("events", flow, parts.source)
    if name not in EVENT_FLOWS:
        write_records("write", op.merge("written", *_layer(name, records, parts)), parts.sink)
        return flow
    decoded = op.flat_map_batch("decode", records, lambda batch: [_decoded(batch, parts)])
    events = trace_decoded(op.flat_map("by_scope", decoded, lambda batch: batch.events.items()))
    written: list[Written] = [op.flat_map("tombstones", decoded, lambda batch: batch.tombstones)]
    if name != "l0":
        written.append(op.flat_map("invalid", decoded, lambda batch: batch.refusals))
        atoms = _l1(events, parts)
        written += atoms
        if name == "all" and parts.layers is not None:
            written += behind_atoms(flow, atoms[-1], parts.layers)
    if name != "l1":
        written.append(_l0(events, parts))
    write_records("write", op.merge("written", *written), parts.sink)
    return flow


def _layer(name: FlowName, records: Stream[LogRecord], parts: Parts) -> list[Written]:
    if parts.layers is None:
        message = f"SEDIMENT_SCENE_WRITER is off, so there is nothing for the flow {name} to do"
        raise SettingsError(message)

    def counted(record: LogRecord) -> LogRecord:
        parts.progress.read += 1
        return record

    read = op.map("jobs_read", records, counted)
    return (scene_flow if name == "l2" else persona_flow)(read, parts.layers)


@cache
def _decoded_of(event_type: str) -> Counter:
    return EVENTS_DECODED.labels(event_type)


@dataclass(frozen=True, slots=True)
class _Decoded:
    """What became of the records that were read at once. What is written stands under a scope.

    A record that is not an event has no scope: it is under the key that its producer gave it.
    """

    events: dict[str, list[SourcedEvent]]
    tombstones: list[tuple[str, list[OutRecord]]]
    refusals: list[tuple[str, list[OutRecord]]]


def _read(
    record: LogRecord, scope_fields: Sequence[str]
) -> tuple[LogRecord, SourcedEvent | InvalidEvent]:
    """Decode a record; of a dead letter that came again, the original.

    A message that was given up behind the windows comes again with its window's id. One without
    has headers that are not ours, and is a record like any other.
    """
    again = as_it_was(record) if record.headers else None
    if again is not None:
        was, redriven = again
        value = decode(was, scope_fields, redriven)
        lost = redriven.stage == "reconcile" and not redriven.window_id
        if not lost or isinstance(value, InvalidEvent) or is_request(value):
            return was, value
    return record, decode(record, scope_fields)


def _decoded(batch: Sequence[LogRecord], parts: Parts) -> _Decoded:
    events: list[SourcedEvent] = []
    tombstones: list[tuple[str, list[OutRecord]]] = []
    refusals: list[tuple[str, list[OutRecord]]] = []
    for record in batch:
        record, value = _read(record, parts.scope_fields)  # noqa: PLW2901
        if isinstance(value, InvalidEvent):
            key = (record.key or b"").decode("latin-1")
            refusals.append((key, outputs.refused(record, value, parts.topics)))
            continue
        events.append(value)
        if is_request(value):
            kept = parts.kept_out.add(tombstone_of(value))
            tombstones.append((value.scope, tombstone_records(kept, parts.topics.tombstones)))
    parts.progress.read += len(batch)
    for kind, count in collections.Counter(one.event.type for one in events).items():
        _decoded_of(kind).inc(count)
    return _Decoded(by_scope(events), tombstones, refusals)


def _l0(events: KeyedStream[Sequence[SourcedEvent]], parts: Parts) -> Written:
    def ended(
        item: tuple[str, Done[SourcedEvent, None] | Failed[SourcedEvent]],
    ) -> list[tuple[str, list[OutRecord]]]:
        _, result = item  # under a lane, not a scope
        sourced = result.item
        if isinstance(result, Failed):
            return [(sourced.scope, outputs.failed_event(result, parts.topics))]
        parts.progress.indexed += has_text(sourced)  # and no request
        if sourced.redriven is not None and sourced.redriven.stage == "index":
            return [(sourced.scope, outputs.indexed_at_last(sourced, parts.topics))]
        return []

    indexed = index("index", events, parts.indexing, dedup_ids=parts.window.dedup_ids)
    return op.flat_map("index_failed", indexed, ended)


def _l1(events: KeyedStream[Sequence[SourcedEvent]], parts: Parts) -> list[Written]:
    """Wire L1; what reconcile writes comes last."""
    topics, progress = parts.topics, parts.progress

    def unwanted(cut: _Cut) -> list[OutRecord]:
        if isinstance(cut.ended, Skipped):
            return outputs.skipped(cut.ended, topics)
        if isinstance(cut.ended, Forgotten):
            return outputs.forgotten(cut.ended.event, topics)
        return []

    def not_extracted(
        result: Done[ToExtract, ToReconcile] | Failed[ToExtract],
    ) -> list[OutRecord]:
        if isinstance(result.item, Forgetting):
            return (
                outputs.failed_request(result.item, result, topics)
                if isinstance(result, Failed)
                else []
            )
        if isinstance(result, Failed) or isinstance(result.item, Leaving):
            return []  # it leaves behind those before it
        assert isinstance(result.output, NewAtoms)
        left = result.output.window
        if not left.events:
            progress.ended += 1
        return taken_out(result.item, left)

    def reconciled(
        result: Done[ToReconcile, StoredAtoms] | Failed[ToReconcile],
    ) -> list[OutRecord]:
        if isinstance(result.item, Forgetting):
            if isinstance(result, Failed):
                return outputs.failed_request(result.item, result, topics)
            return outputs.applied(result.item, result.output, topics)
        if isinstance(result.item, Leaving):
            return leaving(result.item)
        if isinstance(result, Failed):
            return failed(result.item.window, "reconcile", result)
        progress.ended += 1
        return outputs.stored(result.item, result.output, topics)

    def leaving(one: Leaving) -> list[OutRecord]:
        if one.failed is not None:
            return failed(one.window, "extract", one.failed)
        progress.ended += 1
        return outputs.without_user_text(one.window, topics)

    def failed(window: Window, stage: str, failure: Failed[Any]) -> list[OutRecord]:
        progress.ended += 1
        progress.given_up += 1
        left = without_forgotten(window, parts.kept_out)  # no dead letter for what was forgotten
        records = outputs.failed_window(left, stage, failure, topics) if left.events else []
        return [*taken_out(window, left), *records]

    def taken_out(window: Window, left: Window) -> list[OutRecord]:
        if len(left.events) == len(window.events):  # as nearly always; to compare is much work
            return []
        gone = [one for one in window.events if one not in left.events]
        return [record for one in gone for record in outputs.forgotten(one, topics)]

    ended = window(
        "window",
        events,
        parts.window,
        parts.clock,
        live=parts.live,
        stopping=parts.stopping,
        kept_out=parts.kept_out,
    )
    ended = trace_windows("trace_windows", ended)
    cut = op.map_value("cut", ended, lambda one: _Cut.of(one, progress))
    windows: KeyedStream[ToExtract] = op.filter_map_value(
        "windows", cut, lambda one: one.to_extract(parts.kept_out)
    )
    extracted = async_stage("extract", windows, parts.extracting)
    new: KeyedStream[ToReconcile] = op.filter_map_value("new", extracted, _new_atoms)
    stored = async_stage("reconcile", new, parts.reconciling)
    return [
        written_of("unwanted", cut, unwanted),
        written_of("not_extracted", extracted, not_extracted),
        written_of("reconciled", stored, reconciled),
    ]


@dataclass(frozen=True, slots=True)
class _Cut:
    """What the window stage ended; ``wanted`` when there is something to extract from."""

    ended: Ended
    wanted: bool

    @classmethod
    def of(cls, ended: Ended, progress: Progress) -> _Cut:
        if not isinstance(ended, Window):
            return cls(ended, wanted=False)
        progress.windows += 1
        return cls(ended, is_edit(ended) or has_user_text(ended))

    def to_extract(self, kept_out: Tombstones) -> ToExtract | None:
        if isinstance(self.ended, Requested):
            request = self.ended.event
            return Forgetting(request, kept_out.add(tombstone_of(request)))
        if not isinstance(self.ended, Window):
            return None
        return self.ended if self.wanted else Leaving(self.ended)


def _new_atoms(result: Done[ToExtract, ToReconcile] | Failed[ToExtract]) -> ToReconcile | None:
    if isinstance(result, Failed):
        return Leaving(result.item, result) if isinstance(result.item, Window) else None
    output = result.output
    if isinstance(output, (Forgetting, Leaving)):
        return output
    return replace(output, attempts=result.attempts) if output.window.events else None

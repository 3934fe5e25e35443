"""The L0 index stage: every message with text once, the first of repeated events, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main

from flows.async_stage import AsyncStage, Done, Failed, PendingWork, StageSpec
from flows.decode import by_scope
from flows.forget.events import EventForgetter
from flows.index import LANES, Indexer, _lane, index
from stores.errors import Terminal
from stores.ids import event_key
from stores.milvus_schema import PARTITIONS, partition_name
from stores.protocols import Vectors
from stores.records import IndexedEvent, SourcedEvent, Tombstone
from stores.tombstones import Tombstones, tombstone_of
from tests.rig.events import sourced
from tests.rig.still import OnesEmbedder, StillClock


class _Index:
    def __init__(self) -> None:
        self.events: list[IndexedEvent] = []
        self.calls = 0

    def delete_events(self, scope: str, event_ids: Sequence[str]) -> None:
        self.events = [
            one for one in self.events if one.scope != scope or one.event_id not in event_ids
        ]

    def events_of(self, scope: str, session_id: str | None = None) -> Iterator[IndexedEvent]:
        yield from [
            one
            for one in self.events
            if one.scope == scope and session_id in (None, one.session_id)
        ]

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        self.calls += 1
        if any("poison" in event.text for event in events):
            message = "refused"
            raise Terminal(message)
        self.events.extend(events)


Result = tuple[str, "Done[SourcedEvent, None] | Failed[SourcedEvent]"]


class _TombstoneLog:
    """Tombstones that are nowhere but here."""

    def __init__(self, known: Tombstones) -> None:
        self.known = known
        self.published: list[Tombstone] = []

    def refresh(self) -> None:
        return

    def publish(self, tombstones: Sequence[Tombstone]) -> None:
        self.published.extend(tombstones)
        for one in tombstones:
            self.known.add(one)


def _run(
    events: Sequence[SourcedEvent], log: _TombstoneLog | None = None
) -> tuple[_Index, list[Result]]:
    found, out = _Index(), list[Result]()
    forgetting = EventForgetter(found, log or _TombstoneLog(Tombstones()))
    spec = StageSpec(
        name="index",
        work=Indexer(found, OnesEmbedder(), StillClock(), forgetting),
        clock=StillClock(),
        pending=PendingWork(1000),
        batch_max=16,
    )
    flow = Dataflow("index_test")
    read = op.input("in", flow, TestingSource(events, batch_size=100))
    up = op.flat_map_batch("by_scope", read, lambda batch: by_scope(batch).items())
    with AsyncStage(spec) as stage:
        op.output("out", index("index", up, stage, dedup_ids=1000), TestingSink(out))
        run_main(flow)
    return found, out


def test_of_repeated_events_the_first_is_indexed() -> None:
    found, _ = _run([sourced("e1", content="first"), sourced("e1", content="again")])
    assert [event.text for event in found.events] == ["first"]


def test_other_scopes_may_use_the_same_event_id() -> None:
    found, _ = _run([sourced("e1"), sourced("e1", user_id="marcus")])
    assert len(found.events) == 2


def test_messages_with_text_are_indexed_and_nothing_else() -> None:
    found, _ = _run(
        [
            sourced("e1", content="text"),
            sourced("e2", content="  "),
            sourced("e3", role="assistant", content=None, tool_calls=[{"id": "1"}]),
            sourced("e4", type="session_end", role=None, content=None),
        ]
    )
    assert [event.event_id for event in found.events] == ["e1"]


def test_one_bad_text_costs_only_itself() -> None:
    events = [sourced(f"e{n}", content="poison" if n == 7 else f"text {n}") for n in range(20)]
    found, out = _run(events)
    assert {event.event_id for event in found.events} == {f"e{n}" for n in range(20) if n != 7}
    assert sum(isinstance(result, Failed) for _, result in out) == 1


def test_events_are_written_in_batches() -> None:
    found, _ = _run([sourced(f"e{n}") for n in range(64)])
    assert found.calls < 16


def _asks(target: str, **request: object) -> SourcedEvent:
    return sourced(
        "f", seconds=50, offset=50, type="forget", role=None, content=None,
        request={"target": target, **request},
    )  # fmt: skip


def _ids(found: _Index) -> list[str]:
    return sorted(event.event_id for event in found.events)


@pytest.mark.parametrize(
    ("request_event", "left"),
    [
        (_asks("user"), ["bobs", "new"]),
        (_asks("session"), ["bobs", "e2", "new"]),
        (_asks("event", event_ids=["e2"]), ["bobs", "e1", "late", "new"]),
    ],
)
def test_a_request_deletes_what_came_before_it_and_keeps_out_what_comes_late(
    request_event: SourcedEvent, left: list[str]
) -> None:
    """Known only when the request is read, as another process's is: the order alone decides."""
    events = [
        sourced("e1"),
        sourced("e2", session_id="s2", offset=1),
        sourced("bobs", user_id="bob", offset=2),
        request_event,
        sourced("late", seconds=49, offset=60),
        sourced("new", seconds=51, offset=61),
    ]
    log = _TombstoneLog(Tombstones([tombstone_of(request_event)]))
    found, out = _run(events, log)
    assert _ids(found) == left
    assert len(out) == len(events)


def test_the_keys_of_a_session_are_published_before_its_rows_go() -> None:
    log = _TombstoneLog(Tombstones())
    index = _Index()
    index.events = [IndexedEvent.of(sourced(name)) for name in ("e1", "e2")]
    log.known.add(tombstone_of(_asks("session")))

    def refuse(scope: str, event_ids: Sequence[str]) -> None:
        message = "the store is down"
        raise Terminal(message)

    index.delete_events = refuse  # type: ignore[method-assign]
    with pytest.raises(Terminal):
        EventForgetter(index, log).forget(_asks("session"))
    (published,) = log.published
    keys = [event_key("acme/helper/ana", name) for name in ("e1", "e2")]
    assert sorted(published.event_keys) == sorted(keys)


def test_a_batch_of_a_lane_is_for_few_partitions_of_the_store() -> None:
    """Each is a request of its own."""
    partitions: dict[str, set[str]] = {}
    for number in range(400):
        one = sourced(f"e{number}", user_id=f"u{number}")
        partitions.setdefault(_lane(one), set()).add(partition_name(one.scope))
    assert [len(found) for found in partitions.values()] == [len(PARTITIONS) // LANES] * LANES

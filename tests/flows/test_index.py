"""The L0 index stage: every message with text once, the first of repeated events, in batches."""

from __future__ import annotations

from collections.abc import Sequence

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main

from flows.async_stage import AsyncStage, Done, Failed, PendingWork, StageSpec
from flows.index import Indexer, index
from stores.errors import Terminal
from stores.protocols import Vectors
from stores.records import IndexedEvent, SourcedEvent
from tests.rig.events import sourced
from tests.rig.still import OnesEmbedder, StillClock


class _Index:
    def __init__(self) -> None:
        self.events: list[IndexedEvent] = []
        self.calls = 0

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        self.calls += 1
        if any("poison" in event.text for event in events):
            message = "refused"
            raise Terminal(message)
        self.events.extend(events)


Result = tuple[str, "Done[SourcedEvent, None] | Failed[SourcedEvent]"]


def _run(events: Sequence[SourcedEvent]) -> tuple[_Index, list[Result]]:
    found, out = _Index(), list[Result]()
    spec = StageSpec(
        name="index",
        work=Indexer(found, OnesEmbedder(), StillClock()),
        clock=StillClock(),
        pending=PendingWork(1000),
        batch_max=16,
    )
    flow = Dataflow("index_test")
    up = op.input("in", flow, TestingSource(events, batch_size=100))
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

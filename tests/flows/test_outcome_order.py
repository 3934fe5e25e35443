"""Outcomes of a session stand in the order of its windows, however each of them ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import orjson
from bytewax.testing import TestingSink, TestingSource, run_main

from flows.async_stage import AsyncStage, PendingWork, StageSpec
from flows.extract.work import ExtractWork
from flows.forget.work import ForgettingWork
from flows.outputs import Topics
from flows.reconcile import NewAtoms, StoredAtoms
from flows.topology import Parts, Progress, build_flow
from flows.window import WindowPolicy
from stores.errors import RequestRefused
from stores.ids import scope_key
from stores.records import Extraction, LogRecord, Outcome, OutRecord, Position, Window
from tests.contract.conftest import WallClock
from tests.rig.events import at, body
from tests.rig.memory_world import MemoryWorld

SAID = (("user", "one"), ("user", "poison"), ("assistant", "no user here"), ("user", "two"))


class Refusing:
    """Finds nothing, and gives up what is poison at once."""

    version = "refusing/1"

    async def extract(self, window: Window, previous_error: str | None) -> Extraction:
        if "poison" in window.events[0].event.text():
            message = "no"
            raise RequestRefused(message, status=400)
        return Extraction(())


def test_a_window_that_ends_at_once_waits_behind_one_that_is_still_reconciled() -> None:
    written: list[tuple[str, Sequence[OutRecord]]] = []

    async def slow(items: Sequence[Any], previous_error: str | None) -> Sequence[StoredAtoms]:
        """Take as long as it takes for a later window to overtake, if it can."""
        deadline = time.monotonic() + 0.3
        while not written and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert all(isinstance(one, NewAtoms) for one in items)
        return [StoredAtoms(()) for _ in items]

    clock, pending, world = WallClock(), PendingWork(100), MemoryWorld()
    stages: list[AsyncStage[Any, Any]] = []

    def stage(name: str, work: Any, **limits: Any) -> AsyncStage[Any, Any]:
        stages.append(AsyncStage(StageSpec(name, work, clock, pending, **limits)))
        return stages[-1]

    parts = Parts(
        source=TestingSource(list(_records())),
        sink=TestingSink(written),  # type: ignore[arg-type]
        topics=Topics("t"),
        scope_fields=("tenant", "agent", "user"),
        window=WindowPolicy(user_turns=1),
        clock=clock,
        live=False,
        stopping=lambda: False,
        progress=Progress(),
        indexing=stage("index", None),
        extracting=stage("extract", ExtractWork(Refusing()), per_key=10),
        reconciling=stage(
            "reconcile",
            ForgettingWork(slow, atoms=world, index=world, journal=None, log=world),
        ),
    )
    try:
        run_main(build_flow("l1", parts))
    finally:
        for one in stages:
            one.close()
    outcomes = [
        Outcome.model_validate_json(record.value or b"")
        for _, together in written
        for record in together
        if record.topic == "t.outcomes"
    ]
    ends = [(one.event_ids, one.result) for one in outcomes]
    assert ends == [
        (("e0",), "empty"),
        (("e1",), "dead_lettered"),
        (("e2", "end"), "skipped"),
        (("e3",), "empty"),
    ]


def _records() -> list[LogRecord]:
    events = [
        body(f"e{n}", role=role, content=text, occurred_at=at(n).isoformat())
        for n, (role, text) in enumerate(SAID)
    ]
    end = body("end", type="session_end", role=None, content=None, occurred_at=at(2.5).isoformat())
    key = scope_key(["acme", "helper", "ana"]).encode()
    return [
        LogRecord(
            Position("l0.events", 0, offset),
            int(at(offset).timestamp() * 1000),
            key,
            orjson.dumps(one),
        )
        for offset, one in enumerate([*events[:3], end, events[3]])
    ]

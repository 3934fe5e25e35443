"""Parts that the async stage's tests share: clocks to turn, scripted work, a gated source."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import AbortExecution, FixedPartitionedSource, StatefulSourcePartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, run_main

from flows.async_stage import AsyncStage, Done, Failed, PendingWork, StageSpec, async_stage
from stores.errors import FlowHalted

START = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)

Item = tuple[str, int]
Result = tuple[str, "Done[Item, str] | Failed[Item]"]
"""What leaves the stage: the key and the result."""


class TurnedClock:
    """Stands still until somebody turns it."""

    def __init__(self) -> None:
        self._now = START

    def now(self) -> datetime:
        return self._now

    def turn(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class SteppingClock:
    """Runs ahead by itself, a step each time it is asked, so that no retry takes long."""

    def __init__(self, step_s: float = 20.0) -> None:
        self._lock = threading.Lock()
        self._now = START
        self._step = timedelta(seconds=step_s)

    def now(self) -> datetime:
        with self._lock:
            self._now += self._step
            return self._now


@dataclass
class ScriptedWork:
    """Fails as its script says: errors by item, the first one first; then it succeeds.

    :arg always: items that fail each time.
    """

    script: dict[Item, list[Exception]] = field(default_factory=dict)
    always: dict[Item, Exception] = field(default_factory=dict)
    calls: list[list[Item]] = field(default_factory=list)
    shown: list[str | None] = field(default_factory=list)
    in_flight: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    most_in_flight: int = 0

    async def __call__(self, items: Sequence[Item], previous_error: str | None) -> list[str]:
        self.calls.append(list(items))
        self.shown.append(previous_error)
        key = items[0][0]
        assert all(item[0] == key for item in items), "a call must not mix keys"
        self.in_flight[key] += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight[key])
        try:
            await asyncio.sleep(0)
            for item in items:
                if item in self.always:
                    raise self.always[item]
                if self.script.get(item):
                    raise self.script[item].pop(0)
            return [f"{key}-{number}" for _, number in items]
        finally:
            self.in_flight[key] -= 1


@dataclass
class Gate:
    """An element of the input: the source reads on once ``condition`` is true."""

    condition: Callable[[], bool]


class Abort:
    """An element of the input: the run breaks off here, as in a crash. Once."""

    def __init__(self) -> None:
        self.done = False


class _GatedPartition(StatefulSourcePartition[Item, int]):
    def __init__(self, elements: Sequence[Any], at: int, pause: Callable[[], bool]) -> None:
        self._elements = elements
        self._at = at
        self._pause = pause

    def next_batch(self) -> list[Item]:
        if self._pause():
            return []
        if self._at >= len(self._elements):
            raise StopIteration
        element = self._elements[self._at]
        if isinstance(element, Gate):
            self._at += int(element.condition())
            return []
        self._at += 1
        if isinstance(element, Abort):
            if not element.done:
                element.done = True
                raise AbortExecution
            return []
        return element if isinstance(element, list) else [element]

    def snapshot(self) -> int:
        return self._at


class GatedSource(FixedPartitionedSource[Item, int]):
    """Gives items, or lists of them as one batch, and obeys ``Gate`` and ``Abort``."""

    def __init__(self, elements: Sequence[Any], pause: Callable[[], bool] = lambda: False) -> None:
        self._elements = elements
        self._pause = pause

    def list_parts(self) -> list[str]:
        return ["only"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> _GatedPartition:
        return _GatedPartition(self._elements, resume_state or 0, self._pause)


def stage_of(work: Any, **settings: Any) -> AsyncStage[Item, str]:
    settings.setdefault("clock", SteppingClock())
    settings.setdefault("pending", PendingWork(cap=1_000_000))
    settings.setdefault("spread", lambda: 0.0)
    return AsyncStage(StageSpec("under_test", work, **settings))


def flow_of(source: GatedSource, stage: AsyncStage[Item, str], out: list[Result]) -> Dataflow:
    flow = Dataflow("flow")
    items = op.input("input", flow, source)
    keyed = op.key_on("key", items, lambda item: item[0])
    op.output("output", async_stage("stage", keyed, stage), TestingSink(out))
    return flow


def recovery(folder: Path) -> RecoveryConfig:
    if not folder.exists():
        folder.mkdir()
        init_db_dir(folder, 1)
    return RecoveryConfig(str(folder))


def run(
    elements: Sequence[Any],
    stage: AsyncStage[Item, str],
    folder: Path | None = None,
    out: list[Result] | None = None,
    pause: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Run the small flow to its end, an epoch per batch; close the stage."""
    results: list[Result] = [] if out is None else out
    with stage:
        run_main(
            flow_of(GatedSource(elements, pause), stage, results),
            epoch_interval=timedelta(0),
            recovery_config=None if folder is None else recovery(folder),
        )
    return results


def halt_of(error: BaseException) -> FlowHalted:
    """Find the halt behind Bytewax's own error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FlowHalted):
            return cause
        cause = cause.__cause__
    raise error


def numbers_by_key(results: Iterable[Result]) -> dict[str, list[int]]:
    """Give the items of each key, in the order in which they left."""
    order: dict[str, list[int]] = defaultdict(list)
    for key, result in results:
        order[key].append(result.item[1])
    return dict(order)


def without_repeats(numbers: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something on another thread has happened."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    message = "never happened"
    raise AssertionError(message)

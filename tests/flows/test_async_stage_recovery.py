"""What a crash, a stop and a halt leave, and how the next run goes on."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from bytewax.errors import BytewaxRuntimeError

from flows.async_stage import Done, Failed, FailureLimit, PendingWork
from flows.async_stage.engine import Engine
from stores.errors import FlowHalted, LogAway, RateLimited, RequestRefused, SettingsError
from tests.flows.stage_rig import (
    Abort,
    Gate,
    Item,
    Result,
    ScriptedWork,
    TurnedClock,
    halt_of,
    numbers_by_key,
    run,
    stage_of,
    wait_for,
    without_repeats,
)

ITEMS: list[Item] = [("abcd"[n % 4], n) for n in range(80)]


def stage_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stage-")]


class Saved:
    """True when the state of every pending key was saved again after ``condition`` came true."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self._snapshots = 0
        self._batches = 0
        original = Engine.snapshot

        def counted(engine: Engine[Item, str], lane: object) -> object:
            taken = original(engine, lane)  # type: ignore[arg-type]
            self._snapshots += self._condition()
            return taken

        monkeypatch.setattr(Engine, "snapshot", counted)

    def __call__(self) -> bool:
        """Wait some epochs more after the snapshot, until it is surely written."""
        self._batches += self._snapshots >= 2
        return self._batches > 50


@pytest.mark.parametrize("per_key", [1, 5])
def test_abort_loses_nothing_and_keeps_the_order(tmp_path: Path, per_key: int) -> None:
    script: dict[Item, list[Exception]] = {item: [RateLimited("429")] for item in ITEMS[::7]}
    elements = [*ITEMS[:30], Abort(), *ITEMS[30:60], Abort(), *ITEMS[60:]]
    out: list[Result] = []
    for _ in range(3):
        stage = stage_of(ScriptedWork(script=dict(script)), per_key=per_key)
        before = len(out)
        run(elements, stage, tmp_path / "recovery", out)
        for numbers in numbers_by_key(out[before:]).values():
            assert numbers == sorted(numbers)
    order = numbers_by_key(out)
    for key in "abcd":
        assert without_repeats(order[key]) == [n for name, n in ITEMS if name == key]


def test_restart_resumes_a_retry_with_its_attempts_and_due_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = TurnedClock()
    first = ScriptedWork(always={("a", 0): RateLimited("429")})

    def second_call_failed() -> bool:
        if len(first.calls) == 1 and not stage.status().in_flight:
            clock.turn(5)
        return len(first.calls) == 2 and not stage.status().in_flight

    stage = stage_of(first, clock=clock)
    saved = Saved(monkeypatch, second_call_failed)
    elements = [("a", 0), Gate(saved), Abort()]
    assert run(elements, stage, tmp_path / "recovery") == []

    second = ScriptedWork()
    polls: list[int] = []

    def waits_for_its_time() -> bool:
        polls.append(len(second.calls))
        if len(polls) == 200:
            assert second.calls == [], "the second retry is due 15 s after the second failure"
            clock.turn(15)
        return bool(second.calls)

    stage = stage_of(second, clock=clock)
    ((_, result),) = run([*elements, Gate(waits_for_its_time)], stage, tmp_path / "recovery")
    assert result == Done(("a", 0), "a-0", attempts=3)


def test_restored_items_count_as_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(items: Sequence[Item], previous_error: str | None) -> list[str]:
        await asyncio.Event().wait()
        return []

    saved = Saved(monkeypatch, lambda: stage.status().pending == 3)
    stage = stage_of(hang)
    elements = [[("a", 0), ("a", 1), ("b", 2)], Gate(saved), Abort()]
    run(elements, stage, tmp_path / "recovery")

    pending, seen = PendingWork(cap=3), list[bool]()

    def look() -> bool:
        seen.append(pending.full())
        release.set()
        return True

    release = threading.Event()

    async def wait(items: Sequence[Item], previous_error: str | None) -> list[str]:
        while not release.is_set():
            await asyncio.sleep(0.005)
        return ["done"]

    out = run([*elements, Gate(look)], stage_of(wait, pending=pending), tmp_path / "recovery")
    assert seen == [True]
    assert numbers_by_key(out) == {"a": [0, 1], "b": [2]}


def test_idle_keys_leave_no_state(tmp_path: Path) -> None:
    out: list[Result] = []
    stage = stage_of(ScriptedWork())
    keys: list[int] = []

    def look() -> bool:
        keys.append(len(stage.engine()._lanes))
        return len(out) == 100 and keys[-1] == 0

    run([[(f"k{n}", n) for n in range(100)], Gate(look)], stage, out=out)
    assert keys[-1] == 0


# --- stop --------------------------------------------------------------------------------------


def test_graceful_stop_keeps_what_is_not_done_for_the_next_run(tmp_path: Path) -> None:
    stopping, release = threading.Event(), threading.Event()
    cancelled: list[Item] = []
    retried = ScriptedWork(always={("retry", 0): RateLimited("429")})

    async def work(items: Sequence[Item], previous_error: str | None) -> list[str]:
        if items[0][0] == "retry":
            return await retried(items, previous_error)
        if items[0][0] == "hangs":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.extend(items)
                raise
        while not release.is_set():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        return ["in time"]

    def stop() -> bool:
        if len(retried.calls) != 1 or stage.status().in_flight != 2:
            return False
        stopping.set()
        release.set()
        return True

    elements = [[("retry", 0), ("quick", 1), ("quick", 2), ("hangs", 3)], Gate(stop)]
    stage = stage_of(work, clock=TurnedClock(), stopping=stopping.is_set, grace_s=0.3)
    out = run(elements, stage, tmp_path / "recovery")
    assert numbers_by_key(out) == {"quick": [1]}, "in flight ends; nothing new is begun"
    assert cancelled == [("hangs", 3)]
    assert stage_threads() == []

    stage = stage_of(ScriptedWork())
    rest = run(elements, stage, tmp_path / "recovery")
    assert numbers_by_key(rest) == {"retry": [0], "quick": [2], "hangs": [3]}
    (retry,) = (result for key, result in rest if key == "retry")
    assert retry.attempts == 2


def test_closing_cancels_calls_and_ends_the_thread_and_its_clients() -> None:
    begun, cancelled, closed = list[Item](), list[Item](), list[str]()

    async def work(items: Sequence[Item], previous_error: str | None) -> list[str]:
        begun.extend(items)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.extend(items)
            raise
        return []

    async def aclose() -> None:
        closed.append(threading.current_thread().name)

    pending = PendingWork(cap=10)
    stage = stage_of(work, pending=pending, aclose=aclose)
    run([[("a", 0), ("b", 1)], Gate(lambda: len(begun) == 2), Abort()], stage)
    assert sorted(cancelled) == sorted(begun)
    assert closed == ["stage-under_test"]
    assert stage_threads() == []
    assert pending.count() == 0


def test_run_that_ended_early_without_a_close_lets_go_of_its_items() -> None:
    async def hang(items: Sequence[Item], previous_error: str | None) -> list[str]:
        await asyncio.Event().wait()
        return []

    stage = stage_of(hang)
    stage.close, close = lambda: None, stage.close  # type: ignore[method-assign]
    run([[("a", 0), ("b", 1)], Gate(lambda: stage.status().in_flight == 2), Abort()], stage)
    gc.collect()
    wait_for(lambda: stage.status().in_flight == 0 and stage.spec.pending.count() == 0)
    close()


def test_one_stage_serves_several_runs() -> None:
    stage = stage_of(ScriptedWork())
    for _ in range(3):
        assert numbers_by_key(run([ITEMS], stage)) == numbers_by_key(
            [(key, Done((key, n), "", 1)) for key, n in ITEMS]
        )
        assert stage_threads() == []


# --- halt --------------------------------------------------------------------------------------


def test_too_many_failures_stop_the_flow_and_a_repaired_restart_completes(tmp_path: Path) -> None:
    broken = ScriptedWork(always={item: RequestRefused("401", status=401) for item in ITEMS})
    stage = stage_of(
        broken, concurrency=1, failure_limit=FailureLimit(rate=0.5, window=40, minimum=20)
    )
    out: list[Result] = []
    with pytest.raises(BytewaxRuntimeError) as raised:
        run([ITEMS], stage, tmp_path / "recovery", out)
    halt = halt_of(raised.value)
    assert "20 of the last 20 items failed for good (20 refused; the last: 401)" in halt.message
    assert len(out) < 20, "the items that tripped the limit are not given out as failed"
    assert stage_threads() == []
    assert stage.spec.pending.count() == 0

    repaired = run([ITEMS], stage_of(ScriptedWork()), tmp_path / "recovery", out)
    ended_well = {r.item for _, r in repaired if isinstance(r, Done)}
    failed = {r.item for _, r in repaired if isinstance(r, Failed)}
    assert ended_well | failed == set(ITEMS)
    assert len(failed - ended_well) < 20


def test_error_that_a_person_must_repair_halts_at_once() -> None:
    work = ScriptedWork(always={("a", 0): SettingsError("llm_model: no such model")})
    with pytest.raises(BytewaxRuntimeError) as raised:
        run([("a", 0)], stage_of(work))
    halt = halt_of(raised.value)
    assert halt.message == "stage under_test: llm_model: no such model"
    assert isinstance(halt.__cause__, SettingsError)


def test_a_log_that_stays_away_stops_the_flow_at_end_of_input_too(tmp_path: Path) -> None:
    """Nobody reads or writes any more then; seed 9274 of the fault rig."""
    away = ScriptedWork(always={ITEMS[1]: LogAway("kafka", "no answer")})
    out: list[Result] = []
    with pytest.raises(BytewaxRuntimeError) as raised:
        run(ITEMS[:3], stage_of(away, log_patience_s=100.0), tmp_path / "recovery", out)
    error: BaseException | None = raised.value
    while error is not None and not isinstance(error, LogAway):
        error = error.__cause__
    assert error is not None
    assert "no answer; stage under_test waited for" in str(error)
    run(ITEMS[:3], stage_of(ScriptedWork()), tmp_path / "recovery", out)
    assert {result.item for _, result in out if isinstance(result, Done)} == set(ITEMS[:3])
    assert not any(isinstance(result, Failed) for _, result in out)


def test_closing_under_a_running_flow_halts_it() -> None:
    stage = stage_of(ScriptedWork(always={("a", 0): RateLimited("429")}), clock=TurnedClock())
    closed = threading.Timer(0.2, stage.close)
    closed.start()
    with pytest.raises(BytewaxRuntimeError) as raised:
        run([("a", 0)], stage)
    closed.join()
    assert isinstance(halt_of(raised.value), FlowHalted)


# --- kill --------------------------------------------------------------------------------------

KILLED_FLOW = """
import asyncio, os, sys
from datetime import timedelta
from pathlib import Path
import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main
from stores.errors import RateLimited
from tests.flows.stage_rig import GatedSource, async_stage, recovery, stage_of

folder = Path(sys.argv[1])
calls = 0

async def work(items, previous_error):
    global calls
    calls += 1
    await asyncio.sleep(0.002 + 0.02 * (calls % 5 == 0))
    if calls % 11 == 0:
        raise RateLimited("429")
    return ["done" for _ in items]

class Lines(StatelessSinkPartition):
    def write_batch(self, results):
        with (folder / "out.txt").open("a") as out:
            out.writelines(f"{key} {result.item[1]}\\n" for key, result in results)

class LineSink(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Lines()

items = [(f"k{n % 9}", n) for n in range(900)]
stage = stage_of(work, concurrency=6, per_key=2)
flow = Dataflow("flow")
stream = op.input("input", flow, GatedSource(items, lambda: stage.spec.pending.count() > 40))
keyed = op.key_on("key", stream, lambda item: item[0])
op.output("output", async_stage("stage", keyed, stage), LineSink())
with stage:
    run_main(
        flow,
        epoch_interval=timedelta(milliseconds=20),
        recovery_config=recovery(folder / "recovery"),
    )
"""


def test_killed_at_any_moment_nothing_is_lost_and_order_holds(tmp_path: Path) -> None:
    lines = tmp_path / "out.txt"
    root = Path(__file__).parents[2]

    def count() -> int:
        return len(lines.read_text().splitlines()) if lines.exists() else 0

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", KILLED_FLOW, str(tmp_path)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stderr=subprocess.DEVNULL,
        )

    def killed_after(more: int) -> None:
        process, wanted = start(), count() + more
        wait_for(lambda: process.poll() is not None or count() >= wanted)
        assert process.poll() is None, "it ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()

    for more in (30, 1, 120, 60):
        killed_after(more)
    assert start().wait(timeout=120) == 0

    order: dict[str, list[int]] = {}
    for line in lines.read_text().splitlines():
        key, number = line.split()
        order.setdefault(key, []).append(int(number))
    assert {key: without_repeats(numbers) for key, numbers in order.items()} == {
        f"k{key}": list(range(key, 900, 9)) for key in range(9)
    }

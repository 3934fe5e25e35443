"""What the async stage costs: slots used against the ideal, and its own work per item.

``python -m benchmarks.async_stage [--json] [--seconds N]``

- **slots**: scripted work that takes 1 s. The ideal is ``items × 1 s / concurrency``; the share is
  ideal over measured, from the first item in to the last result out, start-up included.
- **overhead**: work that takes no time, so that nothing but the stage and Bytewax is measured. The
  baseline is the same flow with a stateful operator that emits at once.
- **polling**: thousands of keys pending with slow work and no input: the share of one core that
  the polls of the pending keys take.
- **latency**: one item at a time, work that takes no time: from handed in to out.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import KeyedStream, StatefulBatchLogic
from bytewax.testing import TestingSink, run_main

from benchmarks.figures import Figure, tell
from flows.async_stage import AsyncStage, Done, Failed, PendingWork, StageSpec, async_stage
from flows.runner import SystemClock

Item = int
Result = tuple[str, "Done[Item, Item] | Failed[Item]"]
Wire = Callable[[KeyedStream[Item]], KeyedStream[object]]


class _Partition(StatefulSourcePartition[tuple[str, Item], None]):
    def __init__(self, batches: Iterable[list[tuple[str, Item]]], more: Callable[[], bool]) -> None:
        self._batches = iter(batches)
        self._more = more

    def next_batch(self) -> list[tuple[str, Item]]:
        batch = next(self._batches, None)
        if batch is None:
            if self._more():
                return []
            raise StopIteration
        return batch

    def next_awake(self) -> datetime | None:
        return None

    def snapshot(self) -> None:
        return None


class Batches(FixedPartitionedSource[tuple[str, Item], None]):
    """Gives batches, then nothing for as long as ``more`` says."""

    def __init__(
        self,
        batches: Iterable[list[tuple[str, Item]]],
        more: Callable[[], bool] = lambda: False,
    ) -> None:
        self._batches = batches
        self._more = more

    def list_parts(self) -> list[str]:
        """Name the one partition."""
        return ["only"]

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> _Partition:
        """Open the one partition."""
        return _Partition(self._batches, self._more)


def stage_of(latency_s: float, **settings: int) -> AsyncStage[Item, Item]:
    """Make a stage whose work takes ``latency_s``."""

    async def work(items: Sequence[Item], previous_error: str | None) -> Sequence[Item]:
        if latency_s:
            await asyncio.sleep(latency_s)
        return items

    return AsyncStage(
        StageSpec("benchmark", work, SystemClock(), PendingWork(cap=10**9), **settings)  # type: ignore[arg-type]
    )


def run(
    source: Batches, wire: Wire, out: list[tuple[str, object]] | None = None
) -> tuple[float, float]:
    """Run source → ``wire`` → sink; give wall and CPU seconds."""
    flow = Dataflow("benchmark")
    results: list[tuple[str, object]] = [] if out is None else out
    op.output("out", wire(op.input("in", flow, source)), TestingSink(results))
    wall, cpu = time.perf_counter(), time.process_time()
    run_main(flow, epoch_interval=timedelta(seconds=2))
    return time.perf_counter() - wall, time.process_time() - cpu


def through(stage: AsyncStage[Item, Item]) -> Wire:
    """Wire a flow through ``stage``."""

    def wire(up: KeyedStream[Item]) -> KeyedStream[object]:
        down: KeyedStream[object] = async_stage("stage", up, stage)
        return down

    return wire


class _AtOnce(StatefulBatchLogic[Item, Item, None]):
    def on_batch(self, values: list[Item]) -> tuple[Iterable[Item], bool]:
        return values, StatefulBatchLogic.DISCARD

    def snapshot(self) -> None:
        return None


def batches_of(count: int, keys: int, size: int = 100) -> list[list[tuple[str, Item]]]:
    """Cut ``count`` items over ``keys`` keys into batches."""
    items = [(f"key-{number % keys}", number) for number in range(count)]
    return [items[at : at + size] for at in range(0, count, size)]


def slots(concurrency: int, seconds: int) -> Figure:
    """Measure the share of the ideal at ``concurrency`` calls of 1 s, for ``seconds`` rounds."""
    count = concurrency * seconds
    with stage_of(1.0, concurrency=concurrency) as stage:
        wall, cpu = run(Batches(batches_of(count, keys=concurrency * 2)), through(stage))
    return Figure(
        f"slots used, {concurrency} in flight, 1 s calls",
        seconds / wall,
        "of the ideal",
        1.0,
        "0.97" if concurrency == 60 else "",
        f"{count} items, {concurrency * 2} keys, {1e6 * cpu / count:.0f} µs CPU an item",
    )


def overhead(count: int, keys: int, **settings: int) -> Figure:
    """Measure items a second with work that takes no time, against a plain stateful operator."""
    batches = batches_of(count, keys)
    base, _ = run(Batches(batches), lambda up: op.stateful_batch("plain", up, lambda _: _AtOnce()))
    with stage_of(0.0, **settings) as stage:
        wall, cpu = run(Batches(batches), through(stage))
    how = ", ".join(f"{name} {value}" for name, value in settings.items()) or "per_key 1"
    return Figure(
        f"no-latency work, {keys} keys, {how}",
        count / wall,
        "items/s",
        count / base,
        "",
        f"{1e6 * cpu / count:.0f} µs CPU an item; beside: a plain stateful operator",
    )


def polling(keys: int, seconds: float, concurrency: int = 60) -> Figure:
    """Measure the CPU that ``keys`` pending keys take while their work is slow."""

    def cpu_share(pending_keys: int) -> float:
        began = time.monotonic()
        with stage_of(3600.0, concurrency=concurrency) as stage:
            stopping = _after(began, seconds)
            spec = stage.spec
            stage.spec = StageSpec(
                spec.name, spec.work, spec.clock, spec.pending, spec.concurrency,
                stopping=stopping, grace_s=0.0,
            )  # fmt: skip
            source = Batches(
                batches_of(pending_keys, max(pending_keys, 1), size=1000), lambda: not stopping()
            )
            wall, cpu = run(source, through(stage))
        return cpu / wall

    # The flow without pending keys spins over its source; that is not the stage's cost.
    idle, loaded = cpu_share(0), cpu_share(keys)
    return Figure(
        f"polls of {keys} pending keys, {concurrency} in flight",
        100 * (loaded - idle),
        "% of a core",
        note=f"{100 * loaded:.0f} % with them, {100 * idle:.0f} % with none (a source that spins)",
    )


def _after(began: float, seconds: float) -> Callable[[], bool]:
    return lambda: time.monotonic() - began > seconds


def latency(count: int) -> Figure:
    """Measure the time of one item alone through a stage whose work takes no time."""
    out: list[tuple[str, object]] = []
    times: list[float] = []
    handed_in = 0.0

    def one_at_a_time() -> Iterable[list[tuple[str, Item]]]:
        nonlocal handed_in
        for number in range(count):
            handed_in = time.perf_counter()
            yield [("key", number)]
            while len(out) <= number:
                yield []
            times.append(time.perf_counter() - handed_in)

    with stage_of(0.0) as stage:
        run(Batches(one_at_a_time()), through(stage), out)
    times.sort()
    return Figure(
        "one item alone, in to out",
        1000 * statistics.median(times),
        "ms (median)",
        note=f"p95 {1000 * times[int(0.95 * len(times))]:.0f} ms, {count} items",
    )


def main() -> None:
    """Measure everything and print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.async_stage", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=int, default=10, help="rounds of 1 s calls (10)")
    options = parser.parse_args()
    figures = [
        slots(60, options.seconds),
        slots(600, options.seconds),
        overhead(20_000, keys=100),
        overhead(20_000, keys=100, per_key=60),
        overhead(20_000, keys=100, batch_max=64),
        overhead(20_000, keys=5_000),
        polling(60, 4.0),
        polling(600, 4.0, concurrency=600),
        polling(5_000, 4.0),
        latency(100),
    ]
    tell("async stage", figures, as_json=options.json)


if __name__ == "__main__":
    main()

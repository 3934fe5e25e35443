"""The Bytewax side: a stage as a keyed stateful operator that never waits for a call."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Generic, TypeVar

import bytewax.operators as op
from bytewax.operators import KeyedStream, StatefulBatchLogic

from connectors.dataflow import keep_thread_state
from flows.async_stage.engine import Engine, StageSpec
from flows.async_stage.lane import Done, Failed, PendingItem
from flows.async_stage.pressure import StageStatus

__all__ = ["AsyncStage", "async_stage"]

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

_TICK_S = 0.02  # polls of all keys fall on this grid, so one operator activation serves many
_BUSY_TICK_S = 0.1  # the grid where much waits: a result is in no hurry there, and polls add up
_IDLE_POLL_S = 0.24  # for a key that waits for a retry or far back in line: 5,000 of them cost
# about a tenth of a core


class AsyncStage(Generic[I, O]):
    """A stage of one process: its loop, started at the first item and shared by all workers.

    Use it as a context manager around the run, or call :meth:`close` after it. It may be used
    for another run afterwards. Without that, a run that ended early leaves its loop idle until
    the process ends.
    """

    def __init__(self, spec: StageSpec[I, O]) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._engine: Engine[I, O] | None = None

    def __enter__(self) -> AsyncStage[I, O]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def engine(self) -> Engine[I, O]:
        """Give the running engine; starts one when there is none."""
        with self._lock:
            if self._engine is None or self._engine.ended:
                self._engine = Engine(self.spec)
            return self._engine

    def close(self) -> None:
        """Cancel every call and end the thread. Pending items live on in the last snapshot."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    def status(self) -> StageStatus:
        """Tell how the stage stands."""
        engine = self._engine
        return StageStatus() if engine is None else engine.status()


class _KeyLogic(
    StatefulBatchLogic[I, "Done[I, O] | Failed[I]", "tuple[PendingItem[I], ...]"], Generic[I, O]
):
    """One key of a stage, on the worker's side. Discarded as soon as nothing is pending."""

    def __init__(self, stage: AsyncStage[I, O], restored: tuple[PendingItem[I], ...]) -> None:
        keep_thread_state()
        self._engine = stage.engine()
        self._lane = self._engine.open(restored)
        # Bytewax does not say when a run ends; it only lets go of its logics.
        self._gone = weakref.finalize(self, self._engine.abandon, self._lane)
        self._gone.atexit = False

    def on_batch(self, values: list[I]) -> tuple[Iterable[Done[I, O] | Failed[I]], bool]:
        self._engine.accept(self._lane, values)
        return self._emit(self._engine.collect(self._lane))

    def on_notify(self) -> tuple[Iterable[Done[I, O] | Failed[I]], bool]:
        return self._emit(self._engine.collect(self._lane))

    def on_eof(self) -> tuple[Iterable[Done[I, O] | Failed[I]], bool]:
        return self._emit(self._engine.drain(self._lane))

    def notify_at(self) -> datetime | None:
        """Ask to be polled, by Bytewax's own wall clock."""
        wait = 0.0 if self._engine.soon(self._lane) else _IDLE_POLL_S
        now = datetime.now(timezone.utc).timestamp()
        grid = _BUSY_TICK_S if self._engine.busy else _TICK_S
        tick = math.floor((now + wait) / grid) + 1
        return datetime.fromtimestamp(tick * grid, timezone.utc)

    def snapshot(self) -> tuple[PendingItem[I], ...]:
        return self._engine.snapshot(self._lane)

    def _emit(
        self, results: list[Done[I, O] | Failed[I]]
    ) -> tuple[Iterable[Done[I, O] | Failed[I]], bool]:
        if len(self._lane):
            return results, StatefulBatchLogic.RETAIN
        self._gone()
        return results, StatefulBatchLogic.DISCARD


def async_stage(
    step_id: str, up: KeyedStream[I], stage: AsyncStage[I, O]
) -> KeyedStream[Done[I, O] | Failed[I]]:
    """Call ``stage``'s work for every item, beside the dataflow, and emit one result for each.

    Order: results of a key leave in the order of its items, retries included. Keys do not wait
    for each other.

    Crash: items that were not emitted by the last snapshot are worked on again, with the
    attempts they had used up by then. Nothing is lost; work may be repeated, so it must be
    idempotent, and what is emitted after the last snapshot is emitted again.

    End of input: waits for everything, retries included. When the stage's ``stopping`` is true,
    waits only for calls in flight, at most ``grace_s``; the rest stays in the snapshot.

    Raises :class:`~stores.errors.FlowHalted` (as the cause of Bytewax's own error) when more
    items fail than the failure limit allows, or when work itself raises it or a ``UserError``.
    """
    return op.stateful_batch(step_id, up, lambda restored: _KeyLogic(stage, restored or ()))

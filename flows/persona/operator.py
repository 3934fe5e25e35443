"""When persona jobs go to their stage, as a keyed step of a dataflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bytewax.operators import KeyedStream, StatefulBatchLogic, stateful_batch

from flows.persona.work import QueuedPersonaJob

__all__ = ["hold_jobs"]

Held = tuple[QueuedPersonaJob, ...]


class _HoldLogic(StatefulBatchLogic[QueuedPersonaJob, QueuedPersonaJob, Held]):
    def __init__(self, live: bool, stopping: Callable[[], bool], resume: Held | None) -> None:
        self._held = resume or ()
        self._live = live
        self._stopping = stopping

    def on_batch(self, values: list[QueuedPersonaJob]) -> tuple[Sequence[QueuedPersonaJob], bool]:
        if self._live:
            return self._let_go() + values, self.RETAIN
        self._held += tuple(values)
        return [], self.RETAIN

    def on_eof(self) -> tuple[Sequence[QueuedPersonaJob], bool]:
        if self._stopping():  # what is held stays in the snapshot
            return [], self.RETAIN
        return self._let_go(), self.RETAIN

    def _let_go(self) -> list[QueuedPersonaJob]:
        held, self._held = list(self._held), ()
        return held

    def snapshot(self) -> Held:
        return self._held


def hold_jobs(
    step_id: str,
    up: KeyedStream[QueuedPersonaJob],
    *,
    live: bool,
    stopping: Callable[[], bool],
) -> KeyedStream[QueuedPersonaJob]:
    """Pass a scope's jobs on: at once in a live flow, else when all scenes of the run are written.

    A persona is made of the scenes as they are. Beside scene runs that go on it would depend on
    which of them was faster, and a replay would ask what was never answered.

    :arg stopping: true when the flow is asked to stop: the end of input then lets nothing go.
    """
    return stateful_batch(step_id, up, lambda resume: _HoldLogic(live, stopping, resume))

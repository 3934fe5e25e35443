"""Joining scene jobs as a keyed step of a dataflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import bytewax.operators as op
from bytewax.operators import KeyedStream, StatefulBatchLogic

from flows.scenes.debounce import Pace, ScopeJobs, Waiting
from flows.scenes.job import JoinedJob, QueuedJob
from stores.protocols import Clock

__all__ = ["join_jobs"]


class _JoinLogic(StatefulBatchLogic[QueuedJob, JoinedJob, Waiting]):
    def __init__(
        self,
        pace: Pace,
        clock: Clock,
        live: bool,
        stopping: Callable[[], bool],
        resume: Waiting | None,
    ) -> None:
        self._jobs = ScopeJobs(pace, resume)
        self._clock = clock
        self._live = live
        self._stopping = stopping

    def on_batch(self, values: list[QueuedJob]) -> tuple[Sequence[JoinedJob], bool]:
        runs: list[JoinedJob] = []
        for value in values:
            runs += self._jobs.add(
                value, self._clock.now() if self._live else value.job.occurred_at
            )
        return runs, self.RETAIN

    def on_notify(self) -> tuple[Sequence[JoinedJob], bool]:
        return self._jobs.due(self._clock.now()), self.RETAIN

    def on_eof(self) -> tuple[Sequence[JoinedJob], bool]:
        if self._stopping():  # what waits stays in the snapshot
            return [], self.RETAIN
        due = self._jobs.due_at()
        return self._jobs.flush(due) if due is not None else [], self.RETAIN

    def notify_at(self) -> datetime | None:
        return self._jobs.due_at() if self._live else None

    def snapshot(self) -> Waiting:
        return self._jobs.snapshot()


def join_jobs(
    step_id: str,
    up: KeyedStream[QueuedJob],
    pace: Pace,
    clock: Clock,
    *,
    live: bool,
    stopping: Callable[[], bool],
) -> KeyedStream[JoinedJob]:
    """Join each scope's jobs into runs, in the order of the jobs; one that comes twice is dropped.

    A crash goes back to the last snapshot: jobs after it are joined again, maybe otherwise in a
    live flow. A run of jobs that are applied changes nothing.

    :arg clock: processing time, asked only when ``live``; otherwise the jobs' event time counts.
    :arg stopping: true when the flow is asked to stop: end of input then starts no run.
    """
    return op.stateful_batch(
        step_id, up, lambda resume: _JoinLogic(pace, clock, live, stopping, resume)
    )

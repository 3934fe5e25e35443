"""When a scope's scenes are brought up to date. Pure: time comes in.

Jobs of a scope wait and are joined into one run, which is due

- ``quiet`` after the last of them, and ``between`` after the run before, whichever is later;
- ``max_wait`` after the first of them, at the latest;
- for a repair (something was superseded or rejected) ``quiet`` after the last job, without
  minding the run before;
- at once when an atom was removed.

A person's own text for a scene is a run by itself, at once; the others go on waiting.

In a live flow time is when a job arrives. In a replay, or a run to the end of the log, it is the
jobs' own event time, so that the same jobs are joined whenever they are read: a run is due when
a later job of the scope shows that its time has come, or the input ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from flows.scenes.job import JoinedJob, QueuedJob

__all__ = ["Pace", "ScopeJobs", "Waiting"]

_REMEMBERED = 500


@dataclass(frozen=True, slots=True)
class Pace:
    """How often scenes are brought up to date.

    :arg quiet: after the last job. 10 s: the windows of a session's end come together.
    :arg between: between two runs. A run of a model costs as much as many extractions.
    :arg max_wait: of the first job, while others keep coming.
    """

    quiet: timedelta = timedelta(seconds=10)
    between: timedelta = timedelta(seconds=900)
    max_wait: timedelta = timedelta(seconds=3600)


@dataclass(frozen=True, slots=True)
class Waiting:
    """State of a scope; part of the recovery snapshot.

    :arg first: when the first waiting job came; ``last``: the last one.
    :arg ran: when the run before was due or begun.
    :arg seen: ids of the last jobs, to drop a job that comes twice.
    """

    jobs: tuple[QueuedJob, ...] = ()
    first: datetime | None = None
    last: datetime | None = None
    ran: datetime | None = None
    seen: tuple[str, ...] = field(default=())


class ScopeJobs:
    """Joins the jobs of one scope."""

    def __init__(self, pace: Pace, resume: Waiting | None = None) -> None:
        """Begin empty, or where a snapshot was."""
        self._pace = pace
        self._state = resume or Waiting()

    def add(self, job: QueuedJob, now: datetime) -> list[JoinedJob]:
        """Take a job at time ``now``; give the runs that this makes due, oldest first."""
        now = max(now, self._state.last or now)
        runs = self.due(now)
        known = job.redriven or job.job.job_id
        if known in self._state.seen:
            return runs
        state = self._state
        seen = (*state.seen, known)[-_REMEMBERED:]
        if job.job.edit is not None:
            self._state = replace(state, seen=seen)
            return [*runs, JoinedJob((job,))]
        self._state = replace(
            state, jobs=(*state.jobs, job), first=state.first or now, last=now, seen=seen
        )
        if job.job.removed_atom_ids:
            runs += self.flush(now)
        return runs

    def due_at(self) -> datetime | None:
        """Say when the next run is due; ``None`` when nothing waits."""
        state, pace = self._state, self._pace
        if not state.jobs or state.first is None or state.last is None:
            return None
        due = state.last + pace.quiet
        if state.ran is not None and not any(one.job.repair for one in state.jobs):
            due = max(due, state.ran + pace.between)
        return min(due, state.first + pace.max_wait)

    def due(self, now: datetime) -> list[JoinedJob]:
        """Give the run that is due by ``now``, if one is."""
        due = self.due_at()
        return self.flush(due) if due is not None and due <= now else []

    def flush(self, at: datetime) -> list[JoinedJob]:
        """Give everything that waits as one run, at time ``at``."""
        jobs = self._state.jobs
        if not jobs:
            return []
        self._state = replace(self._state, jobs=(), first=None, last=None, ran=at)
        return [JoinedJob(jobs)]

    def snapshot(self) -> Waiting:
        """Copy the state."""
        return self._state

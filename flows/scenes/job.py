"""Scene jobs on their way: one as it came, and several of a scope joined into one run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from stores.ids import content_id
from stores.records import LogRecord, Position, ProfileEdit, SceneJob

__all__ = ["JoinedJob", "QueuedJob", "place_in_process"]

_PLACE_DIGITS = 12


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job and the record it came as, whose bytes a dead letter carries.

    :arg redriven: the dead letter it was, as ``l2.dlq/0/17``; empty for a new one.
    """

    job: SceneJob
    record: LogRecord
    redriven: str = ""


@dataclass(frozen=True, slots=True)
class JoinedJob:
    """What one scene run is about: at least one job of one scope, in order of arrival."""

    jobs: tuple[QueuedJob, ...]

    @property
    def scope(self) -> str:
        """Give the scope."""
        return self.jobs[0].job.scope

    @property
    def job_id(self) -> str:
        """Identify the run by what it is made of: the same jobs give the same id."""
        return content_id("scene-run", *sorted(self.job_ids), *self.redriven)

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Give the ids of its jobs, each once."""
        return tuple(dict.fromkeys(one.job.job_id for one in self.jobs))

    @property
    def at(self) -> datetime:
        """Give the event time of the newest job: it dates what the run writes."""
        return max(one.job.occurred_at for one in self.jobs)

    @property
    def atom_ids(self) -> tuple[str, ...]:
        """Give the atoms that are new or changed, each once, in order of arrival."""
        return tuple(dict.fromkeys(atom for one in self.jobs for atom in one.job.atom_ids))

    @property
    def removed(self) -> frozenset[str]:
        """Give the atoms that are gone."""
        return frozenset(atom for one in self.jobs for atom in one.job.removed_atom_ids)

    @property
    def edit(self) -> ProfileEdit | None:
        """Give a person's text for one scene; such a job is joined with no other."""
        return self.jobs[0].job.edit

    @property
    def redriven(self) -> tuple[str, ...]:
        """Give the dead letters among its jobs."""
        return tuple(dict.fromkeys(one.redriven for one in self.jobs if one.redriven))

    def without(self, applied: Sequence[str]) -> JoinedJob | None:
        """Leave out jobs that are applied already; ``None`` when nothing is left."""
        left = tuple(one for one in self.jobs if one.job.job_id not in applied)
        return JoinedJob(left) if left else None


def place_in_process(topic: str, job_id: str) -> Position:
    """Give a place to a job that was passed on inside a process, so that it can be told apart.

    Its record is in the topic as well, at a place that is not known yet.

    >>> place_in_process("sediment.l2.jobs", "00000000000f")
    Position(topic='sediment.l2.jobs', partition=0, offset=15)
    """
    return Position(topic, 0, int(content_or_hex(job_id), 16))


def content_or_hex(job_id: str) -> str:
    """Give hex digits of an id; one that is not made of them is hashed.

    >>> content_or_hex("00ff00ff00ff77"), len(content_or_hex("by hand"))
    ('00ff00ff00ff', 12)
    """
    head = job_id[:_PLACE_DIGITS]
    if len(head) == _PLACE_DIGITS and not set(head) - set("0123456789abcdef"):
        return head
    return content_id("job", job_id)[:_PLACE_DIGITS]

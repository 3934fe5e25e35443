"""What a generation has read and not finished, measured by what the current one has.

A flow notes how far it has read when its snapshot is taken; windows on their way, retries and
waiting jobs are then in the snapshot. They are not lost, but what is promoted meanwhile would
not know yet what the one before it knew. From the topics it can be told:

- an event that ended in the current generation and not in this one is in a window that is still
  open, on its way, or being retried;
- a scene or persona job that was done there and not here waits, or is on its way; so is one that
  is older than jobs may wait.

What the current generation has not finished either is no reason to wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import ValidationError

from connectors.log import EndAt, LogReader, Place, StartAt
from connectors.settings import Settings
from flows.outputs import record_id
from flows.replay.plan import Span
from flows.scenes.job import place_in_process
from stores.errors import SettingsError
from stores.records import LogRecord, Outcome, PersonaJob, SceneJob

__all__ = ["Pending", "PendingJobs", "Progressed", "pending_of"]

_STAGES: dict[str, tuple[str, type[SceneJob] | type[PersonaJob]]] = {
    "l2.jobs": ("scenes", SceneJob),
    "l3.jobs": ("persona", PersonaJob),
}
_SHOWN_RANGES = 5


@dataclass(frozen=True, slots=True)
class PendingJobs:
    """Jobs of one stage that have not ended.

    :arg behind: those that the current generation has done, or that are overdue.
    :arg waiting: those that wait for their turn, as new ones always do.
    """

    stage: str
    behind: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Pending:
    """What is not finished.

    :arg places: offsets of the events topic by partition, as ranges, ``end`` inclusive.
    """

    events: int
    places: tuple[tuple[int, int, int], ...]
    jobs: tuple[PendingJobs, ...]

    def behind(self) -> list[str]:
        """Say in words what the current generation has finished and this one has not."""
        said = []
        if self.events:
            ranges = [
                f"partition {at} offset {first}" + (f" to {last}" if last != first else "")
                for at, first, last in self.places[:_SHOWN_RANGES]
            ]
            more = len(self.places) - len(ranges)
            ranges += [f"{more} more ranges"] if more > 0 else []
            said.append(
                f"{self.events} events are in windows that are open, on their way or being "
                f"retried ({', '.join(ranges)})"
            )
        said += [f"{one.behind} {one.stage} jobs have not ended" for one in self.jobs if one.behind]
        return said

    def waiting(self) -> list[str]:
        """Say in words what waits for its turn, which is no reason to wait for it."""
        return [
            f"{one.waiting} {one.stage} jobs wait their turn" for one in self.jobs if one.waiting
        ]


@dataclass(slots=True)
class _Jobs:
    """Jobs of one stage: outcome ids that may be theirs by job id, with the log's time."""

    asked: dict[str, tuple[tuple[str, str], int]] = field(default_factory=dict)

    def open(self, ended: set[str]) -> dict[str, int]:
        return {
            job: at for job, (ids, at) in self.asked.items() if not any(one in ended for one in ids)
        }

    def done(self, job: str, ended: set[str]) -> bool:
        known = self.asked.get(job)
        return known is not None and any(one in ended for one in known[0])


class Progressed:
    """Which events and jobs of a generation have ended, as its topics tell; read on with `refresh`.

    One byte for each event of the topic, about 200 bytes for each job.

    :arg settings: those of the generation.
    """

    def __init__(self, reader: LogReader, settings: Settings) -> None:
        self._reader = reader
        self._settings = settings
        self._events = settings.topic("l0.events")
        self._read_to: dict[str, dict[int, int]] = {}
        self.events: dict[int, bytearray] = {}
        self.jobs = {name: _Jobs() for name in _STAGES}
        self.ended: set[str] = set()

    def refresh(self) -> None:
        """Read what was written since. Raises as the log does."""
        for name, (stage, model) in _STAGES.items():
            topic = self._settings.topic(name)
            for record in self._new(topic):
                try:
                    job = model.model_validate_json(record.value or b"")
                except ValidationError:
                    continue  # it ends as a dead letter
                ids = (
                    record_id(stage, record.position),
                    record_id(stage, place_in_process(topic, job.job_id)),
                )
                self.jobs[name].asked.setdefault(job.job_id, (ids, record.timestamp_ms))
        for record in self._new(self._settings.topic("outcomes")):
            try:
                outcome = Outcome.model_validate_json(record.value or b"")
            except ValidationError:
                continue
            if outcome.kind in ("scene_job", "persona_job"):
                self.ended.add(outcome.outcome_id)
            elif outcome.topic == self._events and outcome.stage != "index":
                for offset in outcome.offsets:
                    self._mark(outcome.partition, offset)

    def _mark(self, partition: int, offset: int) -> None:
        ended = self.events.setdefault(partition, bytearray())
        if offset >= len(ended):
            ended.extend(bytes(offset + 1 - len(ended)))
        ended[offset] = 1

    def _new(self, topic: str) -> Iterator[LogRecord]:
        try:
            ends = self._reader.end_offsets(topic)
        except SettingsError:  # nothing was ever written to it
            return
        before = self._read_to.get(topic, {})
        if ends != before and any(ends.values()):
            yield from self._reader.read(
                topic,
                StartAt(partitions={at: Place("offset", before.get(at, 0)) for at in ends}),
                EndAt(partitions={at: Place("offset", end) for at, end in ends.items()}),
            )
        self._read_to[topic] = ends


def pending_of(
    this: Progressed,
    current: Progressed,
    span: Span | None,
    now: datetime,
    longest_wait: timedelta,
) -> Pending:
    """Compare two generations as they were last read.

    :arg span: of the events topic that this one is about; ``None`` where it holds the events of
        some scopes only, which cannot be told from outcomes.
    :arg now: the log's time; ``longest_wait``: of a job for its turn.
    """
    places = list(_ranges(this.events, current.events, span)) if span else []
    overdue = int((now - longest_wait).timestamp() * 1000)
    jobs = []
    for name, (stage, _) in _STAGES.items():
        open_here = this.jobs[name].open(this.ended)
        behind = [
            job
            for job, at in open_here.items()
            if at < overdue or current.jobs[name].done(job, current.ended)
        ]
        jobs.append(PendingJobs(stage, len(behind), len(open_here) - len(behind)))
    events = sum(last - first + 1 for _, first, last in places)
    return Pending(events, tuple(places), tuple(jobs))


def _ranges(
    this: dict[int, bytearray],
    current: dict[int, bytearray],
    span: Span,
) -> Iterator[tuple[int, int, int]]:
    for partition, ended in sorted(current.items()):
        here = this.get(partition, bytearray())
        first, end = span.starts.get(partition, 0), span.ends.get(partition, 0)
        run: list[int] = []
        for offset in range(first, min(end, len(ended))):
            missing = ended[offset] and not (offset < len(here) and here[offset])
            if missing:
                run.append(offset)
            elif run:
                yield partition, run[0], run[-1]
                run = []
        if run:
            yield partition, run[0], run[-1]

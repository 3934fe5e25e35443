"""What one generation has finished and the other has not, told from topics alone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from connectors.filelog import FileLog
from connectors.log import EndAt, StartAt
from connectors.settings import load_settings
from flows.opening import in_generation
from flows.outputs import record_id
from flows.replay.pending import Pending, Progressed, pending_of
from flows.replay.plan import Span
from flows.scenes.job import place_in_process
from stores.records import Outcome, OutcomeResult, OutRecord, Position, SceneJob
from tests.rig.events import TOPIC, at
from tests.rig.still import StillClock

SPAN = Span({0: 0}, {0: 10})
LONG = timedelta(hours=1)


class Two:
    """A log with two generations, ``main`` and ``v2``."""

    def __init__(self, folder: Path) -> None:
        self.log = FileLog(folder / "log", StillClock())
        settings = load_settings(data_dir=folder)
        both = [in_generation(settings, name) for name in ("main", "v2")]
        for one in both:  # so that every topic is there
            for topic in ("outcomes", "l2.jobs", "l3.jobs"):
                self.log.create_topic(one.topic(topic), 1)
        self.current, self.this = (Progressed(self.log, one) for one in both)

    def end(
        self, where: str, *offsets: int, stage: str = "reconcile", result: OutcomeResult = "empty"
    ) -> None:
        outcome = Outcome(
            outcome_id=f"w{offsets}", kind="window", stage=stage, result=result,
            topic=TOPIC, partition=0, offsets=offsets, pipeline="p",
        )  # fmt: skip
        self.append(f"{where}.outcomes", outcome.model_dump_json())

    def job(self, where: str, name: str, *, done: str = "") -> None:
        """Ask for a scene job; it is done where it was passed on, or where it was read."""
        topic = f"{where}.l2.jobs"
        made = SceneJob(job_id=name, scope="s", window_id="w", atom_ids=(), occurred_at=at(0))
        offset = self.append(topic, made.model_dump_json())
        if done:
            place = (
                place_in_process(topic, name) if done == "passed" else Position(topic, 0, offset)
            )
            outcome = Outcome(
                outcome_id=record_id("scenes", place), kind="scene_job", stage="scenes",
                result="applied", topic=topic, partition=0, offsets=(place.offset,), pipeline="p",
            )  # fmt: skip
            self.append(f"{where}.outcomes", outcome.model_dump_json())

    def append(self, topic: str, value: str) -> int:
        (position,) = self.log.append([OutRecord(topic, b"k", value.encode())])
        return position.offset

    def pending(self, *, span: Span | None = SPAN, later: float = 0) -> Pending:
        self.current.refresh()
        self.this.refresh()
        written = self.log.read("sediment.v2.l2.jobs", StartAt.beginning(), EndAt.latest())
        ms = max((one.timestamp_ms for one in written), default=0)
        now = datetime.fromtimestamp(ms / 1000, timezone.utc) + timedelta(seconds=later)
        return pending_of(self.this, self.current, span, now, LONG)


def test_events_that_ended_there_and_not_here_are_named_by_range(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.end("sediment", 0, 1, 2, 3)
    two.end("sediment", 7)
    two.end("sediment.v2", 0, 3)
    found = two.pending()
    assert (found.events, found.places) == (3, ((0, 1, 2), (0, 7, 7)))
    assert "3 events are in windows" in found.behind()[0]
    assert "partition 0 offset 1 to 2, partition 0 offset 7" in found.behind()[0]
    two.end("sediment.v2", 1, 2, result="dead_lettered")  # given up is an end as well
    two.end("sediment.v2", 7)
    assert two.pending().behind() == []


def test_what_is_open_in_both_ends_beyond_or_belongs_to_the_index_is_nothing(
    tmp_path: Path,
) -> None:
    two = Two(tmp_path)
    two.end("sediment", 12)  # came after the check began
    two.end("sediment", 5, stage="index", result="dead_lettered")
    two.end("sediment.v2", 4)
    assert two.pending() == Pending(0, (), two.pending().jobs)
    two.end("sediment", 6)
    assert two.pending(span=Span({0: 7}, {0: 10})).events == 0, "it does not hold that part"
    assert two.pending(span=None).events == 0, "nor can it be told for some scopes only"


def test_jobs_that_were_done_there_are_waited_for(tmp_path: Path) -> None:
    two = Two(tmp_path)
    for name, done in (("a", "passed"), ("b", "read"), ("c", "")):
        two.job("sediment", name, done=done)
    for name, done in (("a", "read"), ("b", ""), ("c", ""), ("d", "")):
        two.job("sediment.v2", name, done=done)
    found = two.pending()
    assert (found.jobs[0].stage, found.jobs[0].behind, found.jobs[0].waiting) == ("scenes", 1, 2)
    assert found.behind() == ["1 scenes jobs have not ended"]
    assert found.waiting() == ["2 scenes jobs wait their turn"]


def test_a_job_that_is_older_than_jobs_may_wait_is_waited_for(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.job("sediment.v2", "new")
    assert two.pending(later=3599).behind() == []
    assert two.pending(later=3601).behind() == ["1 scenes jobs have not ended"]

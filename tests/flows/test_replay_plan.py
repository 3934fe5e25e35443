"""Which part of history, of whom, how fast: a replay's plan, and the source that keeps to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import orjson
import pytest
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition

from connectors.log import Place
from flows.replay.answers import AnswerTally
from flows.replay.plan import Pace, Reached, ReplayPlan, Span, in_scope, place_of, span_of
from flows.replay.source import ReplaySource
from stores.errors import UserError
from stores.records import LogRecord
from tests.rig.events import body, record

FIELDS: Any = ("tenant", "agent", "user")


class Turned:
    """Seconds that a test turns."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


# --- places ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "yesterday", "-3", "2026-03-01", "2026-03-01T00:00:00"])
def test_what_is_no_place_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(UserError, match=r"--from: .* beginning, end, an offset, a time as"):
        place_of("--from", text)


def test_times_may_have_any_offset() -> None:
    assert place_of("--to", "2026-03-01T02:00:00+02:00") == place_of("--to", "2026-03-01T00:00:00Z")


class Topic:
    """Offsets of two partitions, by place."""

    def offsets(self, topic: str, place: Place) -> dict[int, int]:
        return {
            "beginning": {0: 3, 1: 0},
            "end": {0: 10, 1: 4},
            "offset": {0: max(3, min(10, place.value)), 1: min(4, place.value)},
        }[place.kind]


def test_a_span_counts_and_bounds_every_partition() -> None:
    reader: Any = Topic()
    span = span_of(reader, "t", Place("beginning"), Place("offset", 6))
    assert span.records == 3 + 4
    assert span.start_at().of(0) == Place("offset", 3)
    assert span.end_at().of(1) == Place("offset", 4)


def test_a_span_that_is_turned_round_is_empty_and_ends_at_once() -> None:
    span = Span({0: 7}, {0: 5})
    assert span.records == 0
    assert span.end_at().of(0) == span.start_at().of(0)


def test_how_far_a_span_is_read() -> None:
    span, reached = Span({0: 10, 1: 0}, {0: 20, 1: 5}), Reached()
    assert reached.within(span) == 0
    reached.offsets.update({0: 14, 1: 99, 7: 3})
    assert reached.within(span) == 4 + 5


# --- whose -----------------------------------------------------------------------------------


def of_user(user: str, offset: int = 0) -> LogRecord:
    return record(orjson.dumps(body(f"e{offset}", user_id=user)), offset)


def test_records_of_the_ids_asked_for_whatever_their_key() -> None:
    wanted = in_scope(FIELDS, {"user": "ana"})
    assert wanted is not None
    assert wanted(of_user("ana"))
    assert not wanted(of_user("bob"))
    assert not wanted(record(b"not an event"))
    assert in_scope(FIELDS, {}) is None


def test_an_id_that_the_scope_does_not_have_is_an_error() -> None:
    with pytest.raises(UserError, match="--team: the scope is made of tenant, agent, user"):
        in_scope(FIELDS, {"team": "x"})


# --- how fast --------------------------------------------------------------------------------


def test_a_pace_is_kept_over_all_partitions() -> None:
    seconds = Turned()
    pace = Pace(10, seconds)
    assert pace.wait_s() == 0
    pace.spend(5)
    assert pace.wait_s() == pytest.approx(0.5)
    seconds.at += 0.25
    pace.spend(5)
    assert pace.wait_s() == pytest.approx(0.75)
    seconds.at += 100
    assert pace.wait_s() == 0
    pace.spend(10)  # what was not used is not saved up
    assert pace.wait_s() == pytest.approx(1.0)


def test_processes_that_share_a_moment_keep_to_one_pace() -> None:
    seconds, free_at = Turned(), multiprocessing.get_context("spawn").Value("d", 0.0)
    one, other = Pace(10, seconds, free_at), Pace(10, seconds, free_at)
    one.spend(5)
    assert other.wait_s() == pytest.approx(0.5)
    other.spend(5)
    assert one.wait_s() == pytest.approx(1.0)


def test_no_pace_waits_for_nothing() -> None:
    pace = Pace(0, Turned())
    pace.spend(10**6)
    assert (pace.wait_s(), pace.batch_size) == (0.0, 2000)
    assert [Pace(rate, Turned()).batch_size for rate in (1, 100, 10**6)] == [1, 5, 2000]


# --- the source ------------------------------------------------------------------------------


class Inner(FixedPartitionedSource[LogRecord, int]):
    """Gives two batches, then nothing for a while, then ends."""

    def __init__(self, *batches: list[LogRecord]) -> None:
        self.batches = list(batches)
        self.closed = False

    def list_parts(self) -> list[str]:
        return ["t/3"]

    def build_part(
        self, step_id: str, for_part: str, resume_state: int | None
    ) -> StatefulSourcePartition[LogRecord, int]:
        inner = self

        class Part(StatefulSourcePartition[LogRecord, int]):
            def next_batch(self) -> list[LogRecord]:
                if not inner.batches:
                    raise StopIteration
                return inner.batches.pop(0)

            def next_awake(self) -> datetime | None:
                return datetime.max.replace(tzinfo=timezone.utc)

            def snapshot(self) -> int:
                return resume_state or 17

            def close(self) -> None:
                inner.closed = True

        return Part()


def plan(pace: Pace | None = None, **fields: Any) -> ReplayPlan:
    base = ReplayPlan(
        span=Span({}, {}),
        wanted=None,
        pace=pace or Pace(0, Turned()),
        answers="missing",
        tally=AnswerTally(),
        reached=Reached(),
    )
    return replace(base, **fields)


def opened(
    inner: Inner, of: ReplayPlan, stopping: Callable[[], bool] = lambda: False
) -> StatefulSourcePartition[LogRecord, int]:
    source = ReplaySource(inner, of, stopping)
    assert source.list_parts() == ["t/3"]
    return source.build_part("s", "t/3", None)


def test_only_what_is_wanted_is_handed_on_and_all_of_it_counts_as_read() -> None:
    inner = Inner([of_user("ana", 0), of_user("bob", 1)], [of_user("bob", 2)], [])
    of = plan(wanted=in_scope(FIELDS, {"user": "ana"}))
    part = opened(inner, of)
    assert [one.position.offset for one in part.next_batch()] == [0]
    assert part.next_batch() == []
    assert of.reached.offsets == {3: 3}
    assert part.next_batch() == []
    with pytest.raises(StopIteration):
        part.next_batch()
    assert part.snapshot() == 17
    part.close()
    assert inner.closed


def test_reading_waits_while_the_pace_says_so_but_not_when_stopping() -> None:
    seconds, stopped = Turned(), False
    of = plan(pace=Pace(1, seconds))
    inner = Inner([of_user("ana", 0)], [of_user("ana", 1)])
    part = opened(inner, of, lambda: stopped)
    assert len(list(part.next_batch())) == 1
    assert part.next_batch() == []
    assert len(inner.batches) == 1, "it was read although the pace was used up"
    awake = part.next_awake()
    assert awake is not None and awake.year < 3000, "it would sleep for longer than it must"
    stopped = True
    assert len(list(part.next_batch())) == 1
    stopped = False
    seconds.at += 10
    with pytest.raises(StopIteration):
        part.next_batch()

"""The queue of one key: the logic alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from flows.async_stage import Done, Failures, PendingItem
from flows.async_stage.lane import Call, Lane
from tests.flows.stage_rig import START

LATER = START + timedelta(seconds=5)
ONCE = Failures(calls=1, transient=1, first_at=START, last_at=START)


def lane_of(count: int, *, per_key: int = 1, batch_max: int = 1) -> Lane[int, str]:
    lane: Lane[int, str] = Lane((), per_key=per_key, batch_max=batch_max)
    lane.accept(range(count), START)
    return lane


def begin(lane: Lane[int, str]) -> list[Call[int, str]]:
    calls = []
    while (call := lane.next_call(START)) is not None:
        calls.append(call)
    return calls


def end(lane: Lane[int, str], call: Call[int, str]) -> None:
    lane.succeed(call, [str(item) for item in call.items])


def test_one_at_a_time_waits_for_the_item_in_front() -> None:
    lane = lane_of(2)
    (first,) = begin(lane)
    assert first.items == [0]
    end(lane, first)
    (second,) = begin(lane)
    assert second.items == [1]


def test_waiting_for_a_retry_keeps_the_seat() -> None:
    lane = lane_of(2)
    (first,) = begin(lane)
    lane.postpone(first, [ONCE], LATER)
    assert begin(lane) == []
    assert lane.next_due(START) == LATER
    again = lane.next_call(LATER)
    assert again is first


def test_results_leave_in_order_whatever_order_they_end_in() -> None:
    lane = lane_of(3, per_key=3)
    calls = begin(lane)
    assert [call.items for call in calls] == [[0], [1], [2]]
    end(lane, calls[2])
    end(lane, calls[1])
    assert lane.take() == []
    assert not lane.settled
    end(lane, calls[0])
    assert [result.item for result in lane.take()] == [0, 1, 2]
    assert len(lane) == 0


def test_queued_items_go_into_one_call() -> None:
    lane = lane_of(5, batch_max=3)
    (call,) = begin(lane)
    assert call.items == [0, 1, 2]
    end(lane, call)
    assert [result.item for result in lane.take()] == [0, 1, 2]
    assert [call.items for call in begin(lane)] == [[3, 4]]


def test_split_halves_keep_place_and_seats() -> None:
    lane = lane_of(6, per_key=2, batch_max=2)
    first, second = begin(lane)
    lane.split(first, [ONCE, ONCE])
    (left,) = begin(lane)
    assert left.items == [0], "two calls of two may run, and one is running"
    end(lane, left)
    (right,) = begin(lane)
    assert right.items == [1]
    end(lane, right)
    end(lane, second)
    assert [result.item for result in lane.take()] == [0, 1, 2, 3]


def test_split_does_not_hold_a_malformed_answer_against_each_half() -> None:
    lane = lane_of(2, batch_max=2)
    (call,) = begin(lane)
    lane.split(call, [replace(ONCE, malformed=3, shown="bad")] * 2)
    (left,) = begin(lane)
    assert left.shown is None
    assert left.failures[0] == ONCE


def test_attempts_count_every_call_of_the_item() -> None:
    lane = lane_of(1)
    (call,) = begin(lane)
    lane.postpone(call, [ONCE], START)
    (call,) = begin(lane)
    end(lane, call)
    assert lane.take() == [Done(0, "0", attempts=2)]


def test_snapshot_is_a_copy_and_restores_order_attempts_and_due_time() -> None:
    lane = lane_of(3)
    (call,) = begin(lane)
    lane.postpone(call, [ONCE], LATER)
    snapshot = lane.snapshot()
    end(lane, lane.next_call(LATER) or call)
    lane.take()
    assert snapshot == (
        PendingItem(0, START, ONCE, LATER),
        PendingItem(1, START),
        PendingItem(2, START),
    )
    restored: Lane[int, str] = Lane(snapshot, per_key=1, batch_max=1)
    assert begin(restored) == []
    assert restored.next_due(START) == LATER
    again = restored.next_call(LATER)
    assert again is not None
    end(restored, again)
    assert restored.take() == [Done(0, "0", attempts=2)]


def test_result_that_did_not_leave_is_worked_on_again_after_a_restart() -> None:
    lane = lane_of(2, per_key=2)
    _, second = begin(lane)
    end(lane, second)
    restored: Lane[int, str] = Lane(lane.snapshot(), per_key=2, batch_max=1)
    assert [call.items for call in begin(restored)] == [[0], [1]]


def test_restored_items_on_unequal_footing_are_called_apart() -> None:
    restored: Lane[int, str] = Lane(
        [PendingItem(0, START, ONCE), PendingItem(1, START, ONCE), PendingItem(2, START)],
        per_key=3,
        batch_max=3,
    )
    assert [call.items for call in begin(restored)] == [[0, 1], [2]]

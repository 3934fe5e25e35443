"""When a failed call is tried again: the policy alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flows.async_stage import Failures, RetryPolicy
from flows.async_stage.retry import describe, reason_of
from stores.errors import (
    LimitReached,
    LockConflict,
    LogAway,
    MalformedAnswer,
    OversizedInput,
    RateLimited,
    RequestRefused,
    RequestTimedOut,
    ServiceUnavailable,
)
from tests.flows.stage_rig import START

POLICY = RetryPolicy()


def waits(error: Exception, spread: float = 0.0) -> list[float]:
    """Give the waits until the policy gives up on an item that always fails like this."""
    failures = Failures()
    found: list[float] = []
    while True:
        failures, due = POLICY.decide(error, failures, START, spread)
        if due is None:
            return found
        found.append((due - START).total_seconds())


@pytest.mark.parametrize(
    "error",
    [RequestTimedOut("late"), RateLimited("429"), ServiceUnavailable("llm", "refused")],
    ids=lambda error: type(error).__name__,
)
def test_transient_errors_wait_longer_each_time_then_fail(error: Exception) -> None:
    assert waits(error) == [5.0, 15.0, 45.0]


def test_jitter_only_ever_adds() -> None:
    assert waits(RateLimited("429"), spread=0.5) == [5.625, 16.875, 50.625]


def test_retry_after_is_obeyed_when_it_is_longer() -> None:
    assert waits(RateLimited("429", retry_after=20.0)) == [20.0, 20.0, 45.0]


def test_retry_after_is_never_undercut_by_jitter() -> None:
    assert min(waits(RateLimited("429", retry_after=60.0), spread=0.99)) >= 60.0


def test_waiting_for_our_own_limits_uses_no_attempt_however_often() -> None:
    failures = Failures(calls=2, transient=2)
    for _ in range(5000):
        after, due = POLICY.decide(LimitReached("full", retry_after=60), failures, START, 0.0)
        assert due == START + timedelta(seconds=60)
        assert after == failures
    assert POLICY.decide(LimitReached("full"), failures, START, 0.0)[1] == START + timedelta(
        seconds=1
    )


def test_lock_conflict_waits_five_seconds_and_uses_no_attempt() -> None:
    failures = Failures(calls=2, transient=2)
    after, due = POLICY.decide(LockConflict("held"), failures, START, 0.9)
    assert due == START + timedelta(seconds=5)
    assert (after.calls, after.transient, after.conflicts) == (2, 2, 1)


def test_lock_that_is_never_given_back_shows_in_the_end() -> None:
    assert len(waits(LockConflict("held"))) == POLICY.max_conflicts


def test_malformed_answer_is_asked_again_at_once_with_the_error_shown() -> None:
    after, due = POLICY.decide(MalformedAnswer("no `text`"), Failures(), START, 0.9)
    assert due == START
    assert after.shown == "no `text`"
    assert waits(MalformedAnswer("no `text`")) == [0.0, 0.0]


def test_transient_failure_in_between_keeps_the_shown_error() -> None:
    after, _ = POLICY.decide(MalformedAnswer("no `text`"), Failures(), START, 0.0)
    after, _ = POLICY.decide(RateLimited("429"), after, START, 0.0)
    assert after.shown == "no `text`"
    assert (after.calls, after.malformed, after.transient) == (2, 1, 1)


@pytest.mark.parametrize(
    "error", [RequestRefused("400", status=400), OversizedInput("2 MiB"), KeyError("secret")]
)
def test_anything_else_is_given_up_at_once(error: Exception) -> None:
    assert waits(error) == []


def test_first_and_last_failure_times_are_kept() -> None:
    later = START + timedelta(seconds=9)
    after, _ = POLICY.decide(RateLimited("429"), Failures(), START, 0.0)
    after, _ = POLICY.decide(RateLimited("429"), after, later, 0.0)
    assert (after.first_at, after.last_at) == (START, later)


def test_a_bug_is_named_without_its_text() -> None:
    try:
        raise KeyError("what Ana said")
    except KeyError as error:
        assert reason_of(error) == "internal_error"
        assert "Ana" not in describe(error)
        assert describe(error).startswith("KeyError at ")


def test_a_log_that_is_away_uses_up_no_attempt() -> None:
    """To give an item up, the log would have to answer."""
    failures = Failures(calls=2, transient=2)
    for _ in range(10):
        failures, due = POLICY.decide(LogAway("kafka", "away"), failures, START, 0.0)
        assert due is not None
        assert (due - START).total_seconds() == 5.0
    assert (failures.calls, failures.transient) == (2, 2)

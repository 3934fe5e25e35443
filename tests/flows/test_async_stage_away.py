"""What a stage says of a service that does not answer: once, and once that it does again."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from flows.async_stage.away import Away
from stores.errors import LockConflict, LogAway, RateLimited, ServiceUnavailable
from tests.flows.stage_rig import START, ScriptedWork, run, stage_of

REDIS = ServiceUnavailable("redis", "ConnectionError")
HELD = LockConflict("another worker holds the lock of scope acme/ana")
SOON = START + timedelta(seconds=5)


def test_what_a_stage_waits_for_is_said_once_and_that_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # One item: of several, one may be through while another still fails, which is told again
    # when more than a minute of the stage's clock lies between.
    work = ScriptedWork(script={("ana", 0): [REDIS, REDIS, REDIS]})
    with caplog.at_level(logging.WARNING, logger="flows.async_stage"):
        run([("ana", 0)], stage_of(work))
    assert len(work.calls) == 4
    waits, goes_on = [record.getMessage() for record in caplog.records]
    assert waits.startswith("stage under_test waits: redis: ConnectionError. It asks again in 5 s")
    assert goes_on == "stage under_test goes on: redis answers again"


def test_one_that_fails_now_and_then_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    away = Away("extract")
    for seconds in range(50):
        now = START + timedelta(seconds=seconds)
        away.failed(REDIS, now + timedelta(seconds=5), now)
        away.succeeded()
    assert len(caplog.records) == 2
    later = START + timedelta(seconds=61)
    away.failed(REDIS, later + timedelta(seconds=5), later)
    assert len(caplog.records) == 3


def test_a_lock_that_stays_taken_is_told_without_its_scope(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run([("ana", 0)], stage_of(ScriptedWork(script={("ana", 0): [HELD]})))
    assert not caplog.records, "held for a moment, as it often is"
    run([("ana", 0)], stage_of(ScriptedWork(script={("ana", 0): [HELD] * 4})))
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "stage under_test waits: another process holds the lock of a scope. It asks again in 5 s. "
        "The lock of a process that was killed ends by itself within a minute"
    )


def test_locks_of_many_scopes_are_told_once_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    away = Away("scenes")
    for seconds in (0, 1, 59, 60):
        now = START + timedelta(seconds=seconds)
        away.failed(HELD, now + timedelta(seconds=5), now, 2)
        away.succeeded()  # another scope's, which says nothing of the lock
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    "error", [RateLimited("429"), LogAway("kafka", "away"), ValueError("a bug")], ids=repr
)
def test_what_is_said_elsewhere_or_waits_for_nothing_is_not_said(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    away = Away("extract")
    away.failed(error, SOON, START)
    away.failed(REDIS, None, START)  # given up: a dead letter says it
    assert not caplog.records

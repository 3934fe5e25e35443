"""What a stage says of a service that does not answer: once, and once that it does again."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from flows.async_stage.away import Away
from stores.errors import LogAway, RateLimited, ServiceUnavailable
from tests.flows.stage_rig import START, ScriptedWork, run, stage_of

REDIS = ServiceUnavailable("redis", "ConnectionError")
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

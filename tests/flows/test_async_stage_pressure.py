"""How much may wait, how much may fail and how long the log may be away: the counts alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flows.async_stage import FailureLimit, PendingWork
from flows.async_stage.pressure import FailureTally, LogPatience
from stores.errors import LogAway
from tests.flows.stage_rig import START


def test_sources_pause_from_the_cap_on() -> None:
    pending = PendingWork(cap=3)
    pending.add("extract", 2)
    assert not pending.full()
    pending.add("index", 1)
    assert pending.full()
    pending.add("extract", -1)
    assert not pending.full()
    assert pending.count() == 2


def test_a_cap_that_would_stop_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="cap"):
        PendingWork(cap=0)


def test_few_failures_say_nothing() -> None:
    tally = FailureTally("extract", FailureLimit(rate=0.5, window=100, minimum=20))
    assert all(tally.failed("refused", "400") is None for _ in range(19))
    assert tally.failed("refused", "400") is not None


def test_the_rate_itself_is_allowed_and_more_is_not() -> None:
    tally = FailureTally("extract", FailureLimit(rate=0.5, window=100, minimum=20))
    tally.succeeded(20)
    assert all(tally.failed("refused", "400") is None for _ in range(20))
    assert tally.failed("refused", "400") is not None


def test_only_the_last_items_count() -> None:
    tally = FailureTally("extract", FailureLimit(rate=0.5, window=10, minimum=10))
    for _ in range(9):
        tally.failed("refused", "400")
    tally.succeeded(10)
    assert all(tally.failed("timeout", "late") is None for _ in range(5))
    halt = tally.failed("timeout", "late")
    assert halt is not None
    assert "6 of the last 10" in halt.message
    assert "(6 timeout; the last: late)" in halt.message
    assert "start again" in halt.message


def test_a_log_that_stays_away_is_given_up_and_one_that_comes_back_is_not() -> None:
    patience = LogPatience("extract", 60.0)
    error = LogAway("kafka", "no answer")

    def away(seconds: float) -> LogAway | None:
        return patience.away(error, START + timedelta(seconds=seconds))

    assert [away(seconds) for seconds in (0, 30, 60)] == [None, None, None]
    patience.answered()
    assert [away(seconds) for seconds in (61, 121)] == [None, None]
    given_up = away(122)
    assert given_up is not None
    assert given_up.message.startswith("kafka: no answer; stage extract waited for 61 s")

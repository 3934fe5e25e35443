"""The same rules in process and on a real Redis."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from connectors.llm_limits import Ledger, LlmLimits, LocalLedger, RedisLedger, Spend, SpentFile
from connectors.llm_limits.ledger import DAY_S, Bucket
from stores.errors import ServiceUnavailable
from tests.connectors.llm_limits import worker
from tests.rig.redis import RedisServer
from tests.rig.waiting import until

Opened = Callable[[LlmLimits], Ledger]
CALL = Spend(tokens=100, micros=10)
ROOT = Path(__file__).parents[3]


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture(params=["local", "redis"])
def opened(request: pytest.FixtureRequest, prefix: str) -> Iterator[Opened]:
    made: list[Ledger] = []

    def local(limits: LlmLimits) -> Ledger:
        return LocalLedger(limits)

    def shared(limits: LlmLimits) -> Ledger:
        made.append(RedisLedger(request.getfixturevalue("redis_server").url, prefix, limits))
        return made[-1]

    yield local if request.param == "local" else shared
    for ledger in made:
        ledger.close()


def test_no_limit_lets_everything_through(opened: Opened) -> None:
    ledger = opened(LlmLimits())
    assert all(ledger.take(Spend(10**9, 10**12)).lease for _ in range(200))
    assert ledger.state().in_flight == 200


def test_slots_are_given_back(opened: Opened) -> None:
    ledger = opened(LlmLimits(concurrency=2))
    first, second = ledger.take(CALL).lease, ledger.take(CALL).lease
    assert ledger.take(CALL).reason == "busy"
    ledger.settle(first, CALL, CALL)
    third = ledger.take(CALL)
    assert third.lease
    assert len({first, second, third.lease}) == 3
    ledger.settle(first, CALL, CALL)  # once more: it gives back nothing
    assert ledger.take(CALL).reason == "busy"
    assert ledger.state().spent == CALL


def test_requests_of_a_minute(opened: Opened) -> None:
    ledger = opened(LlmLimits(requests_per_minute=20))
    verdicts = [ledger.take(CALL) for _ in range(3)]
    assert [bool(one.lease) for one in verdicts] == [True, True, False]
    assert verdicts[2].reason == "rate"
    assert 0 < verdicts[2].wait_s <= 60 / 19


def test_tokens_of_a_minute_and_what_was_not_used_comes_back(opened: Opened) -> None:
    ledger = opened(LlmLimits(tokens_per_minute=1000))  # a hundred at once
    lease = ledger.take(CALL).lease
    assert ledger.take(CALL).reason == "rate"
    ledger.settle(lease, CALL, Spend(tokens=0))
    assert ledger.take(CALL).lease


def test_a_call_larger_than_the_bucket_is_let_through_and_waited_for_afterwards(
    opened: Opened,
) -> None:
    ledger = opened(LlmLimits(tokens_per_minute=1000))
    assert ledger.take(Spend(tokens=500)).lease
    assert ledger.take(Spend(tokens=1)).wait_s > 20


def test_a_pause_is_for_everybody_and_never_cut_short(opened: Opened) -> None:
    ledger = opened(LlmLimits())
    ledger.pause(30)
    ledger.pause(1)
    other = opened(LlmLimits()) if isinstance(ledger, RedisLedger) else ledger
    verdict = other.take(CALL)
    assert verdict.reason == "paused"
    assert 29 < verdict.wait_s <= 30
    assert 29 < other.state().paused_s <= 30


def test_a_nonsensical_pause_ends_after_an_hour(opened: Opened) -> None:
    ledger = opened(LlmLimits())
    ledger.pause(1e9)
    assert ledger.take(CALL).wait_s <= 3600


@pytest.mark.parametrize(
    "limits", [LlmLimits(tokens_per_day=250), LlmLimits(micros_per_day=25)], ids=["tokens", "money"]
)
def test_a_days_budget_is_never_exceeded(opened: Opened, limits: LlmLimits) -> None:
    ledger = opened(limits)
    first, second = ledger.take(CALL).lease, ledger.take(CALL).lease
    assert ledger.take(CALL).reason == "busy"  # what is in flight may use less
    assert not ledger.state().stopped
    ledger.settle(first, CALL, CALL)
    ledger.settle(second, CALL, CALL)
    verdict = ledger.take(CALL)
    assert verdict.reason == "budget"
    assert 0 < verdict.wait_s <= DAY_S
    state = ledger.state()
    assert (state.spent, state.stopped) == (Spend(200, 20), True)
    assert ledger.take(Spend(50, 5)).lease  # a small one still fits
    assert not ledger.state().stopped


@given(
    limit=st.integers(1, 200), pauses=st.lists(st.floats(0, 5), max_size=300), at=st.floats(0, 1e9)
)
def test_no_minute_has_more_than_its_limit(limit: int, pauses: list[float], at: float) -> None:
    bucket, begun = Bucket(limit), list[float]()
    for pause in pauses:
        at += pause
        if bucket.wait(1, at) == 0:
            bucket.take(1)
            begun.append(at)
    for first in begun:
        assert sum(first <= one < first + 60 for one in begun) <= limit


def test_a_new_day_has_a_new_budget_and_a_restart_has_not(tmp_path: Path) -> None:
    now, limits, kept = 10 * DAY_S + 100.0, LlmLimits(tokens_per_day=100), tmp_path / "d" / "spent"

    def restarted() -> LocalLedger:
        return LocalLedger(limits, clock=lambda: now, kept=SpentFile(kept))

    ledger = restarted()
    ledger.settle(ledger.take(CALL).lease, CALL, CALL)
    ledger = restarted()
    assert ledger.take(CALL).reason == "budget"
    assert restarted().state().stopped
    now += DAY_S
    assert not restarted().state().stopped
    assert restarted().take(CALL).lease
    kept.write_bytes(b"{broken")
    assert restarted().state().spent == Spend()


def test_redis_begins_a_new_day_as_well(redis_server: RedisServer, prefix: str) -> None:
    ledger = RedisLedger(redis_server.url, prefix, LlmLimits(tokens_per_day=100))
    ledger.settle(ledger.take(CALL).lease, CALL, CALL)
    assert ledger.take(CALL).reason == "budget"
    with redis.Redis.from_url(redis_server.url) as client:
        client.hincrbyfloat(f"{prefix}:{{llm}}:state", "day", -1)  # it was yesterday's
    assert ledger.take(CALL).lease
    ledger.close()


def test_a_redis_that_is_away_says_so() -> None:
    ledger = RedisLedger("redis://127.0.0.1:1/0", "x", LlmLimits())
    with pytest.raises(ServiceUnavailable):
        ledger.take(CALL)
    ledger.close()


def test_a_worker_that_has_its_part_lets_another_go_first(
    redis_server: RedisServer, prefix: str
) -> None:
    limits = LlmLimits(concurrency=4)
    greedy = RedisLedger(redis_server.url, prefix, limits)
    late = RedisLedger(redis_server.url, prefix, limits)
    held = [greedy.take(CALL).lease for _ in range(4)]
    assert late.take(CALL).reason == "busy"
    for lease in held[:2]:
        greedy.settle(lease, CALL, CALL)
        assert greedy.take(CALL).reason == "busy"  # though a slot is free
        assert late.take(CALL).lease
        late.take(CALL)
    greedy.settle(held[2], CALL, CALL)  # one to two now, the other waits no less
    assert greedy.take(CALL).lease
    greedy.close()
    late.close()


def start_worker(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.connectors.llm_limits.worker", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_two_processes_share_a_limit(redis_server: RedisServer, prefix: str) -> None:
    url = redis_server.url
    with start_worker("busy", url, prefix, "40") as other:
        gate = worker.gate_of(url, prefix, LlmLimits(concurrency=worker.SLOTS))
        most = asyncio.run(worker.make_calls(url, gate, prefix, 40))
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        gate.close()
    assert 1 <= min(most, theirs)
    assert max(most, theirs) <= worker.SLOTS


def test_a_killed_process_gives_its_slots_back(redis_server: RedisServer, prefix: str) -> None:
    url, limits = redis_server.url, LlmLimits(concurrency=worker.SLOTS)
    ledger = RedisLedger(url, prefix, limits)
    leases = f"{prefix}:{{llm}}:leases"
    with (
        start_worker("hold", url, prefix, str(worker.SLOTS)) as other,
        redis.Redis.from_url(url, decode_responses=True) as client,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert ledger.take(CALL).reason == "busy"
        first = dict(client.zrange(leases, 0, -1, withscores=True))
        # Renewed for longer than a lease lasts, so without renewal they would have run out.
        until(
            lambda: (
                min(client.zscore(leases, lease) or 0 for lease in first)
                > max(first.values()) + worker.LEASE_S
            )
        )
        assert ledger.take(CALL).reason == "busy"
        other.send_signal(signal.SIGKILL)
    until(lambda: bool(ledger.take(CALL).lease))
    state = ledger.state()
    assert state.in_flight == 1
    need = len("hello") // 3 + 10
    assert state.spent.tokens == worker.SLOTS * need  # nobody knows, so all of it
    ledger.close()

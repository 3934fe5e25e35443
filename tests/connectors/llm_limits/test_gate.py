"""Where model calls wait: never in the loop, never for ever, and told to people."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from prometheus_client import REGISTRY

from connectors.llm import OpenAIChat
from connectors.llm_limits import (
    CallGate,
    Ledger,
    LedgerState,
    LlmLimits,
    LocalLedger,
    RedisLedger,
    Spend,
    Verdict,
)
from stores.errors import LimitReached, RateLimited, ServiceUnavailable
from stores.protocols import ChatRequest
from tests.rig.redis import RedisServer
from tests.rig.scripted_llm import in_turn, rate_limited, scripted_llm, server_error

MODEL = "scripted"
pytestmark = pytest.mark.asyncio


def asking(scope: str = "acme/helper/ana", text: str = "hi", model: str = MODEL) -> ChatRequest:
    return ChatRequest(model, (("user", text),), "p/1", max_tokens=10, scope=scope)


@contextmanager
def gate_with(
    limits: LlmLimits, ledger: Ledger | None = None, patience_s: float = 20.0, **more: object
) -> Iterator[CallGate]:
    gate = CallGate(
        ledger or LocalLedger(limits),
        limits,
        patience_s=patience_s,
        **more,  # type: ignore[arg-type]
    )
    try:
        yield gate
    finally:
        gate.close()


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_loop_goes_on_while_calls_wait() -> None:
    with gate_with(LlmLimits(concurrency=1)) as gate:
        order: list[str] = []

        async def one(name: str) -> None:
            async with gate.call(asking()):
                order.append(name)
                await asyncio.sleep(0)

        async with gate.call(asking()):
            waiting = asyncio.create_task(one("waiting"))
            for _ in range(50):
                await asyncio.sleep(0)
            order.append("loop")
        await waiting
        assert order == ["loop", "waiting"]


async def test_a_heavy_scope_starves_nobody() -> None:
    """A line of 200 calls, then one call of each of ten others: all ten are among the next 25."""
    with gate_with(LlmLimits(concurrency=4)) as gate:
        begun: list[str] = []

        async def one(scope: str) -> None:
            async with gate.call(asking(scope)):
                begun.append(scope)
                await asyncio.sleep(0.001)

        heavy = [asyncio.create_task(one("heavy")) for _ in range(200)]
        while len(begun) < 8:
            await asyncio.sleep(0)
        before = len(begun)
        light = [asyncio.create_task(one(f"light-{number}")) for number in range(10)]
        await asyncio.gather(*light, *heavy)
        last = max(begun.index(f"light-{number}") for number in range(10))
        assert last - before <= 25
        assert Counter(begun)["heavy"] == 200


async def test_loops_of_several_threads_share_it() -> None:
    most, now, guard = 0, 0, threading.Lock()
    with gate_with(LlmLimits(concurrency=3)) as gate:

        async def one() -> None:
            nonlocal most, now
            async with gate.call(asking()):
                with guard:
                    now += 1
                    most = max(most, now)
                await asyncio.sleep(0.001)
                with guard:
                    now -= 1

        async def several() -> None:
            await asyncio.gather(*(one() for _ in range(20)))

        threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert most == 3


async def test_who_waits_too_long_is_sent_back_to_its_stage() -> None:
    with gate_with(LlmLimits(concurrency=1), patience_s=0.05) as gate:
        async with gate.call(asking()):
            with pytest.raises(LimitReached, match="no room"):
                async with gate.call(asking()):
                    pass
        async with gate.call(asking()):  # its place in line is gone
            pass


async def test_a_cancelled_call_keeps_no_slot() -> None:
    ledger = LocalLedger(LlmLimits(concurrency=1))
    with gate_with(LlmLimits(concurrency=1), ledger) as gate:

        async def one() -> None:
            async with gate.call(asking()):
                await asyncio.sleep(60)

        tasks = [asyncio.create_task(one()) for _ in range(5)]
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with gate.call(asking()):
            pass
    assert ledger.state().in_flight == 0


async def test_a_budget_stops_clearly_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    now = 86_400 * 100.0
    limits = LlmLimits(tokens_per_day=20)
    ledger = LocalLedger(limits, clock=lambda: now)
    with gate_with(limits, ledger, monotonic=lambda: now) as gate:
        async with gate.call(asking()) as use:
            use.used(10, 5)
        for _ in range(3):
            with pytest.raises(LimitReached, match="budget") as sent_away:
                async with gate.call(asking()):
                    pass
            assert sent_away.value.retry_after == 15  # not until midnight: it may be raised
        assert sample("sediment_llm_held", reason="budget") == 1
        assert sample("sediment_llm_spent_today", unit="tokens") == 15
        assert [record.message for record in caplog.records] == [
            "model calls wait: the day's budget is used up; they go on at midnight UTC, in 86400 "
            "s, or after a restart with a higher SEDIMENT_LLM_TOKENS_PER_DAY or "
            "SEDIMENT_LLM_DOLLARS_PER_DAY. Nothing is lost"
        ]
        now += 86_400
        async with gate.call(asking()):
            pass
        assert sample("sediment_llm_held", reason="budget") == 0
        assert caplog.records[-1].message == "model calls go on"


async def test_what_a_call_costs() -> None:
    limits, model = LlmLimits(), f"m-{uuid.uuid4().hex}"
    ledger = LocalLedger(limits)
    with gate_with(limits, ledger, prices={model: (0.5, 2.0)}) as gate:
        async with gate.call(asking(model=model)) as use:
            use.used(1000, 100)
    assert ledger.state().spent == Spend(1100, 700)
    assert sample("sediment_llm_cost_dollars_total", model=model) == pytest.approx(0.0007)


async def test_a_429_seen_by_one_pauses_all() -> None:
    limits = LlmLimits()
    with scripted_llm(script=in_turn(rate_limited(3600))) as server:
        with gate_with(limits, patience_s=0.2) as gate:
            chat = OpenAIChat(MODEL, base_url=server.url, gate=gate)
            with pytest.raises(RateLimited):
                await chat.complete(asking())
            for scope in ("a", "b"):
                with pytest.raises(LimitReached, match="asked everybody to wait"):
                    await chat.complete(asking(scope))
            await chat.aclose()
        assert server.count() == 1


class Noting(LocalLedger):
    """Notes for how long all are to wait, and lets nobody wait."""

    def __init__(self) -> None:
        super().__init__(LlmLimits())
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_all_wait_as_long_as_a_429_says_and_briefly_when_it_does_not_say() -> None:
    ledger = Noting()
    script = in_turn(
        *(rate_limited(wait) for wait in (0.25, None, None, None, None, 40)), None, rate_limited()
    )
    with scripted_llm(script=script) as server:
        with gate_with(LlmLimits(), ledger) as gate:
            chat = OpenAIChat(MODEL, base_url=server.url, gate=gate)
            for answers in [False] * 6 + [True, False]:
                if answers:
                    await chat.complete(asking())
                else:
                    with pytest.raises(RateLimited):
                        await chat.complete(asking())
            await chat.aclose()
    assert ledger.pauses == [0.25, 1, 2, 4, 5, 40, 1]


async def test_retry_after_of_an_overloaded_server_counts_as_well() -> None:
    limits = LlmLimits()
    ledger = LocalLedger(limits)
    with scripted_llm(script=in_turn(server_error())) as server, gate_with(limits, ledger) as gate:
        chat = OpenAIChat(MODEL, base_url=server.url, gate=gate)
        with pytest.raises(ServiceUnavailable):
            await chat.complete(asking())
        answer = await chat.complete(asking())  # it did not ask for rest
        await chat.aclose()
    assert ledger.state().paused_s == 0
    used = answer.prompt_tokens + answer.completion_tokens
    assert ledger.state().spent.tokens == used + len("hi") // 3


class Away:
    """A ledger that cannot be asked for a while."""

    def __init__(self) -> None:
        self.away = True
        self.real = LocalLedger(LlmLimits(concurrency=1))

    def _ask(self) -> LocalLedger:
        if self.away:
            service = "redis"
            raise ServiceUnavailable(service, "ConnectionError")
        return self.real

    def take(self, need: Spend) -> Verdict:
        return self._ask().take(need)

    def settle(self, lease: str, need: Spend, used: Spend) -> None:
        self._ask().settle(lease, need, used)

    def renew(self, leases: Sequence[str]) -> None:
        self._ask().renew(leases)

    def pause(self, seconds: float) -> None:
        self._ask().pause(seconds)

    def state(self) -> LedgerState:
        return self._ask().state()

    def close(self) -> None:
        self.real.close()


async def test_calls_wait_while_redis_is_away_and_go_on_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger, ticks = Away(), iter(range(10**9))
    limits = LlmLimits(concurrency=1)
    with gate_with(limits, ledger, monotonic=lambda: next(ticks) / 10) as gate:
        waiting = asyncio.create_task(_one_call(gate))
        while sample("sediment_llm_held", reason="redis") == 0:
            await asyncio.sleep(0)
        ledger.away = False
        await waiting
        async with gate.call(asking()):
            ledger.away = True
        # What ended while it was away is settled when it is back.
        waiting = asyncio.create_task(_one_call(gate))
        while sample("sediment_llm_held", reason="redis") == 0:
            await asyncio.sleep(0)
        ledger.away = False
        await waiting
    assert ledger.real.state().in_flight == 0
    told = [record.message for record in caplog.records]
    assert told[:2] == [
        "model calls wait: Redis, which counts them, does not answer; they go on when it does. "
        "Nothing is lost",
        "model calls go on",
    ]


async def _one_call(gate: CallGate) -> None:
    async with gate.call(asking()):
        pass


async def test_a_flow_that_stops_does_not_wait_for_limits() -> None:
    stop = threading.Event()
    with gate_with(LlmLimits(concurrency=1), stopping=stop.is_set) as gate:
        async with gate.call(asking()):
            waiting = asyncio.create_task(_one_call(gate))
            await asyncio.sleep(0.01)
            stop.set()
            with pytest.raises(LimitReached):
                await asyncio.wait_for(waiting, 10)
            with pytest.raises(LimitReached):
                await _one_call(gate)


async def test_on_a_real_redis(redis_server: RedisServer) -> None:
    limits, prefix = LlmLimits(concurrency=2, requests_per_minute=6000), uuid.uuid4().hex
    ledger = RedisLedger(redis_server.url, prefix, limits)
    other = RedisLedger(redis_server.url, prefix, limits)
    with gate_with(limits, ledger) as gate, gate_with(limits, other) as elsewhere:
        await asyncio.gather(*(_one_call(one) for one in (gate, elsewhere) for _ in range(20)))
        gate.pause(0.3)
        while ledger_paused(redis_server, prefix, limits) == 0:
            await asyncio.sleep(0)
        began = time.monotonic()
        await _one_call(elsewhere)
        assert time.monotonic() - began > 0.1
    assert sample("sediment_llm_held", reason="paused") == 0


def ledger_paused(server: RedisServer, prefix: str, limits: LlmLimits) -> float:
    ledger = RedisLedger(server.url, prefix, limits)
    try:
        return ledger.state().paused_s
    finally:
        ledger.close()

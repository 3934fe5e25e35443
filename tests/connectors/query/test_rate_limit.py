"""The token bucket, in process and on a real Redis."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.query.rate_limit import Limit, LocalRateLimit, RateLimit, open_rate_limit
from connectors.settings import Settings
from stores.errors import ServiceUnavailable
from tests.rig.redis import RedisServer


class Turned:
    """A clock of seconds, turned by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.asyncio
async def test_a_bucket_empties_and_fills() -> None:
    clock = Turned()
    limit = LocalRateLimit(Limit(rate=2, burst=3), clock)
    assert [await limit.take("k") for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    assert await limit.take("other") == 0
    clock.now += 0.5
    assert [await limit.take("k") for _ in range(2)] == [0, 0.5]
    clock.now += 1000
    assert [await limit.take("k") for _ in range(4)] == [0, 0, 0, 0.5]


@pytest.mark.asyncio
async def test_of_too_many_callers_the_quietest_is_forgotten() -> None:
    limit = LocalRateLimit(Limit(rate=0.001, burst=1), Turned(), most=2)
    assert [await limit.take(name) for name in ("one", "two", "one")] == [0, 0, 1000]
    assert await limit.take("three") == 0  # in the place of "two"
    assert await limit.take("one") == 1000
    assert await limit.take("two") == 0


@given(
    pauses=st.lists(st.floats(0, 3), max_size=60),
    rate=st.floats(0.1, 20),
    burst=st.integers(1, 10),
)
def test_never_more_than_the_burst_and_the_rate(
    pauses: list[float], rate: float, burst: int
) -> None:
    clock = Turned()
    limit = LocalRateLimit(Limit(rate, burst), clock)

    async def allowed() -> int:
        count = 0
        for pause in pauses:
            clock.now += pause
            count += await limit.take("k") == 0
        return count

    assert asyncio.run(allowed()) <= burst + rate * sum(pauses) + 1e-6


def on(url: str, **changes: Any) -> Settings:
    return Settings(redis_url=url, topic_prefix=f"t{uuid.uuid4().hex[:8]}", **changes)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[RateLimit]:
    async with open_rate_limit(settings) as limit:
        assert limit is not None
        yield limit


@pytest.mark.asyncio
async def test_services_on_one_redis_share_a_bucket(redis_server: RedisServer) -> None:
    settings = on(redis_server.url, rate_limit=0.01, rate_limit_burst=5)
    async with opened(settings) as one, opened(settings) as two:
        waits = await asyncio.gather(*(limit.take("k") for limit in (one, two) * 5))
        assert sum(wait == 0 for wait in waits) == 5
        assert all(0 < wait <= 100 for wait in waits if wait)
        assert await two.take("other") == 0


@pytest.mark.asyncio
async def test_a_bucket_on_redis_fills_by_the_servers_clock(redis_server: RedisServer) -> None:
    async with opened(on(redis_server.url, rate_limit=50, rate_limit_burst=1)) as limit:
        assert await limit.take("k") == 0
        wait = await limit.take("k")
        assert 0 < wait <= 0.02
        await asyncio.sleep(0.05)
        assert await limit.take("k") == 0


@pytest.mark.asyncio
async def test_without_redis_it_fails_as_the_setting_says() -> None:
    dead = "redis://:secret@127.0.0.1:9"
    async with opened(on(dead, rate_limit=1)) as closed:
        with pytest.raises(ServiceUnavailable) as caught:
            await closed.take("k")
        assert "secret" not in str(caught.value)
    async with opened(on(dead, rate_limit=1, rate_limit_fails="open")) as open_:
        assert await open_.take("k") == 0


@pytest.mark.asyncio
async def test_it_can_be_off() -> None:
    async with open_rate_limit(Settings(rate_limit=0)) as limit:
        assert limit is None

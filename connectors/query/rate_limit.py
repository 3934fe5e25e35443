"""How many calls a key, or an address without one, may make: a token bucket for each.

Buckets of keys are on Redis or in process, those of addresses always in process: who has no key
must not fill a store that others share.

A bucket holds ``burst`` tokens and gets ``rate`` a second; a call takes one. On Redis the whole
step is one script with the server's own clock, so that services side by side share one limit.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from connectors.metrics import RATE_LIMIT_ERRORS
from connectors.settings import Settings
from stores.errors import ServiceUnavailable

__all__ = [
    "Limit",
    "LocalRateLimit",
    "RateLimit",
    "RedisRateLimit",
    "open_rate_limit",
    "peer_limit",
    "peer_name",
]

_REDIS_TIMEOUT_S = 1.0
_CALLERS_KNOWN = 10_000
_IPV6_NETWORK = 64  # what one subscriber gets

_TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(bucket[1]) or burst, tonumber(bucket[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate)
local wait = 0
if tokens >= 1 then tokens = tokens - 1 else wait = (1 - tokens) / rate end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', tokens))
redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return string.format('%.6f', wait)
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much is allowed.

    :arg rate: calls a second, over time.
    :arg burst: calls at once, after a pause.
    """

    rate: float
    burst: int


class RateLimit(Protocol):
    """Counts calls by key, or by address."""

    async def take(self, key_id: str) -> float:
        """Count one call; give 0.0 when it may go on, else the seconds until the next may.

        Raises :class:`~stores.errors.ServiceUnavailable` when that cannot be said and the limit
        fails closed.
        """
        ...


class LocalRateLimit:
    """A limit for one process. For one event loop.

    Of more than ``most`` callers the one that was quiet for longest is forgotten, so that
    addresses made up by the million cost no memory.

    :arg monotonic: seconds.
    """

    def __init__(
        self,
        limit: Limit,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        most: int = _CALLERS_KNOWN,
    ) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._most = most
        self._buckets: dict[str, tuple[float, float]] = {}

    async def take(self, key_id: str) -> float:
        """Count one call."""
        now = self._monotonic()
        tokens, at = self._buckets.pop(key_id, (float(self._limit.burst), now))
        tokens = min(self._limit.burst, tokens + (now - at) * self._limit.rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._limit.rate
        if len(self._buckets) >= self._most:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key_id] = (tokens if wait else tokens - 1, now)
        return wait


class RedisRateLimit:
    """A limit that all services on one Redis share. For one event loop.

    :arg prefix: what the keys in Redis begin with.
    :arg fails_open: let calls through while Redis does not answer.
    """

    def __init__(
        self, client: redis.asyncio.Redis, limit: Limit, *, prefix: str, fails_open: bool
    ) -> None:
        self._script: Any = client.register_script(_TAKE)
        self._limit = limit
        self._prefix = prefix
        self._fails_open = fails_open

    async def take(self, key_id: str) -> float:
        """Count one call."""
        try:
            wait = await self._script(
                keys=[f"{self._prefix}:rate:{key_id}"], args=[self._limit.rate, self._limit.burst]
            )
        except (redis.RedisError, OSError) as error:
            RATE_LIMIT_ERRORS.inc()
            if self._fails_open:
                return 0.0
            raise ServiceUnavailable(service="redis", message=type(error).__name__) from None
        return float(wait)


def peer_limit(settings: Settings) -> LocalRateLimit | None:
    """Make the limit of addresses that call without a valid key; ``None`` when it is off."""
    rate = settings.rate_limit_peer if settings.rate_limit else 0
    return LocalRateLimit(Limit(rate, max(1, int(2 * rate)))) if rate else None


def peer_name(host: str) -> str:
    """Give what the calls of an address are counted under.

    >>> peer_name("127.0.0.1"), peer_name("2001:db8::17")
    ('127.0.0.1', '2001:db8::/64')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket without one
        return host
    if address.version == 4:  # noqa: PLR2004
        return host
    return str(ipaddress.ip_network((address, _IPV6_NETWORK), strict=False))


@asynccontextmanager
async def open_rate_limit(settings: Settings) -> AsyncIterator[RateLimit | None]:
    """Open the limit that the settings say, in the running event loop; ``None`` when it is off."""
    if not settings.rate_limit:
        yield None
        return
    limit = Limit(settings.rate_limit, settings.rate_limit_burst)
    if not settings.redis_url:
        yield LocalRateLimit(limit)
        return
    client = redis.asyncio.Redis.from_url(
        settings.redis_url,
        socket_timeout=_REDIS_TIMEOUT_S,
        socket_connect_timeout=_REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        yield RedisRateLimit(
            client,
            limit,
            prefix=settings.topic_prefix,
            fails_open=settings.rate_limit_fails == "open",
        )
    finally:
        await client.aclose()

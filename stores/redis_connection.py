"""How every part that keeps something in Redis reaches it, and what its errors become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from stores.errors import ServiceUnavailable

if TYPE_CHECKING:
    import redis  # its import takes 0.2 s, so only a process that is given Redis does it

__all__ = ["redis_client", "redis_errors", "why_away"]

_SERVICE = "redis"
_TIMEOUT_S = 5.0


def redis_client(url: str) -> redis.Redis:
    """Connect at first use, with short timeouts and no retries of its own."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis.from_url(
        url,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),  # retrying is the stage's
    )


@contextmanager
def redis_errors() -> Iterator[None]:
    """Turn every error of Redis into ``ServiceUnavailable``."""
    import redis

    try:
        yield
    except redis.RedisError as error:
        # The class only: texts of connection errors can hold the URL with its password.
        raise ServiceUnavailable(_SERVICE, type(error).__name__) from None


def why_away(url: str) -> str:
    """Say why Redis does not answer; empty when it does."""
    with closing(redis_client(url)) as client:
        try:
            with redis_errors():
                client.ping()
        except ServiceUnavailable as away:
            return away.message.removeprefix(f"{_SERVICE}: ")
    return ""

"""Finds and deletes all keys that begin alike: what a dropped generation leaves in Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

from stores.redis_connection import redis_client, redis_errors

__all__ = ["count_keys", "delete_keys"]

_KEYS_AT_ONCE = 500


def count_keys(url: str, prefix: str) -> int:
    """Count the keys that begin with a prefix. Raises ``ServiceUnavailable``.

    Walks over all keys of the database without stopping it.
    """
    return sum(1 for _ in _keys(url, prefix))


def delete_keys(url: str, prefix: str) -> int:
    """Delete the keys that begin with a prefix, and say how many. Idempotent.

    Raises ``ServiceUnavailable``; then a part of them may be gone: call it again.
    """
    doomed = list(_keys(url, prefix))
    with closing(redis_client(url)) as client, redis_errors():
        for start in range(0, len(doomed), _KEYS_AT_ONCE):
            client.delete(*doomed[start : start + _KEYS_AT_ONCE])
    return len(doomed)


def _keys(url: str, prefix: str) -> Iterator[bytes]:
    pattern = re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + "*"
    with closing(redis_client(url)) as client, redis_errors():
        # A scan may give a key twice.
        yield from set(client.scan_iter(match=pattern, count=_KEYS_AT_ONCE))

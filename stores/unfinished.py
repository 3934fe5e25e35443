"""Writes that have begun and may not have ended: said before the store is touched, gone after it.

A window changes several rows that belong together, and no store takes several rows at once for
sure: a server may have taken a part when the process is killed or the connection breaks. What is
decided on such a part would be another thing than what was decided on the whole. So the rows are
kept here first, and whoever opens their scope next finishes the write.

These two and :mod:`stores.unfinished_files` promise the same: when ``put`` returns, the note
outlives the process, also one killed with ``kill -9``; one scope has one note, the newest;
``clear`` of what is not there is no error. One scope is worked on by one process at a time. A note
holds text of memories for as long as its write lasts, and until the next start after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from stores.redis_connection import redis_client, redis_errors

__all__ = ["UnfinishedInMemory", "UnfinishedInRedis"]


class UnfinishedInMemory:
    """Notes of one process, for a store that does not outlive it either."""

    def __init__(self) -> None:
        self._notes: dict[str, bytes] = {}

    def put(self, notes: Mapping[str, bytes]) -> None:
        """Keep a note for each of these scopes."""
        self._notes.update(notes)

    def get(self, scope: str) -> bytes | None:
        """Give the note of a scope, or ``None``."""
        return self._notes.get(scope)

    def clear(self, scopes: Sequence[str]) -> None:
        """Throw their notes away."""
        for scope in scopes:
            self._notes.pop(scope, None)


class UnfinishedInRedis:
    """Notes in Redis, so that another machine can take a scope over.

    Raises :class:`~stores.errors.ServiceUnavailable` when Redis does not answer. A Redis that
    loses its data loses the notes: a write that was cut then is decided anew on its part.

    :arg url: ``redis://[user:password@]host:port/database``.
    :arg prefix: what every key begins with; the key is ``<prefix>:<scope>``.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix
        self._client = redis_client(url)

    def put(self, notes: Mapping[str, bytes]) -> None:
        """Keep a note for each of these scopes, all of them or none, in one call."""
        with redis_errors():
            self._client.mset({self._key(scope): note for scope, note in notes.items()})

    def get(self, scope: str) -> bytes | None:
        """Give the note of a scope, or ``None``."""
        with redis_errors():
            return cast("bytes | None", self._client.get(self._key(scope)))

    def clear(self, scopes: Sequence[str]) -> None:
        """Throw their notes away, in one call."""
        with redis_errors():
            self._client.delete(*map(self._key, scopes))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _key(self, scope: str) -> str:
        return f"{self._prefix}:{scope}"

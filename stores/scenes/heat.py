"""Heat: how often recall came up with a scene. Counted by query nodes, folded in by scene runs.

Counting twice or not at all after a crash is what this avoids: a job that asks for its hits
again gets the same ones, and the folder says whether they were folded in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, cast

from stores.redis_connection import redis_client, redis_errors
from stores.scenes.document import ProfileFile

__all__ = ["HeatCounters", "LocalHeat", "RedisHeat", "fold_heat"]


def fold_heat(
    files: Mapping[str, ProfileFile], hits: Mapping[str, int], moved: Mapping[str, str]
) -> dict[str, ProfileFile]:
    """Add recall hits to the heat of files; those of a file that is gone go where it went.

    Do it once for a job, before its run; that a job is applied once is the folder's care.

    :arg hits: by file name, as counted.
    :arg moved: as :meth:`SceneFolder.moved` gives it.
    """
    warmed = dict(files)
    for path, count in sorted(hits.items()):
        target = path if path in warmed else moved.get(path, path)
        if target in warmed:
            warmed[target] = replace(warmed[target], heat=warmed[target].heat + count)
    return warmed


class HeatCounters(Protocol):
    """Recall hits by scope and file, until a scene run folds them in. Thread-safe."""

    def add(self, scope: str, path: str, hits: int = 1) -> None:
        """Count hits of a file."""
        ...

    def take(self, scope: str, job_id: str, folded: Callable[[str], bool]) -> dict[str, int]:
        """Give the hits for a job to fold in; the same ones whenever the same job asks again.

        What an earlier job took and never folded in is given again, with what came since.
        One job at a time for a scope: hold its lock.

        :arg folded: whether a job's result was committed (``SceneFolder.applied``). Asked once
            at most, about the job that took last.
        """
        ...

    def forget(self, scope: str) -> None:
        """Drop all counts of a scope, with the file names in them. Idempotent."""
        ...


class LocalHeat:
    """Counters in memory: hits that no run folded in are lost with the process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[str, dict[str, int]] = {}
        self._taken: dict[str, tuple[str, dict[str, int]]] = {}

    def add(self, scope: str, path: str, hits: int = 1) -> None:
        """Count hits of a file."""
        with self._guard:
            counts = self._open.setdefault(scope, {})
            counts[path] = counts.get(path, 0) + hits

    def take(self, scope: str, job_id: str, folded: Callable[[str], bool]) -> dict[str, int]:
        """Give the hits for a job to fold in."""
        with self._guard:
            holder, counts = self._taken.get(scope, ("", {}))
        if holder == job_id:
            return dict(counts)
        again = {} if not holder or folded(holder) else counts
        with self._guard:
            for path, hits in self._open.pop(scope, {}).items():
                again = {**again, path: again.get(path, 0) + hits}
            self._taken[scope] = (job_id, again)
        return dict(again)

    def forget(self, scope: str) -> None:
        """Drop all counts of a scope."""
        with self._guard:
            self._open.pop(scope, None)
            self._taken.pop(scope, None)


_TAKE = """
local holder = redis.call('HGET', KEYS[2], '')
if holder == ARGV[1] then return redis.call('HGETALL', KEYS[2]) end
if holder and holder ~= ARGV[2] and holder ~= ARGV[3] then return {'?', holder} end
if holder == ARGV[2] then redis.call('DEL', KEYS[2]) end
local open = redis.call('HGETALL', KEYS[1])
for i = 1, #open, 2 do redis.call('HINCRBY', KEYS[2], open[i], open[i + 1]) end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[2], '', ARGV[1])
return redis.call('HGETALL', KEYS[2])
"""
"""ARGV: the job; the job known to be folded in; the job known not to be.

Answers the taken hash, whose field '' is the job, or ``?`` and a job that it must know about.
"""
_ASKED = 2


class RedisHeat:
    """Counters on Redis, shared by query nodes and workers; kept as Redis keeps its data.

    :arg prefix: what every key begins with: ``<prefix>:{<scope>}:open`` and ``:taken``.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix
        self._client = redis_client(url)
        self._take = self._client.register_script(_TAKE)

    def add(self, scope: str, path: str, hits: int = 1) -> None:
        """Count hits of a file. Raises ``ServiceUnavailable``."""
        with redis_errors():
            self._client.hincrby(self._keys(scope)[0], path, hits)

    def take(self, scope: str, job_id: str, folded: Callable[[str], bool]) -> dict[str, int]:
        """Give the hits for a job to fold in. Raises ``ServiceUnavailable``."""
        keys = self._keys(scope)
        was_folded = was_not = ""
        while True:
            with redis_errors():
                reply = cast("list[bytes]", self._take(keys, [job_id, was_folded, was_not]))
            if reply[0] != b"?" or len(reply) > _ASKED:
                break
            holder = reply[1].decode("utf-8")
            was_folded, was_not = (holder, "") if folded(holder) else ("", holder)
        counts = dict(zip(reply[::2], reply[1::2], strict=True))
        return {path.decode("utf-8"): int(hits) for path, hits in sorted(counts.items()) if path}

    def forget(self, scope: str) -> None:
        """Drop all counts of a scope. Raises ``ServiceUnavailable``."""
        with redis_errors():
            self._client.delete(*self._keys(scope))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _keys(self, scope: str) -> list[str]:
        return [f"{self._prefix}:{{{scope}}}:{name}" for name in ("open", "taken")]

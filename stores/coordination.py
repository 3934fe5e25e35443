"""What keeps workers out of each other's way: locks on a scope, in process and on Redis.

**A lock is a hint, the fencing token is the guard.** Every lock hands out a token that is higher
than any before it for that scope; the store that is written to (``SceneFolder``) refuses one
that is lower than the newest it has seen. So a worker that was paused for longer than its lock
lives does no harm. Tokens live where the locks do: a Redis that lost its data counts from 1
again. That is why ``acquire`` takes ``above``, the newest token the store has seen: the token
is higher than that too, and a flushed Redis blocks nobody.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Protocol, cast

from stores.errors import LockConflict, ServiceUnavailable
from stores.redis_connection import redis_client, redis_errors

__all__ = [
    "Fence",
    "LocalLocks",
    "RedisLocks",
    "ScopeLocks",
]


class Fence(Protocol):
    """A lock that is held. Leaving the ``with`` block releases it.

    ``token``: higher than that of every earlier holder of the scope's lock.
    """

    token: int

    def lost(self) -> bool:
        """Say whether the lock may be somebody else's by now; once lost, it stays so.

        ``False`` is a hint: only the store that checks the token knows.
        """
        ...

    def release(self) -> None:
        """Let go. Idempotent, and no error when the lock is lost or its keeper is away."""
        ...

    def __enter__(self) -> Fence: ...

    def __exit__(self, *exc_info: object) -> None: ...


class ScopeLocks(Protocol):
    """Locks by scope. Thread-safe; blocks for one round trip at most: call it from a thread."""

    def acquire(self, scope: str, ttl: float, *, above: int = 0) -> Fence:
        """Take the lock of a scope without waiting for it.

        It is held until released, and renewed by itself meanwhile; a holder that dies or loses
        its connection keeps others out for at most ``ttl``. Raises
        :class:`~stores.errors.LockConflict` when it is held, ``ServiceUnavailable`` when its
        keeper does not answer.

        :arg ttl: seconds.
        :arg above: the newest token that the guarded store has seen.
        """
        ...


# --- in process ------------------------------------------------------------------------------


class LocalLocks:
    """Locks between the threads of one process. They die with it, so ``ttl`` plays no part."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[str, _LocalFence] = {}
        self._newest: dict[str, int] = {}

    def acquire(self, scope: str, ttl: float, *, above: int = 0) -> Fence:
        """Take the lock of a scope. Raises ``LockConflict``."""
        del ttl
        with self._guard:
            if scope in self._held:
                raise _conflict(scope)
            token = max(self._newest.get(scope, 0), above) + 1
            self._newest[scope] = token
            fence = self._held[scope] = _LocalFence(token, lambda: self._release(scope, token))
            return fence

    def _release(self, scope: str, token: int) -> None:
        with self._guard:
            if scope in self._held and self._held[scope].token == token:
                del self._held[scope]


class _LocalFence:
    def __init__(self, token: int, release: Callable[[], None]) -> None:
        self.token = token
        self._release = release
        self._released = False

    def lost(self) -> bool:
        return self._released

    def release(self) -> None:
        self._released = True
        self._release()

    def __enter__(self) -> _LocalFence:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


# --- Redis -----------------------------------------------------------------------------------

_ACQUIRE = """
local owner = redis.call('GET', KEYS[1])
if owner then return 0 end
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[3])) + 1
redis.call('SET', KEYS[2], string.format('%.0f', token))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return token
"""
_RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
_RENEWALS_PER_TTL = 3


class RedisLocks:
    """Locks between machines, on one Redis.

    A thread renews what is held three times in its ``ttl``. A lock that could not be renewed
    for its whole ``ttl``, or that Redis forgot, is ``lost``. Tokens outlive Redis as its own
    configuration says (``appendonly yes``); see the module for what happens when they do not.

    :arg url: ``redis://[user:password@]host:port/database``.
    :arg prefix: what every key begins with: ``<prefix>:{<scope>}:owner`` and ``:token``. The
        braces keep the keys of one scope on one node of a cluster.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix
        self._client = redis_client(url)
        self._acquire = self._client.register_script(_ACQUIRE)
        self._renew = self._client.register_script(_RENEW)
        self._release = self._client.register_script(_RELEASE)
        self._changed = threading.Condition()
        self._held: set[_RedisFence] = set()
        self._renewing: threading.Thread | None = None
        self._closed = False

    def acquire(self, scope: str, ttl: float, *, above: int = 0) -> Fence:
        """Take the lock of a scope. Raises ``LockConflict`` or ``ServiceUnavailable``."""
        owner = uuid.uuid4().hex
        keys = [f"{self._prefix}:{{{scope}}}:{name}" for name in ("owner", "token")]
        asked = time.monotonic()
        with redis_errors():
            token = cast(int, self._acquire(keys, [owner, round(ttl * 1000), above]))
        if not token:
            raise _conflict(scope)
        fence = _RedisFence(token, keys[0], owner, ttl, asked + ttl, self._let_go)
        with self._changed:
            self._held.add(fence)
            if self._renewing is None:
                self._renewing = threading.Thread(
                    target=self._renew_all, name="scope-locks", daemon=True
                )
                self._renewing.start()
            self._changed.notify()
        return fence

    def close(self) -> None:
        """Stop renewing and close the connections. What is held runs out."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._renewing is not None:
            self._renewing.join()
        self._client.close()

    def _let_go(self, fence: _RedisFence) -> None:
        with self._changed:
            self._held.discard(fence)
        try:
            with redis_errors():
                self._release([fence.key], [fence.owner])
        except ServiceUnavailable:
            pass  # it runs out by itself

    def _renew_all(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                held = sorted(self._held, key=lambda fence: fence.renew_at)
                wait = held[0].renew_at - time.monotonic() if held else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
            for fence in held:
                if fence.renew_at <= time.monotonic():
                    self._renew_one(fence)

    def _renew_one(self, fence: _RedisFence) -> None:
        asked = time.monotonic()
        try:
            with redis_errors():
                renewed = self._renew([fence.key], [fence.owner, round(fence.ttl * 1000)])
        except ServiceUnavailable:
            fence.postpone(asked)
        else:
            fence.renewed(asked) if renewed else fence.give_up()
        if fence.lost():
            with self._changed:
                self._held.discard(fence)


class _RedisFence:
    """One held lock. ``held_until`` is on the monotonic clock, counted from before the request."""

    def __init__(
        self,
        token: int,
        key: str,
        owner: str,
        ttl: float,
        held_until: float,
        let_go: Callable[[_RedisFence], None],
    ) -> None:
        self.token = token
        self.key = key
        self.owner = owner
        self.ttl = ttl
        self.held_until = held_until
        self.renew_at = held_until - ttl + ttl / _RENEWALS_PER_TTL
        self._let_go = let_go
        self._gone = False

    def renewed(self, asked: float) -> None:
        self.held_until = asked + self.ttl
        self.postpone(asked)

    def postpone(self, asked: float) -> None:
        self.renew_at = asked + self.ttl / _RENEWALS_PER_TTL

    def give_up(self) -> None:
        self._gone = True

    def lost(self) -> bool:
        if time.monotonic() >= self.held_until:
            self._gone = True
        return self._gone

    def release(self) -> None:
        if not self._gone:
            self._gone = True
            self._let_go(self)

    def __enter__(self) -> _RedisFence:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def _conflict(scope: str) -> LockConflict:
    return LockConflict(f"another worker holds the lock of scope {scope}")

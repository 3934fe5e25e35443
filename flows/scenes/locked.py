"""A run under its scope's lock, again on top of what a person wrote meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stores.coordination import ScopeLocks
from stores.scenes import GenerationMoved, SceneFolder

__all__ = ["under_lock"]

_LOCK_TTL_S = 60.0
_MOVED_TRIES = 5

T = TypeVar("T")


async def under_lock(
    folder: SceneFolder,
    locks: ScopeLocks,
    layer: str,
    scope: str,
    run: Callable[[int], Awaitable[T]],
    moved: Callable[[], None] = lambda: None,
) -> T:
    """Run with the fencing token of the scope's lock, and let go of it in any case.

    Raises what the lock and ``run`` raise; :class:`~stores.scenes.GenerationMoved` only when a
    person was in between every time.

    :arg layer: what is locked of the scope, so that scenes and persona do not wait for each
        other.
    :arg moved: told each time a person was in between.
    """
    newest = await asyncio.to_thread(folder.newest_token, scope)
    fence = await asyncio.to_thread(
        lambda: locks.acquire(f"{layer}/{scope}", _LOCK_TTL_S, above=newest)
    )
    try:
        tries = 0
        while True:
            try:
                return await run(fence.token)
            except GenerationMoved:
                moved()
                tries += 1
                if tries == _MOVED_TRIES:
                    raise
    finally:
        await asyncio.to_thread(fence.release)

"""Blocking calls that are asked for at the same moment, made together, in one go to a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["Together"]

A = TypeVar("A")
R = TypeVar("R")


class Together(Generic[A, R]):
    """Awaited like one call of a thread: what is asked before the loop looks up goes together.

    In threads, because what is far away can hang, and a loop serves every call. Several in one,
    because going to a thread and back takes a tenth of a millisecond of processor time.

    :arg work: blocking; gives a result, or the error to be raised, for each that was asked.
    :arg most: asked at once at most; more would wait long for one another.
    """

    def __init__(
        self, work: Callable[[Sequence[A]], Sequence[R | Exception]], *, most: int = 16
    ) -> None:
        """Nothing is called before the first is asked."""
        self._work = work
        self._most = most
        self._asked: dict[asyncio.AbstractEventLoop, list[tuple[A, asyncio.Future[R]]]] = {}

    async def __call__(self, asked: A) -> R:
        """Ask, and give the result. Raises the error that ``work`` gave, or raised."""
        loop = asyncio.get_running_loop()
        if loop not in self._asked:
            self._asked[loop] = []
            loop.call_soon(self._begin, loop)
        result: asyncio.Future[R] = loop.create_future()
        self._asked[loop].append((asked, result))
        return await result

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = self._asked.pop(loop)
        for start in range(0, len(asked), self._most):
            loop.run_in_executor(None, self._run, loop, asked[start : start + self._most])

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        asked: Sequence[tuple[A, asyncio.Future[R]]],
    ) -> None:
        results: Sequence[R | Exception]
        try:
            results = self._work([one for one, _ in asked])
        except Exception as error:
            results = [error] * len(asked)
        futures = [future for _, future in asked]
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
            loop.call_soon_threadsafe(_tell, futures, results)


def _tell(futures: Sequence[asyncio.Future[R]], results: Sequence[R | Exception]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.done():  # cancelled
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

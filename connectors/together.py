"""Blocking calls that are asked for at the same moment, made together, in one go to a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Together"]

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Asked(Generic[A, R]):
    asked: A
    result: asyncio.Future[R]
    context: Context


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
        self._asked: dict[asyncio.AbstractEventLoop, list[_Asked[A, R]]] = {}

    async def __call__(self, asked: A) -> R:
        """Ask, and give the result. Raises the error that ``work`` gave, or raised."""
        loop = asyncio.get_running_loop()
        if loop not in self._asked:
            self._asked[loop] = []
            loop.call_soon(self._begin, loop)
        result: asyncio.Future[R] = loop.create_future()
        self._asked[loop].append(_Asked(asked, result, copy_context()))
        return await result

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = self._asked.pop(loop)
        for start in range(0, len(asked), self._most):
            together = asked[start : start + self._most]
            # In the context of the first: it is in its trace.
            loop.run_in_executor(None, together[0].context.run, self._run, loop, together)

    def _run(self, loop: asyncio.AbstractEventLoop, asked: Sequence[_Asked[A, R]]) -> None:
        results: Sequence[R | BaseException]
        try:
            results = self._work([one.asked for one in asked])
        except BaseException as error:  # whatever it is: who asked must not wait for ever
            results = [error] * len(asked)
        futures = [one.result for one in asked]
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
            loop.call_soon_threadsafe(_tell, futures, results)


def _tell(futures: Sequence[asyncio.Future[R]], results: Sequence[R | BaseException]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.done():  # cancelled
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

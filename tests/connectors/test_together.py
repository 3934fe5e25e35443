"""Calls that go to a thread together: each hears what became of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar

import pytest

from connectors.together import Together

WHERE: ContextVar[str] = ContextVar("WHERE", default="nowhere")


class Died(BaseException):
    """What no ``except Exception`` catches."""


def test_what_is_asked_at_one_moment_goes_together_and_each_gets_its_own() -> None:
    goes: list[list[int]] = []

    def work(asked: Sequence[int]) -> list[int | Exception]:
        goes.append([*asked])
        return [ValueError(str(one)) if one % 2 else 10 * one for one in asked]

    async def run() -> list[int | BaseException]:
        ask = Together(work, most=3)
        return await asyncio.gather(*map(ask, range(5)), return_exceptions=True)

    results = asyncio.run(run())
    assert sorted(goes) == [[0, 1, 2], [3, 4]]
    assert [str(one) for one in results] == ["0", "1", "20", "3", "40"]


def test_whatever_the_work_raises_everybody_hears_it() -> None:
    def work(asked: Sequence[int]) -> list[int | Exception]:
        raise Died

    async def run() -> None:
        ask = Together(work)
        waiting = [asyncio.ensure_future(ask(one)) for one in range(2)]
        for one in waiting:
            with pytest.raises(Died):
                await asyncio.wait_for(one, 30)

    asyncio.run(run())


def test_the_work_is_done_in_the_context_of_who_asked_first() -> None:
    async def run() -> str:
        WHERE.set("in the stage")
        return await Together[int, str](lambda asked: [WHERE.get() for _ in asked])(1)

    assert asyncio.run(run()) == "in the stage"

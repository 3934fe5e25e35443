"""The service that tools call is exchanged between two calls, never within one."""

from __future__ import annotations

import asyncio
from typing import cast

from connectors.mcp.following import ServiceInUse
from connectors.query.service import Service

OLD, NEW = cast(Service, "old"), cast(Service, "new")


def test_a_call_under_way_ends_where_it_began_and_only_then_the_old_one_may_be_closed() -> None:
    async def scene() -> None:
        in_use, gate = ServiceInUse(OLD), asyncio.Event()

        async def call() -> Service:
            async with in_use.using() as service:
                await gate.wait()
                return service

        under_way = asyncio.create_task(call())
        await asyncio.sleep(0)
        switching = asyncio.create_task(in_use.switch(NEW))
        await asyncio.sleep(0)
        assert in_use.current == NEW
        later = asyncio.create_task(call())
        await asyncio.sleep(0)
        assert not switching.done(), "the old one is still in use"
        gate.set()
        assert (await under_way, await later) == (OLD, NEW)
        await asyncio.wait_for(switching, 5)

    asyncio.run(scene())


def test_a_call_that_fails_lets_go_too() -> None:
    async def scene() -> None:
        in_use = ServiceInUse(OLD)
        try:
            async with in_use.using():
                switching = asyncio.create_task(in_use.switch(NEW))
                await asyncio.sleep(0)
                message = "in the middle of it"
                raise ValueError(message)
        except ValueError:
            pass
        await asyncio.wait_for(switching, 5)

    asyncio.run(scene())


def test_nobody_is_waited_for_where_nobody_calls() -> None:
    async def scene() -> None:
        in_use = ServiceInUse(OLD)
        await asyncio.wait_for(in_use.switch(NEW), 5)
        async with in_use.using() as service:
            assert service == NEW

    asyncio.run(scene())

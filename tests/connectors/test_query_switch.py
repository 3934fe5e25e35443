"""Exchanging what serves, while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from connectors.query.switch import SwitchedApp


def app(name: str, lives: list[str], gate: asyncio.Event | None = None) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        lives.append(f"{name} begins")
        yield
        lives.append(f"{name} ends")

    made = FastAPI(lifespan=lifespan)

    @made.get("/")
    async def who() -> str:
        if gate is not None:
            await gate.wait()
        return name

    return made


def run(scene: Callable[[SwitchedApp, httpx.AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def all_of_it() -> None:
        switched = SwitchedApp()
        transport = httpx.ASGITransport(switched)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await scene(switched, client)
        await switched.aclose()

    asyncio.run(all_of_it())


def test_a_request_under_way_ends_where_it_began_and_the_next_is_the_new_ones() -> None:
    lives: list[str] = []

    async def scene(switched: SwitchedApp, client: httpx.AsyncClient) -> None:
        gate = asyncio.Event()
        await switched.switch(app("old", lives, gate))
        under_way = asyncio.create_task(client.get("/"))
        await asyncio.sleep(0.01)
        switching = asyncio.create_task(switched.switch(app("new", lives)))
        await asyncio.sleep(0.01)
        assert (await client.get("/")).json() == "new"
        assert not switching.done()
        assert lives == ["old begins", "new begins"]  # the old one may not be closed yet
        gate.set()
        assert (await under_way).json() == "old"
        await switching
        assert lives[2:] == ["old ends"]

    run(scene)
    assert lives[3:] == ["new ends"]


def test_an_app_that_does_not_start_changes_nothing() -> None:
    @asynccontextmanager
    async def broken(_: FastAPI) -> AsyncIterator[None]:
        message = "no"
        raise ValueError(message)
        yield

    async def scene(switched: SwitchedApp, client: httpx.AsyncClient) -> None:
        await switched.switch(app("old", []))
        with pytest.raises(ValueError, match="no"):
            await switched.switch(FastAPI(lifespan=broken))
        assert (await client.get("/")).json() == "old"

    run(scene)


def test_nothing_is_served_before_there_is_something() -> None:
    async def scene(switched: SwitchedApp, client: httpx.AsyncClient) -> None:
        with pytest.raises(RuntimeError, match="anything to serve"):
            await client.get("/")

    run(scene)

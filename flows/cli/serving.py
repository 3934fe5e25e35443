"""What ``serve``, ``up`` and ``mcp`` share: the port, the service, the generation served."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from connectors.settings import Settings
from flows import PIPELINE
from flows.cli.common import err
from flows.runner import SystemClock, rare_gc
from stores.errors import SedimentError, SettingsError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from connectors.query.service import Service
    from connectors.query.switch import SwitchedApp
    from flows.opening import Log
    from stores.milvus import MilvusStore
    from stores.protocols import Embedder
    from stores.records import OutRecord
    from stores.scenes import HeatCounters

__all__ = ["Following", "Side", "answer_over_http", "listen", "opened_service", "run_http"]

_POLL_S = 0.1
_LOOK_S = 1.0
"""Seconds between two looks at which generation is promoted."""


class Side(Protocol):
    """One generation, opened to be served. Opening and closing block."""

    settings: Settings
    service: Service

    def start(self) -> None:
        """Begin what it does beside answering, once the side before it is closed."""
        ...

    def close(self) -> None:
        """Close everything that it opened."""
        ...


S = TypeVar("S", bound=Side)


class Following(Generic[S]):
    """The generation that counts, opened, and after it each that is promoted.

    Where a setting names a generation it stays with that one. One that cannot be opened is said
    once, and the one before goes on.

    :arg opened: opens a generation; blocking.
    :arg moved: says whether the store must be opened anew, as its owner was started again.
    """

    def __init__(
        self,
        settings: Settings,
        opened: Callable[[Settings], S],
        moved: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._opened = opened
        self._moved = moved
        self._lost_store = False
        self._refused = ""

    async def __aenter__(self) -> Following[S]:
        from flows.opening import generation_log, resolved

        named = self._settings.generation
        self._watch = None if named else generation_log(self._settings).watch()
        self.side = await asyncio.to_thread(self._opened, resolved(self._settings))
        await self.side.service.recall.warm_up()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()
        await asyncio.to_thread(self.side.close)

    async def look(self, switch: Callable[[S], Awaitable[None]]) -> None:
        """Go over to the generation that was promoted, or to the store's new owner, if need be.

        :arg switch: gives the calls that begin from now on to a side; returns once those of the
            side before have ended.
        """
        from flows.opening import in_generation

        generation = before = self.side.settings.generation_name
        if self._watch is not None:
            generation = await asyncio.to_thread(self._watch.look)
        self._lost_store |= await asyncio.to_thread(self._moved)
        if generation == before and not self._lost_store:
            return
        try:
            await self._go_over(in_generation(self._settings, generation), switch)
        except SedimentError as error:
            if self._refused != error.message:  # looked at again every second
                self._refused = error.message
                err.print(
                    f"cannot serve generation {generation}, still serving "
                    f"{before}: {error.message}",
                    style="red",
                    markup=False,
                )
        else:
            self._refused, self._lost_store = "", False
            if generation == before:
                err.print("the store's owner was started again: reading through it")
            else:
                err.print(f"serving generation {generation}")

    async def _go_over(self, settings: Settings, switch: Callable[[S], Awaitable[None]]) -> None:
        side = await asyncio.to_thread(self._opened, settings)
        try:
            await side.service.recall.warm_up()
            await switch(side)
        except BaseException:
            await asyncio.to_thread(side.close)
            raise
        before, self.side = self.side, side
        await asyncio.to_thread(before.close)
        side.start()

    @asynccontextmanager
    async def looking(self, switch: Callable[[S], Awaitable[None]]) -> AsyncIterator[None]:
        """Look every second while the block runs; a look that has begun is brought to its end."""
        over = asyncio.Event()

        async def look_on() -> None:
            while not over.is_set():
                await self.look(switch)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(over.wait(), _LOOK_S)

        task = asyncio.create_task(look_on())
        try:
            yield
        finally:
            over.set()
            await task


async def answer_over_http(
    following: Following[S],
    app_of: Callable[[S], Starlette],
    listening: socket.socket,
    *,
    over: Callable[[], bool],
    said: str,
) -> None:
    """Serve the app of the generation that counts until ``over``, or until the server has ended.

    :arg said: told once it answers, in front of its address.
    """
    from connectors.query.switch import SwitchedApp

    switched = SwitchedApp()

    async def switch(side: S) -> None:
        await switched.switch(app_of(side))

    await switch(following.side)
    following.side.start()
    server = _server(switched, following.side.settings)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    told, looked_at = False, 0.0
    try:
        while not serving.done() and not over():
            if server.started and not told:
                told = True
                host, port = listening.getsockname()[:2]
                err.print(said.format(address=f"http://{host}:{port}"))
            if time.monotonic() - looked_at >= _LOOK_S:
                await following.look(switch)
                looked_at = time.monotonic()
            await asyncio.sleep(_POLL_S)
    finally:
        server.should_exit = True
        try:
            await serving
        except OSError as error:  # another process bound the port as well, and listened first
            raise _not_listening(following.side.settings, error) from None
        await switched.aclose()


def run_http(serving: Callable[[], Awaitable[None]]) -> None:
    """Run what serves over HTTP to its end.

    On uvloop, with which there are a tenth more recalls a second, and a twentieth more because
    the collector of cycles looks rarely.
    """
    import anyio

    rare_gc()
    anyio.run(serving, backend_options={"use_uvloop": True})


def listen(settings: Settings) -> socket.socket:
    """Take the port before anything is opened: uvicorn would end the process over a taken one.

    Until uvicorn listens on it, callers are refused. They would wait for all of the start
    otherwise, and a balancer would not go to another service.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with ExitStack() as closing:
            taken = closing.enter_context(socket.socket(family))
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as after a restart
            if family == socket.AF_INET6:
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taken.bind((settings.host, settings.port))
            closing.pop_all()
            return taken
    except OSError as error:
        raise _not_listening(settings, error) from None


def _not_listening(settings: Settings, error: OSError) -> SettingsError:
    message = (
        f"SEDIMENT_PORT: cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
        "choose another one with --port"
    )
    return SettingsError(message)


def opened_service(
    settings: Settings,
    log: Log,
    store: MilvusStore,
    embedder: Embedder,
    heat: HeatCounters | None = None,
) -> AbstractContextManager[Service]:
    """Build the service over one generation's store; its readiness asks log and store."""
    from connectors.query.service import open_service

    def append(records: list[OutRecord]) -> None:
        log.appender.append(records)

    def look_at_log() -> None:
        log.reader.end_offsets(settings.topic("l0.events"))

    def look_at_store() -> None:
        store.describe()

    return open_service(
        settings,
        store=store,
        embedder=embedder,
        append=append,
        checks={"log": look_at_log, "milvus": look_at_store},
        clock=SystemClock(),
        pipeline=PIPELINE,
        heat=heat,
    )


def _server(switched: SwitchedApp, settings: Settings) -> uvicorn.Server:
    import uvicorn

    from connectors.query.app import server_config

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals to :func:`flows.runner.stop_on_signals`: the store is closed first."""
            yield

    config = server_config(switched, settings)
    config.lifespan = "off"  # the switch runs it, of every app it serves
    return Server(config)

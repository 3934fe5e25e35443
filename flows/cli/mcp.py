"""``sediment mcp``: memory as tools for an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, cast

import typer

from connectors import tracing
from connectors.settings import ScopeField, Settings
from flows import PIPELINE
from flows.cli.common import Brokers, DataDir, err, settings_from
from flows.cli.serve import listen
from flows.runner import StopSignal, SystemClock, stop_on_signals
from stores.errors import SedimentError, SettingsError

if TYPE_CHECKING:
    from socket import socket

    import uvicorn
    from fastapi import FastAPI

    from connectors.query.auth import Credential, Keys
    from connectors.query.service import Service
    from flows.generations import PointerWatch
    from flows.opening import StoreServer
    from stores.protocols import Embedder
    from stores.records import OutRecord

__all__ = ["mcp"]

_POLL_S = 0.1
_LOOK_S = 1.0
"""Seconds between two looks at which generation is promoted."""


def mcp(
    tenant: Annotated[str, typer.Option("--tenant", help="Whose memory, on stdio.")] = "",
    agent: Annotated[str, typer.Option("--agent", help="Whose memory, on stdio.")] = "",
    user: Annotated[str, typer.Option("--user", help="Whose memory, on stdio.")] = "",
    team: Annotated[str, typer.Option("--team", help="Whose memory, on stdio.")] = "",
    http: Annotated[
        bool, typer.Option("--http", help="Serve over HTTP under /mcp instead of stdio.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="Address to bind to, with --http [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to bind to, with --http [default: 8080]")
    ] = None,
    data_dir: DataDir = None,
    brokers: Brokers = None,
) -> None:
    """Serve recall, search, remember and forget as tools of the Model Context Protocol.

    On stdio it is for one program that starts it, and acts on the memory that --tenant, --agent
    and --user name; with Kafka or a Milvus server, or when it is set, with the rights of the key
    in SEDIMENT_MCP_KEY. Over HTTP every request carries its API key. A flow must run beside it
    (`sediment up`), so that what is remembered becomes memory. When another generation is
    promoted it goes over to that one.

    Example: sediment mcp --tenant demo --agent companion --user ana
    """
    settings = settings_from(data_dir=data_dir, brokers=brokers, host=host, port=port)
    if http:
        if tenant or agent or user or team:
            message = "--http: the scope comes from each request's key; leave the ids out"
            raise SettingsError(message)
        _serve_http(settings)
        return
    asked: dict[ScopeField, str | None] = {
        "tenant": tenant or None,
        "team": team or None,
        "agent": agent or None,
        "user": user or None,
    }
    _serve_stdio(settings, asked)


def _serve_stdio(settings: Settings, asked: dict[ScopeField, str | None]) -> None:
    from mcp.server.mcpserver import Context

    from connectors.mcp.following import ServiceInUse
    from connectors.mcp.tools import memory_server
    from connectors.query.audit_log import CallNote
    from connectors.query.keys_file import load_keys
    from connectors.query.service import Caller

    keys = load_keys(settings)
    _credential(settings, keys, asked)  # what is wrong with it is said before anything is opened

    async def caller_of(_ctx: Context) -> Caller:
        # Looked up each time: a key may have been revoked since.
        credential = _credential(settings, keys, asked)
        return Caller(credential, CallNote(key=credential.id))

    async def serving() -> None:
        async with _Following(settings) as following:
            in_use = ServiceInUse(following.service)
            following.tell(in_use.switch)
            await memory_server(in_use, caller_of).run_stdio_async()

    asyncio.run(serving())


def _credential(
    settings: Settings, keys: Keys | None, asked: dict[ScopeField, str | None]
) -> Credential:
    """Find out for whom it acts: the key, or what was asked for on this machine's own data."""
    from connectors.query.auth import Credential

    key = settings.mcp_key.get_secret_value()
    if key:
        found = keys.find(key) if keys is not None else None
        if found is None:
            message = "mcp_key: no valid key of SEDIMENT_API_KEYS_FILE"
            raise SettingsError(message)
    elif settings.embedded and not settings.milvus_uri:
        found = Credential(id="stdio")
    else:
        message = (
            "mcp_key: not set; with Kafka or a Milvus server SEDIMENT_MCP_KEY must hold an API key "
            "(`sediment keys create` makes one)"
        )
        raise SettingsError(message)
    parts = found.narrow(asked, (*settings.scope_fields, "tenant", "agent", "user"))
    return Credential(
        id=found.id,
        tenant=parts["tenant"],
        team=parts.get("team"),
        agent=parts["agent"],
        user=parts["user"],
        rights=found.rights,
    )


def _serve_http(settings: Settings) -> None:
    from connectors.mcp.http import MCP_PATH, http_app
    from connectors.query.app import server_config
    from connectors.query.keys_file import check_bind
    from connectors.query.switch import SwitchedApp

    check_bind(settings.host, settings)

    async def serving(listening: socket) -> None:
        switched = SwitchedApp()

        async def switch(service: Service) -> None:
            # All that it asks of an app is its lifespan, which any Starlette app has.
            await switched.switch(cast("FastAPI", http_app(service)))

        async with _Following(settings) as following:
            await switch(following.service)
            following.tell(switch)
            config = server_config(switched, settings)
            config.lifespan = "off"  # the switch runs it, of every app it serves
            server = _server(config)
            host, port = listening.getsockname()[:2]
            running = asyncio.create_task(server.serve(sockets=[listening]))
            told = False
            try:
                while not running.done() and not stop():
                    if server.started and not told:
                        told = True
                        err.print(f"serving tools on http://{host}:{port}{MCP_PATH}")
                    await asyncio.sleep(_POLL_S)
            finally:
                server.should_exit = True
                await running
                await following.rest()
                await switched.aclose()

    stop = StopSignal()
    with (
        stop_on_signals(stop),
        tracing.traced_process(settings, "mcp"),
        listen(settings) as listening,
    ):
        asyncio.run(serving(listening))


def _server(config: uvicorn.Config) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals to :func:`flows.runner.stop_on_signals`: the store is closed first."""
            yield

    return Server(config)


class _Following:
    """The service over the generation that counts, and over each that is promoted later.

    Where a setting names a generation it stays with that one. One that cannot be opened is said
    once, and the one before goes on.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._refused = ""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _Following:
        from connectors.embeddings import make_embedder
        from flows.opening import generation_log, open_store_server, resolved

        self._stack = ExitStack()
        with ExitStack() as stack:
            self._embedder = make_embedder(self._settings)
            self._server = stack.enter_context(open_store_server(self._settings, write=False))
            self._watch = (
                None if self._settings.generation else generation_log(self._settings).watch()
            )
            if self._watch is not None:
                stack.callback(self._watch.close)
            self._opened = await asyncio.to_thread(self._open, resolved(self._settings))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.rest()
        await asyncio.to_thread(self._opened.close)
        await asyncio.to_thread(self._stack.close)

    @property
    def service(self) -> Service:
        """Give the service over the generation that counts now."""
        return self._opened.service

    def tell(self, switch: Callable[[Service], Awaitable[None]]) -> None:
        """Look for a promotion every second from now on, and go over with ``switch``."""
        if self._watch is not None:
            self._task = asyncio.create_task(self._follow(self._watch, switch))

    async def rest(self) -> None:
        """Look no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _follow(
        self, watch: PointerWatch, switch: Callable[[Service], Awaitable[None]]
    ) -> None:
        from flows.opening import in_generation

        while True:
            generation = await asyncio.to_thread(watch.look)
            if generation != self._opened.generation:
                try:
                    await self._go_over(in_generation(self._settings, generation), switch)
                except SedimentError as error:
                    if self._refused != error.message:
                        self._refused = error.message
                        err.print(
                            f"cannot serve generation {generation}, still serving "
                            f"{self._opened.generation}: {error.message}",
                            style="red",
                            markup=False,
                        )
            await asyncio.sleep(_LOOK_S)

    async def _go_over(
        self, settings: Settings, switch: Callable[[Service], Awaitable[None]]
    ) -> None:
        opened = await asyncio.to_thread(self._open, settings)
        try:
            await switch(opened.service)
        except BaseException:
            await asyncio.to_thread(opened.close)
            raise
        before, self._opened, self._refused = self._opened, opened, ""
        err.print(f"serving generation {opened.generation}")
        await asyncio.to_thread(before.close)

    def _open(self, settings: Settings) -> _Opened:
        return _Opened(settings, self._embedder, self._server)


class _Opened:
    """The service over one generation. Opening and closing block."""

    def __init__(self, settings: Settings, embedder: Embedder, server: StoreServer) -> None:
        from connectors.query.service import open_service
        from flows.opening import open_log, open_store

        self.generation = settings.generation_name
        log = open_log(settings)

        def append(records: list[OutRecord]) -> None:
            log.appender.append(records)

        def look_at_log() -> None:
            log.reader.end_offsets(settings.topic("l0.events"))

        def look_at_store() -> None:
            store.describe()

        with ExitStack() as stack:
            store = stack.enter_context(open_store(settings, embedder, write=False, server=server))
            self.service = stack.enter_context(
                open_service(
                    settings,
                    store=store,
                    embedder=embedder,
                    append=append,
                    checks={"log": look_at_log, "milvus": look_at_store},
                    clock=SystemClock(),
                    pipeline=PIPELINE,
                )
            )
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close everything."""
        self._stack.close()

"""``sediment serve`` and ``sediment up``: the query service, alone or with the flow beside it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from connectors import tracing
from connectors.settings import Settings
from flows import PIPELINE
from flows.cli.common import Brokers, DataDir, err, settings_from
from flows.cli.run import extractor_line
from flows.progress import FLOWS, source_topic
from flows.runner import FlowRun, StopSignal, SystemClock, stop_on_signals
from stores.errors import SedimentError, SettingsError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from connectors.query.switch import SwitchedApp
    from flows.generations import PointerWatch
    from flows.opening import StoreServer
    from stores.milvus import MilvusStore
    from stores.protocols import Embedder
    from stores.records import OutRecord
    from stores.scenes import HeatCounters

__all__ = ["listen", "serve", "up"]

_POLL_S = 0.1
_LOOK_S = 1.0
"""Seconds between two looks at which generation is promoted."""

Host = Annotated[str | None, typer.Option(help="Address to bind to [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port to bind to [default: 8080]")]


def serve(
    host: Host = None, port: Port = None, data_dir: DataDir = None, brokers: Brokers = None
) -> None:
    """Answer recall over HTTP, and take events in. The API is described at /docs.

    What is remembered, and how the pipeline stands, is shown to people at /ui.

    Binds to this machine only, unless SEDIMENT_API_KEYS_FILE says who may call
    (`sediment keys create` makes a key). When another generation is promoted it goes over to
    that one, without a failed request, unless SEDIMENT_GENERATION names one.

    Example: sediment serve --port 8080
    """
    settings = settings_from(host=host, port=port, data_dir=data_dir, brokers=brokers)
    _serve(settings, with_flow=False)


def up(host: Host = None, port: Port = None, data_dir: DataDir = None) -> None:
    """Run the flow and the query service together on one data folder, for a laptop.

    When another generation is promoted, both go over to it.

    Example: sediment up --data-dir .sediment
    """
    settings = settings_from(host=host, port=port, data_dir=data_dir, brokers="")
    err.print(extractor_line(settings))
    _serve(settings, with_flow=True)


def _serve(settings: Settings, *, with_flow: bool) -> None:
    from connectors.embeddings import make_embedder
    from connectors.query.keys_file import check_bind
    from flows.opening import open_store_server

    check_bind(settings.host, settings)
    embedder = make_embedder(settings)
    stop = StopSignal()
    with (
        stop_on_signals(stop),
        tracing.traced_process(settings, "up" if with_flow else "query"),
        listen(settings) as listening,
        open_store_server(settings, write=with_flow) as store_server,
    ):

        def opened(one: Settings) -> _Side:
            return _Side(one, embedder, store_server, with_flow=with_flow)

        asyncio.run(_Service(settings, opened, stop).run(listening))


class _Side:
    """One generation, served and filled: its store, its app, its flow."""

    def __init__(
        self, settings: Settings, embedder: Embedder, server: StoreServer, *, with_flow: bool
    ) -> None:
        """Open everything; nothing flows yet."""
        from flows.layer_parts import open_heat
        from flows.parts import flow_parts, open_store, recovery_folder
        from flows.topology import build_flow

        self.settings = settings
        self._stop = StopSignal()
        self._flow: FlowRun | None = None
        with ExitStack() as stack:
            store = stack.enter_context(
                open_store(settings, embedder, write=with_flow, server=server)
            )
            # Hits that this process alone knows of are for its own flow to fold in.
            shared = with_flow or settings.redis_url
            heat = stack.enter_context(open_heat(settings)) if shared else None
            if with_flow:
                parts = stack.enter_context(
                    flow_parts(
                        settings,
                        "all",
                        self._stop,
                        follow=True,
                        opened=(store, embedder),
                        heat=heat,
                    )
                )
                self._flow = FlowRun(
                    lambda: build_flow("all", parts),
                    recovery_folder(settings, "all"),
                    timedelta(seconds=settings.snapshot_interval_s),
                )
            own = ("all",) if with_flow else ()
            self.app = stack.enter_context(_app(settings, store, embedder, heat, own))
            self._opened = stack.pop_all()
        self._started = False

    def start(self) -> None:
        """Begin to fill the generation, where this process does that."""
        if self._flow is not None:
            self._flow.start()
            self._started = True

    @property
    def running(self) -> bool:
        """False once its flow has ended by itself."""
        return self._flow is None or not self._started or self._flow.running

    def close(self) -> None:
        """Stop the flow and close everything. Raises what ended the flow, if that was an error."""
        with self._opened:
            self._stop.set()
            if self._flow is not None and self._started:
                self._flow.wait()


class _Service:
    """The query service, always over the generation that counts.

    :arg opened: opens a generation; blocking.
    """

    def __init__(
        self, settings: Settings, opened: Callable[[Settings], _Side], stop: StopSignal
    ) -> None:
        from connectors.query.switch import SwitchedApp

        self._settings = settings
        self._opened = opened
        self._stop = stop
        self._switched = SwitchedApp()
        self._refused = ""

    async def run(self, listening: socket.socket) -> None:
        """Serve until asked to stop, or until the flow beside it has ended."""
        from flows.opening import generation_log, resolved

        watch = None if self._settings.generation else generation_log(self._settings).watch()
        self._side = await asyncio.to_thread(self._opened, resolved(self._settings))
        try:
            await self._switched.switch(self._side.app)
            self._side.start()
            server = _server(self._switched, self._side.app, self._settings)
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                await self._watch(server, serving, watch, listening)
            finally:
                server.should_exit = True
                await serving
                await self._switched.aclose()
        finally:
            if watch is not None:
                watch.close()
            await asyncio.to_thread(self._side.close)

    async def _watch(
        self,
        server: uvicorn.Server,
        serving: asyncio.Task[None],
        watch: PointerWatch | None,
        listening: socket.socket,
    ) -> None:
        told, looked_at = False, 0.0
        while not serving.done() and not self._stop() and self._side.running:
            if server.started and not told:
                told = True
                host, port = listening.getsockname()[:2]
                err.print(f"serving on http://{host}:{port} (status at /ui, API at /docs)")
            if watch is not None and time.monotonic() - looked_at >= _LOOK_S:
                await self._follow(await asyncio.to_thread(watch.look))
                looked_at = time.monotonic()
            await asyncio.sleep(_POLL_S)

    async def _follow(self, generation: str) -> None:
        """Go over to the generation that was promoted; stay where that cannot be done."""
        from flows.opening import in_generation

        if generation == self._side.settings.generation_name:
            return
        try:
            await self._go_over(in_generation(self._settings, generation))
        except SedimentError as error:
            if self._refused != error.message:  # looked at again every second: said once
                self._refused = error.message
                err.print(
                    f"cannot serve generation {generation}, still serving "
                    f"{self._side.settings.generation_name}: {error.message}",
                    style="red",
                    markup=False,
                )
        else:
            self._refused = ""
            err.print(f"serving generation {generation}")

    async def _go_over(self, settings: Settings) -> None:
        """Open a generation, give it the requests that begin from now on, close the one before."""
        side = await asyncio.to_thread(self._opened, settings)
        try:
            await self._switched.switch(side.app)
        except BaseException:
            await asyncio.to_thread(side.close)
            raise
        before, self._side = self._side, side
        await asyncio.to_thread(before.close)
        side.start()


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
        message = (
            f"SEDIMENT_PORT: cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "choose another one with --port"
        )
        raise SettingsError(message) from None


@contextmanager
def _app(
    settings: Settings,
    store: MilvusStore,
    embedder: Embedder,
    heat: HeatCounters | None,
    own_flows: tuple[str, ...],
) -> Iterator[FastAPI]:
    """Build the service over one generation's store; its page names the flows beside it."""
    from connectors.query.app import create_app
    from connectors.query.service import open_service
    from connectors.query.ui.standing import FlowPlace, LogView
    from flows.opening import consumer_group, open_log

    log = open_log(settings)
    flows: dict[str, FlowPlace] = {
        name: FlowPlace(consumer_group(settings, name), settings.topic(source_topic(name)))
        for name in FLOWS
    }

    def append(records: list[OutRecord]) -> None:
        log.appender.append(records)

    def look_at_log() -> None:
        log.reader.end_offsets(settings.topic("l0.events"))

    def look_at_store() -> None:
        store.describe()

    with open_service(
        settings,
        store=store,
        embedder=embedder,
        append=append,
        checks={"log": look_at_log, "milvus": look_at_store},
        clock=SystemClock(),
        pipeline=PIPELINE,
        heat=heat,
    ) as service:
        yield create_app(service, log=LogView(log.reader, flows, own_flows))


def _server(switched: SwitchedApp, app: FastAPI, settings: Settings) -> uvicorn.Server:
    import uvicorn

    from connectors.query.app import server_config

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals to :func:`flows.runner.stop_on_signals`."""
            yield

    config = server_config(app, settings)
    config.app = switched
    config.lifespan = "off"  # the switch runs it, of every app it serves
    return Server(config)

"""``sediment serve`` and ``sediment up``: the query service, alone or with the flow beside it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.settings import Settings
from flows.cli.common import Brokers, DataDir, err, settings_from
from flows.cli.run import extractor_line
from flows.runner import FlowRun, StopSignal, stop_on_signals
from flows.topology import build_flow
from stores.errors import SettingsError

if TYPE_CHECKING:
    import uvicorn

    from stores.milvus import MilvusStore
    from stores.protocols import Embedder
    from stores.records import OutRecord

__all__ = ["serve", "up"]

_POLL_S = 0.1

Host = Annotated[str | None, typer.Option(help="Address to bind to [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port to bind to [default: 8080]")]


def serve(
    host: Host = None, port: Port = None, data_dir: DataDir = None, brokers: Brokers = None
) -> None:
    """Answer recall over HTTP, and take events in. The API is described at /docs.

    Binds to this machine only, unless SEDIMENT_API_KEYS_FILE says who may call
    (`sediment keys create` makes a key).

    Example: sediment serve --port 8080
    """
    from connectors.embeddings import make_embedder
    from connectors.query.auth import check_bind
    from flows.parts import open_store

    settings = settings_from(host=host, port=port, data_dir=data_dir, brokers=brokers)
    check_bind(settings.host, settings)
    embedder = make_embedder(settings)
    stop = StopSignal()
    with (
        stop_on_signals(stop),
        _listen(settings) as listening,
        open_store(settings, embedder, write=False) as store,
        _server(settings, store, embedder) as server,
    ):
        asyncio.run(_until(server, listening, stop, None))


def up(host: Host = None, port: Port = None, data_dir: DataDir = None) -> None:
    """Run the flow and the query service together on one data folder, for a laptop.

    Example: sediment up --data-dir .sediment
    """
    from connectors.embeddings import make_embedder
    from connectors.query.auth import check_bind
    from flows.parts import flow_parts, open_store, recovery_folder

    settings = settings_from(host=host, port=port, data_dir=data_dir, brokers="")
    check_bind(settings.host, settings)
    embedder = make_embedder(settings)
    stop = StopSignal()
    err.print(extractor_line(settings))
    with (
        stop_on_signals(stop),
        _listen(settings) as listening,
        open_store(settings, embedder, write=True) as store,
        flow_parts(settings, "all", stop, follow=True, opened=(store, embedder)) as parts,
        _server(settings, store, embedder) as server,
    ):
        flow_run = FlowRun(
            lambda: build_flow("all", parts),
            recovery_folder(settings, "all"),
            timedelta(seconds=settings.snapshot_interval_s),
        )
        flow_run.start()
        try:
            asyncio.run(_until(server, listening, stop, flow_run))
        finally:
            stop.set()
            flow_run.wait()


async def _until(
    server: uvicorn.Server, listening: socket.socket, stop: StopSignal, flow: FlowRun | None
) -> None:
    """Serve until asked to stop, or until the flow beside it has ended."""
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    told = False
    while not serving.done() and not stop() and (flow is None or flow.running):
        if server.started and not told:
            told = True
            host, port = listening.getsockname()[:2]
            err.print(f"serving on http://{host}:{port} (API at /docs)")
        await asyncio.sleep(_POLL_S)
    server.should_exit = True
    await serving


def _listen(settings: Settings) -> socket.socket:
    """Take the port before anything is opened: uvicorn would end the process over a taken one."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        message = (
            f"SEDIMENT_PORT: cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "choose another one with --port"
        )
        raise SettingsError(message) from None


@contextmanager
def _server(settings: Settings, store: MilvusStore, embedder: Embedder) -> Iterator[uvicorn.Server]:
    import uvicorn

    from connectors.query.app import create_app, server_config
    from connectors.query.auth import load_keys
    from connectors.query.recall import Recall
    from flows.parts import open_log

    log = open_log(settings)

    def append(records: list[OutRecord]) -> None:
        log.appender.append(records)

    def look_at_log() -> None:
        log.reader.end_offsets(settings.topic("l0.events"))

    def look_at_store() -> None:
        store.describe()

    recall = Recall.of(settings, store, embedder, full_text=store.full_text)
    app = create_app(
        recall=recall,
        append=append,
        settings=settings,
        keys=load_keys(settings),
        checks={"log": look_at_log, "milvus": look_at_store},
        atoms=store,
        events=store,
    )

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals to :func:`flows.runner.stop_on_signals`."""
            yield

    try:
        yield Server(server_config(app, settings))
    finally:
        recall.close()

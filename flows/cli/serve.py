"""``sediment serve`` and ``sediment up``: the query service, alone or with the flow beside it."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from connectors import tracing
from connectors.settings import Settings
from flows.cli.common import Brokers, DataDir, err, settings_from
from flows.cli.run import extractor_line
from flows.cli.serving import Following, answer_over_http, listen, opened_service, run_http
from flows.progress import FLOWS, source_topic
from flows.runner import STOPPING, FlowRun, StopSignal, stop_on_signals

if TYPE_CHECKING:
    from connectors.query.ui.standing import LogView
    from flows.opening import Log, StoreServer
    from stores.protocols import Embedder

__all__ = ["serve", "up"]

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
    if settings_from().brokers:
        err.print(
            "SEDIMENT_BROKERS is not used: up runs on the log in the data folder; on Kafka start "
            "`sediment run all` and `sediment serve`",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    err.print(extractor_line(settings))
    _serve(settings, with_flow=True)


def _serve(settings: Settings, *, with_flow: bool) -> None:
    from connectors.embeddings import make_embedder
    from connectors.query.keys_file import check_bind
    from flows.opening import KeptServer

    check_bind(settings.host, settings)
    embedder = make_embedder(settings)
    stop = StopSignal()
    with (
        stop_on_signals(stop),
        tracing.traced_process(settings, "up" if with_flow else "query"),
        listen(settings) as listening,
        ExitStack() as stack,
    ):
        store_server = KeptServer(settings, stack, write=with_flow)

        def opened(one: Settings) -> _Side:
            return _Side(one, embedder, store_server.now(), with_flow=with_flow)

        async def serving() -> None:
            async with Following(settings, opened, store_server.moved) as following:
                await answer_over_http(
                    following,
                    lambda side: side.app,
                    listening,
                    over=lambda: stop() or not following.side.running,
                    said="serving on {address} (status at /ui, API at /docs)",
                )
                if stop():
                    err.print(STOPPING)  # the flow has yet to end

        run_http(serving)


class _Side:
    """One generation, served and filled: its store, its app, its flow."""

    def __init__(
        self, settings: Settings, embedder: Embedder, server: StoreServer, *, with_flow: bool
    ) -> None:
        """Open everything; nothing flows yet."""
        from connectors.query.app import create_app
        from flows.layer_parts import open_heat
        from flows.opening import log_name, open_log
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
                    log=log_name(settings, "all"),
                )
            own = ("all",) if with_flow else ()
            log = open_log(settings)
            self.service = stack.enter_context(opened_service(settings, log, store, embedder, heat))
            self.app = create_app(self.service, log=_view(settings, log, own))
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


def _view(settings: Settings, log: Log, own_flows: tuple[str, ...]) -> LogView:
    """Say how the status page looks at the log; it names the flows beside it."""
    from connectors.query.ui.standing import FlowPlace, LogView
    from flows.opening import consumer_group

    flows: dict[str, FlowPlace] = {
        name: FlowPlace(consumer_group(settings, name), settings.topic(source_topic(name)))
        for name in FLOWS
    }
    return LogView(log.reader, flows, own_flows)

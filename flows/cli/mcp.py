"""``sediment mcp``: memory as tools for an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from connectors import tracing
from connectors.settings import ScopeField, Settings
from flows.cli.common import Brokers, DataDir, settings_from
from flows.cli.serving import Following, answer_over_http, listen, opened_service, run_http
from flows.runner import StopSignal, stop_on_signals
from stores.errors import SettingsError

if TYPE_CHECKING:
    from connectors.query.auth import Credential, Keys
    from flows.opening import StoreServer
    from stores.protocols import Embedder

__all__ = ["mcp"]


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

    with _opening(settings) as (opened, moved):

        async def serving() -> None:
            async with Following(settings, opened, moved) as following:
                in_use = ServiceInUse(following.side.service)
                async with following.looking(lambda side: in_use.switch(side.service)):
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
    from connectors.query.keys_file import check_bind

    check_bind(settings.host, settings)
    stop = StopSignal()
    with (
        stop_on_signals(stop),
        tracing.traced_process(settings, "mcp"),
        listen(settings) as listening,
        _opening(settings) as (opened, moved),
    ):

        async def serving() -> None:
            async with Following(settings, opened, moved) as following:
                await answer_over_http(
                    following,
                    lambda side: http_app(side.service),
                    listening,
                    over=stop,
                    said=f"serving tools on {{address}}{MCP_PATH}",
                )

        run_http(serving)


@contextmanager
def _opening(
    settings: Settings,
) -> Iterator[tuple[Callable[[Settings], _Side], Callable[[], bool]]]:
    """Reach the store; give what opens the service over a generation, and says when it must."""
    from connectors.embeddings import make_embedder
    from flows.opening import KeptServer

    embedder = make_embedder(settings)
    with ExitStack() as stack:
        server = KeptServer(settings, stack, write=False)
        yield lambda one: _Side(one, embedder, server.now()), server.moved


class _Side:
    """The service over one generation. Opening and closing block."""

    def __init__(self, settings: Settings, embedder: Embedder, server: StoreServer) -> None:
        from flows.opening import open_log, open_store

        self.settings = settings
        with ExitStack() as stack:
            store = stack.enter_context(open_store(settings, embedder, write=False, server=server))
            self.service = stack.enter_context(
                opened_service(settings, open_log(settings), store, embedder)
            )
            self._opened = stack.pop_all()

    def start(self) -> None:
        """Do nothing: it only answers."""

    def close(self) -> None:
        """Close everything."""
        self._opened.close()

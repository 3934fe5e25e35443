"""``sediment mcp``: memory as tools for an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.settings import ScopeField, Settings
from flows import PIPELINE
from flows.cli.common import Brokers, DataDir, err, settings_from
from flows.cli.serve import listen
from flows.runner import SystemClock
from stores.errors import SettingsError

if TYPE_CHECKING:
    from connectors.query.auth import Credential, Keys
    from connectors.query.service import Service
    from stores.records import OutRecord

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
    (`sediment up`), so that what is remembered becomes memory.

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

    with _opened(settings) as service:
        asyncio.run(memory_server(service, caller_of).run_stdio_async())


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
    import uvicorn

    from connectors.mcp.http import MCP_PATH, http_app
    from connectors.query.app import server_config
    from connectors.query.keys_file import check_bind

    check_bind(settings.host, settings)
    with listen(settings) as listening, _opened(settings) as service:
        host, port = listening.getsockname()[:2]
        err.print(f"serving tools on http://{host}:{port}{MCP_PATH}")
        server = uvicorn.Server(server_config(http_app(service), settings))
        server.run(sockets=[listening])


@contextmanager
def _opened(settings: Settings) -> Iterator[Service]:
    """Open the service over the generation that counts at the start."""
    from connectors.embeddings import make_embedder
    from connectors.query.service import open_service
    from flows.parts import open_log, open_store, resolved

    settings = resolved(settings)
    embedder = make_embedder(settings)
    log = open_log(settings)

    def append(records: list[OutRecord]) -> None:
        log.appender.append(records)

    with (
        open_store(settings, embedder, write=False) as store,
        open_service(
            settings,
            store=store,
            embedder=embedder,
            append=append,
            checks={},
            clock=SystemClock(),
            pipeline=PIPELINE,
        ) as service,
    ):
        yield service

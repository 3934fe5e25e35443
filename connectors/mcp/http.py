"""The tools over HTTP (streamable): who may call is settled before the protocol is looked at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.mcpserver import Context
from mcp.server.transport_security import TransportSecuritySettings
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from connectors.mcp.tools import memory_server
from connectors.query.audit_log import Audited, CallNote
from connectors.query.auth import Credential
from connectors.query.failures import ApiError, as_api_error, error_response
from connectors.query.limits import RequestLimits
from connectors.query.peer_limit import PeerLimited
from connectors.query.rate_limit import open_rate_limit
from connectors.query.routes.access import credential_of
from connectors.query.service import Caller, Service
from connectors.query.traced import Traced
from stores.errors import SedimentError

__all__ = ["MCP_PATH", "http_app"]

MCP_PATH = "/mcp"
_SCHEME = "bearer "


def http_app(service: Service, *, request_timeout_s: float = 30.0) -> Starlette:
    """Build the app over a service; every request carries its key, and there are no sessions.

    Only probes and metrics need none: ``/healthz``, ``/readyz``, ``/metrics``.
    """

    async def caller_of(ctx: Context) -> Caller:
        request = ctx.request_context.request
        assert isinstance(request, Request)
        credential: Credential = request.scope["state"]["credential"]
        return Caller(credential, CallNote(key=credential.id))

    server = memory_server(service, caller_of)
    tools = server.streamable_http_app(
        streamable_http_path=MCP_PATH,
        json_response=True,
        stateless_http=True,
        # The gate checks names and addresses itself, where there are no keys.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with (
            open_rate_limit(service.settings) as app.state.rate_limit,
            tools.router.lifespan_context(tools),
        ):
            yield

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        checks = await service.look()
        ready = all(one == "ok" for one in checks.values())
        return JSONResponse({"ready": ready, "checks": checks}, 200 if ready else 503)

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Mount("/", _Gate(tools, service)),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_middleware(PeerLimited, settings=service.settings, keyed=service.keys is not None)
    app.add_middleware(Audited, audit=service.audit)
    app.add_middleware(Traced)
    app.add_middleware(RequestLimits, timeout_s=request_timeout_s)  # the outermost
    return app


class _Gate:
    """Lets in who has a key, and notes on the request whose it is."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note = CallNote.of(scope)
        try:
            scope["state"]["credential"] = await self._credential(scope, note)
        except (ApiError, SedimentError) as error:
            known = error if isinstance(error, ApiError) else as_api_error(error)
            if known is None:
                raise
            note.code = known.code
            refusal = error_response(
                known.status, known.code, known.message, known.field, known.headers
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _credential(self, scope: Scope, note: CallNote) -> Credential:
        request = Request(scope)
        sent = request.headers.get("authorization", "")
        key = sent[len(_SCHEME) :] if sent.lower().startswith(_SCHEME) else None
        hosts = (request.url.hostname or "", request.client.host if request.client else "")
        credential = credential_of(self._service.keys, key, hosts)
        note.key = credential.id
        await self._service.check_rate(credential, scope["app"].state.rate_limit)
        return credential

"""The query service over HTTP: recall, events in, memories out, forgetting, health.

| route | for | right |
|---|---|---|
| ``POST /v1/recall`` | one question | read |
| ``POST /v1/memories/search``, ``/v1/events/search`` | one layer searched | read |
| ``GET /v1/memories``, ``/v1/memories/{id}`` | atoms of a scope, one with its history | read |
| ``GET /v1/persona``, ``/v1/scenes``, ``/v1/scenes/{name}`` | Markdown about a scope | read |
| ``GET /v1/status`` | how fresh a scope is | read |
| ``POST /v1/events`` | one event, or up to 500 | write |
| ``GET /v1/events`` | what was said, page by page | read |
| ``PATCH /v1/memories/{id}`` | a person's own words for a memory | write |
| ``POST /v1/memories/{id}/reject`` | a wrong memory | write |
| ``DELETE /v1/memories/{id}``, ``POST /v1/forget`` | forget for good | write, some admin |
| ``POST /v3/...`` | clients of another system, see :mod:`connectors.query.v3` | read, write |
| ``/ui`` | the status page, see :mod:`connectors.query.ui` | read, to change admin |
| ``GET /healthz``, ``/readyz``, ``/metrics`` | probes and Prometheus | none, and no key |
| ``GET /docs``, ``/openapi.json`` | the contract; the page loads its scripts from a CDN | none |

The routes are in :mod:`connectors.query.routes`, what they call in
:mod:`connectors.query.service`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from connectors.query.audit_log import Audited
from connectors.query.failures import add_error_answers
from connectors.query.header_limits import HeadersInTime
from connectors.query.limits import RequestLimits
from connectors.query.peer_limit import PeerLimited
from connectors.query.rate_limit import open_rate_limit
from connectors.query.routes import router
from connectors.query.service import Service
from connectors.query.traced import Traced
from connectors.query.ui import add_ui
from connectors.query.ui.standing import LogView
from connectors.query.v3 import add_v3
from connectors.settings import Settings

__all__ = ["create_app", "server_config"]


def create_app(
    service: Service, *, request_timeout_s: float = 30.0, log: LogView | None = None
) -> FastAPI:
    """Build the app over a service; who opened the service closes it, after the app's lifespan.

    :arg log: how ``/ui`` looks at the pipeline; without it that page says nothing of flows.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_rate_limit(service.settings) as limit:
            app.state.rate_limit = limit
            yield

    app = FastAPI(
        title="Sediment",
        summary="Layered long-term memory for agents: recall, and events in.",
        version="1",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(router)
    app.add_middleware(PeerLimited, settings=service.settings, keyed=service.keys is not None)
    app.add_middleware(Audited, audit=service.audit)
    app.add_middleware(Traced)
    app.add_middleware(RequestLimits, timeout_s=request_timeout_s)  # the outermost
    add_v3(app)
    add_ui(app, service, log)
    add_error_answers(app)
    return app


def server_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Give the server's settings: small headers, no content in logs, no server name out.

    Call :func:`~connectors.query.keys_file.check_bind` first.
    """
    return uvicorn.Config(
        app,
        http=HeadersInTime,
        host=settings.host,
        port=settings.port,
        access_log=False,  # ours names the route and not the ids in its query
        server_header=False,
        proxy_headers=False,  # who calls is decided by the connection, not by a header
        ws="none",
        log_level="warning",
    )

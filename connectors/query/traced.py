"""A span for each request, in the trace of whoever asks."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectors import tracing

__all__ = ["PROBES", "Traced"]

PROBES = ("/healthz", "/readyz", "/metrics")
"""Paths that are asked all the time, by nobody who wants to know about it afterwards."""


class Traced:
    """ASGI middleware: a server span, named by the route's template; no ids, no query, no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not tracing.on() or scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        asked_by = tracing.context_of_headers(headers)
        method = scope["method"]
        with tracing.span(
            method,
            {"http.request.method": method},
            parents=[asked_by] if asked_by else [],
            kind="SERVER",
        ):

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    route = getattr(scope.get("route"), "path", "-")
                    tracing.rename(f"{method} {route}")
                    tracing.note({"http.route": route, "http.response.status_code": status})
                    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                        tracing.failed(str(status))
                await send(message)

            await self._app(scope, receive, sending)

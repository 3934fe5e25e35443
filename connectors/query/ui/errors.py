"""Error pages, and the headers that every page has.

Routes raise what all routes of the service raise; the middleware turns the JSON that comes of
it, of whichever layer, into a page.
"""

from __future__ import annotations

import json

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectors.query.ui.pages import COOKIE_PATH, error_page, link

__all__ = ["Paged", "to_sign_in"]

_FIRST_ERROR = 400
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Paged:
    """ASGI middleware: gives what is below ``/ui`` its headers, and its errors a page.

    Has to be outside of what makes errors, so that none gets out in another shape.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not (
            path == COOKIE_PATH or path.startswith(f"{COOKIE_PATH}/")
        ):
            await self._app(scope, receive, send)
            return
        error: Message | None = None
        told = bytearray()

        async def sending(message: Message) -> None:
            nonlocal error
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
                json_error = headers.get("content-type", "").startswith("application/json")
                if message["status"] >= _FIRST_ERROR and json_error:
                    error = message
                    return
            elif error is not None:
                told.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    await _shown(error, bytes(told))(scope, receive, send)
                return
            await send(message)

        await self._app(scope, receive, sending)


def _shown(start: Message, body: bytes) -> Response:
    error = json.loads(body)["error"]
    page = error_page(start["status"], error["code"], error["message"], error["field"])
    before = MutableHeaders(scope=start)
    for name, value in before.items():
        if name not in ("content-length", "content-type"):
            page.headers[name] = value
    return page


async def to_sign_in(request: Request, error: Exception) -> Response:
    """Send who has not signed in to where one does, and from there back again."""
    query = f"?{request.url.query}" if request.url.query else ""
    back = f"{request.url.path}{query}" if request.method == "GET" else COOKIE_PATH
    return RedirectResponse(link("/ui/sign-in", to=back if back != COOKIE_PATH else None), 303)

"""What every request meets before and after its route: limits and one log line.

A pure ASGI middleware, outermost, so that nothing gets out past it: no stack trace, and no
request content in a log.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from http import HTTPStatus

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectors.query.failures import error_response
from connectors.query.header_limits import MAX_HEADER_BYTES
from connectors.query.traced import PROBES

__all__ = ["MAX_BODY_BYTES", "RequestLimits"]

MAX_BODY_BYTES = 2 * 1024 * 1024
_HEAR_OUT = 4  # times the limit
_PAGES, _FORM = "/ui/", b"application/x-www-form-urlencoded"

_log = logging.getLogger(__name__)
_access = logging.getLogger("sediment.access")


class _TooLargeError(Exception):
    """The body passes the limit."""


class _HeaderTooLargeError(Exception):
    """The header passes the limit. The server stops at it only where the header comes in parts."""


class RequestLimits:
    """Limits header, body and time of a request; turns what escapes into an error.

    The body is read whole before the route runs, so a route never waits for a slow sender.

    :arg timeout_s: from the first byte of the body to the last of the answer.
    """

    def __init__(
        self, app: ASGIApp, *, timeout_s: float, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._app = app
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens inside."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0
        body_read = False

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def handle() -> None:
            nonlocal body_read
            if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
                raise _HeaderTooLargeError
            body = await self._read(receive)
            body_read = True
            if body and not _is_taken(scope):
                refusal = error_response(
                    415, "unsupported_media_type", "send JSON with content-type application/json"
                )
                await refusal(scope, receive, sending)
                return
            await self._app(scope, _replay(body, receive), sending)

        refusal: JSONResponse | None = None
        try:
            await asyncio.wait_for(handle(), self._timeout_s)
        except _TooLargeError:
            message = f"a body has at most {self._max_body_bytes} bytes; send fewer events at once"
            # There may be more of the body, so the connection cannot be used again.
            refusal = error_response(413, "too_large", message, headers={"connection": "close"})
        except _HeaderTooLargeError:
            message = f"a header has at most {MAX_HEADER_BYTES} bytes"
            refusal = error_response(
                431, "headers_too_large", message, headers={"connection": "close"}
            )
        except asyncio.TimeoutError:
            refusal = (
                error_response(504, "timeout", "no answer in time; try again")
                if body_read
                else error_response(408, "timeout", "the body did not arrive in time")
            )
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))  # code, never values
            _log.error("%s while answering\n%s", type(error).__name__, where)
            refusal = error_response(500, "internal", "something failed here; it is logged")
        if refusal is not None and status == 0:
            await refusal(scope, receive, sending)
        route = getattr(scope.get("route"), "path", "-")  # the template: no ids in the log
        took_ms = (time.perf_counter() - started) * 1000
        if scope["path"] not in PROBES or status >= HTTPStatus.BAD_REQUEST:
            _access.info("%s %s %d %.1fms", scope["method"], route, status, took_ms)

    async def _read(self, receive: Receive) -> bytes:
        """Read the body; of one that is too large keep nothing, but hear it out for a while.

        A sender that is cut off in the middle of sending sees a broken connection and never
        the answer that says why.
        """
        kept = bytearray()
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= self._max_body_bytes:
                kept += chunk
            elif size > _HEAR_OUT * self._max_body_bytes:
                raise _TooLargeError
            if not message.get("more_body", False):
                break
        if size > self._max_body_bytes:
            raise _TooLargeError
        return bytes(kept)


def _is_taken(scope: Scope) -> bool:
    """Only JSON: a browser sends any other type to any address without asking first.

    The forms of the status page carry a token instead.
    """
    wanted = _FORM if scope["path"].startswith(_PAGES) else b"application/json"
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind: bytes = value.split(b";")[0].strip().lower()
            return kind == wanted
    return False


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed

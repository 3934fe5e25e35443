"""How ``/v3`` answers: ``{code, message, request_id, data}``, errors too.

``code`` is 0, or of an error the HTTP status. An error's ``data`` says in ``reason`` the code that
the rest of the service gives it, and in ``field`` what was at fault. Routes raise what all routes
of the service raise; the middleware here turns the answer that comes of it, of whichever layer,
into an envelope.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectors.query.failures import ApiError
from connectors.query.models import Answer
from connectors.query.routes.access import Answers
from stores.problems import problems_in

__all__ = ["ERRORS", "Envelope", "Enveloped", "ErrorEnvelope", "envelope", "v3_router"]

T = TypeVar("T", bound=Answer)

_PREFIX = "/v3/"
_FIRST_ERROR = 400
_SHOWN_PROBLEMS = 10
_PLAIN = ("", "identity")


class Envelope(Answer, Generic[T]):
    """A success."""

    code: Literal[0]
    message: Literal["ok"]
    request_id: str
    data: T


class ErrorData(Answer):
    """What went wrong, for programs."""

    reason: str
    field: str | None


class ErrorEnvelope(Answer):
    """An error. ``code`` is the HTTP status."""

    code: int
    message: str
    request_id: str
    data: ErrorData


def _error(description: str) -> dict[str, object]:
    return {"model": ErrorEnvelope, "description": description}


ERRORS: Answers = {
    400: _error("The body is not JSON, or a field is missing or wrong."),
    401: _error("No valid key, or no `x-tdai-service-id`."),
    403: _error("The key lacks the right, or does not cover the ids that were sent."),
    404: _error("Not in this scope."),
    408: _error("The body did not arrive in time."),
    413: _error("The body is too large."),
    415: _error("The body is compressed, or not sent as JSON."),
    422: _error("An id of the scope is missing, or Sediment cannot do this; see `data.reason`."),
    429: _error("This key makes too many calls; see `Retry-After`."),
    503: _error("A dependency is down; see `Retry-After`."),
    504: _error("No answer in time."),
}
"""What any of the routes can answer beside a success."""


def envelope(request: Request, data: Answer) -> JSONResponse:
    """Wrap a success. Optional fields that were not set are left out, not null."""
    body = {
        "code": 0,
        "message": "ok",
        "request_id": request.state.request_id,
        "data": data.model_dump(mode="json", exclude_unset=True),
    }
    return JSONResponse(body)


class _V3Route(APIRoute):
    """Asks for the headers before it reads the body, and calls a wrong body 400, not 422."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            _need_headers(request)
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise _invalid(error.errors()) from None

        return checked


def v3_router() -> APIRouter:
    """Make the router of one resource."""
    return APIRouter(route_class=_V3Route, tags=["compatible"], responses=ERRORS)


def _need_headers(request: Request) -> None:
    keyed = request.app.state.service.keys is not None
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if keyed and (scheme.lower() != "bearer" or not key.strip()):
        message = "send a valid key as `Authorization: Bearer KEY`"
        raise ApiError(401, "unauthorized", message, {"www-authenticate": "Bearer"})
    if not request.headers.get("x-tdai-service-id", "").strip():
        message = "send the tenant in the header `x-tdai-service-id`"
        raise ApiError(401, "no_service_id", message, field="x-tdai-service-id")
    if request.headers.get("content-encoding", "").strip().lower() not in _PLAIN:
        message = "send the body as it is, without `Content-Encoding`"
        raise ApiError(415, "unsupported_encoding", message, field="content-encoding")


def _invalid(found: Sequence[Any]) -> ApiError:
    if found[0]["type"] == "json_invalid":
        return ApiError(400, "invalid_json", "the body is not JSON")
    # A list all of whose items are wrong is told to be too short as well: after them, for nothing.
    at_fault = {one["loc"][:-1] for one in found}
    listed = [
        one
        for one in found
        if one["type"] != "too_short"
        or not any(loc[: len(one["loc"])] == one["loc"] for loc in at_fault)
    ]
    problems = problems_in(listed[:_SHOWN_PROBLEMS], below=1)
    told = "; ".join(f"{one.field or 'body'}: {one.message}" for one in problems)
    first = problems_in(found[:1], below=1)[0]
    return ApiError(400, "invalid_request", told, field=first.field or None)


class Enveloped:
    """ASGI middleware: numbers the calls below ``/v3/`` and wraps their errors.

    Has to be the outermost, so that no error of another layer gets out in another shape.
    """

    def __init__(
        self, app: ASGIApp, new_id: Callable[[], str] = lambda: f"req-{secrets.token_hex(8)}"
    ) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not scope["path"].startswith(_PREFIX):
            await self._app(scope, receive, send)
            return
        request_id = scope.setdefault("state", {})["request_id"] = self._new_id()
        error: Message | None = None
        told = bytearray()

        async def sending(message: Message) -> None:
            nonlocal error
            if message["type"] == "http.response.start" and message["status"] >= _FIRST_ERROR:
                error = message
            elif error is None:
                await send(message)
            else:
                told.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    await _wrapped(error, bytes(told), request_id)(scope, receive, send)

        await self._app(scope, receive, sending)


def _wrapped(start: Message, body: bytes, request_id: str) -> JSONResponse:
    error = json.loads(body)["error"]
    content = {
        "code": start["status"],
        "message": error["message"],
        "request_id": request_id,
        "data": {"reason": error["code"], "field": error["field"]},
    }
    headers = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in start["headers"]
        if name.lower() not in (b"content-length", b"content-type")
    }
    return JSONResponse(content, start["status"], headers)

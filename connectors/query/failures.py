"""How errors look over HTTP: one shape, a stable code, the field at fault, no stack trace."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from connectors.query.audit_log import CallNote
from connectors.query.auth import RightMissing, ScopeIncomplete, ScopeRefused
from connectors.query.models import ErrorAnswer, ErrorBody
from stores.errors import SedimentError, Transient, UserError
from stores.problems import problems_in

__all__ = ["ApiError", "add_error_answers", "as_api_error", "error_response"]

_UNAVAILABLE = 503
_RETRY_AFTER_S = 5.0
_UNREADABLE_BODY = "There was an error parsing the body"
"""FastAPI's words where JSON is refused by something else than its grammar."""

_log = logging.getLogger(__name__)


class ApiError(Exception):
    """A request that a route refuses."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        field: str | None = None,
    ) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.headers = status, code, message, headers
        self.field = field


def error_response(
    status: int,
    code: str,
    message: str,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Give an error in the shape that all errors have."""
    answer = ErrorAnswer(error=ErrorBody(code=code, message=message, field=field))
    return JSONResponse(answer.model_dump(), status, headers=dict(headers or {}))


def add_error_answers(app: FastAPI) -> None:
    """Turn every error that a route can raise on purpose into an answer."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(SedimentError, _on_sediment_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)


def as_api_error(error: SedimentError) -> ApiError | None:
    """Say how an error of ours looks from outside; ``None`` for one that is our own fault."""
    if isinstance(error, ScopeRefused):
        return ApiError(403, error.reason, error.message, field=error.field)
    if isinstance(error, RightMissing):
        return ApiError(403, error.reason, error.message)
    if isinstance(error, ScopeIncomplete):
        return ApiError(422, error.reason, error.message, field=error.field)
    if isinstance(error, UserError):
        return ApiError(422, error.reason, error.message)
    if isinstance(error, Transient):
        wait = math.ceil(error.retry_after or _RETRY_AFTER_S)
        message = "a dependency does not answer; nothing was lost, try again"
        return ApiError(_UNAVAILABLE, error.reason, message, {"retry-after": str(wait)})
    return None


async def _on_api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    CallNote.of(request.scope).code = error.code
    return error_response(error.status, error.code, error.message, error.field, error.headers)


async def _on_sediment_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SedimentError)
    known = as_api_error(error)
    if known is None:
        raise error
    if known.status == _UNAVAILABLE:  # the caller is not told which dependency it is
        _log.warning("%s: %s", error.reason, error.message)
    return await _on_api_error(request, known)


async def _on_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problem = problems_in(error.errors(), below=1)[0]  # without "body" or "query"
    CallNote.of(request.scope).code = "invalid_request"
    if problem.kind == "json_invalid":
        return error_response(400, "invalid_json", "the body is not JSON")
    return error_response(422, "invalid_request", problem.message, problem.field or None)


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.detail == _UNREADABLE_BODY:
        CallNote.of(request.scope).code = "invalid_json"
        return error_response(
            400, "invalid_json", "the body is nested too deep or has a huge number"
        )
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    return error_response(error.status_code, code, str(error.detail), headers=error.headers)

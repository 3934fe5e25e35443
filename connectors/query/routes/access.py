"""Who calls, and whether they may: what every route but the probes asks first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from connectors.query.audit_log import CallNote
from connectors.query.auth import LOOPBACK, Credential, Keys, Right, is_loopback
from connectors.query.failures import ApiError
from connectors.query.models import ErrorAnswer
from connectors.query.service import Caller, Service

__all__ = [
    "BODY_ERRORS",
    "ERRORS",
    "NOT_FOUND",
    "NO_LONGER_HOLDS",
    "Answers",
    "Reader",
    "TheService",
    "Writer",
    "credential_of",
]

Answers = dict[int | str, dict[str, object]]


def _error(description: str) -> dict[str, object]:
    return {"model": ErrorAnswer, "description": description}


ERRORS: Answers = {
    401: _error("No valid key."),
    403: _error("The key lacks the right, or the scope is not the key's; `field` names it."),
    422: _error("The request is wrong; `field` names where."),
    429: _error("This key makes too many calls; see `Retry-After`."),
    503: _error("A dependency is down; see `Retry-After`."),
    504: _error("No answer in time."),
}
"""Errors of every route with a credential."""

BODY_ERRORS: Answers = {
    **ERRORS,
    400: _error("The body is not JSON."),
    408: _error("The body did not arrive in time."),
    413: _error("The body is too large."),
    415: _error("The body is not sent as JSON."),
}
"""Errors of every route that also takes a body."""

NOT_FOUND: Answers = {404: _error("Not in this scope.")}
NO_LONGER_HOLDS: Answers = {
    409: _error("The memory no longer holds; the message names the one that took its place.")
}

_bearer = HTTPBearer(auto_error=False, description="An API key of the keys file.")


def credential_of(keys: Keys | None, key: str | None, hosts: tuple[str, ...]) -> Credential:
    """Find out who calls.

    :arg key: what was sent as the key.
    :arg hosts: the caller's address, and the name by which it called.

    Raises :class:`~connectors.query.failures.ApiError` 401 or 403.
    """
    if keys is None:
        # The name too: a web page can have its own name resolved to 127.0.0.1.
        if not all(is_loopback(host) for host in hosts):
            raise ApiError(403, "loopback_only", "without keys only this machine is served")
        return LOOPBACK
    credential = keys.find(key) if key else None
    if credential is None:
        message = "send a valid key as `Authorization: Bearer KEY`"
        raise ApiError(401, "unauthorized", message, {"www-authenticate": "Bearer"})
    return credential


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]


def _with(right: Right, *, changes: bool) -> Callable[..., Awaitable[Caller]]:
    """Make the dependency of routes that take a right."""

    async def caller(
        request: Request,
        service: TheService,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Caller:
        note = CallNote.of(request.scope)
        hosts = (request.url.hostname or "", request.client.host if request.client else "")
        credential = credential_of(service.keys, bearer.credentials if bearer else None, hosts)
        note.key = credential.id
        await service.check_rate(credential, request.app.state.rate_limit)
        credential.require(right)
        note.changes = changes
        return Caller(credential, note)

    return caller


Reader = Annotated[Caller, Depends(_with("read", changes=False))]
"""May recall and look."""
Writer = Annotated[Caller, Depends(_with("write", changes=True))]
"""May write events and ask for changes; every call is in the audit log."""

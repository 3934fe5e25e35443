"""Whose memory a ``/v3`` call is about: its headers and body, held against the credential.

The ids of a call are in its body, or else in the ``x-tdai-*`` headers, or else they are the
key's own. Whichever way they come, they can only narrow what the key allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import JSONResponse

from connectors.query.failures import ApiError
from connectors.query.models import Answer, ScopeParts
from connectors.query.routes.access import Reader, TheService, Writer
from connectors.query.service import Caller, Service
from connectors.query.v3.envelope import envelope
from stores.requests import Owner

__all__ = ["Call", "Reading", "UnsupportedCall", "Writing"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that may be answered.

    :arg owner: the scope, and the ids in it, settled with the credential.
    :arg session_id: of the headers; a body can name another one.
    """

    request: Request
    service: Service
    caller: Caller
    owner: Owner
    session_id: str | None
    task_id: str | None

    @property
    def scope(self) -> str:
        """The scope key."""
        return self.owner.scope

    def scope_parts(self) -> dict[str, str | None]:
        """Give the owner as the rest of the service asks for it."""
        owner = self.owner
        return {
            "tenant": owner.tenant,
            "team": owner.team or None,
            "agent": owner.agent,
            "user": owner.user,
        }

    def ids(self) -> dict[str, str]:
        """Give the owner as answers show it; without a team where there is none."""
        owner = self.owner
        shown = {"team_id": owner.team, "agent_id": owner.agent, "user_id": owner.user}
        return {name: value for name, value in shown.items() if value}

    def answer(self, data: Answer) -> JSONResponse:
        """Wrap what the call gives."""
        return envelope(self.request, data)


class UnsupportedCall(ApiError):
    """What the other system can do and this one cannot.

    422, its code for a request that is well formed and cannot be carried out: 404 already means
    that a file or atom is not there, and a client tries again after a 5xx.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(422, "unsupported", message, field=field)


async def _reading(request: Request, caller: Reader, service: TheService) -> Call:
    return await _call(request, caller, service)


async def _writing(request: Request, caller: Writer, service: TheService) -> Call:
    return await _call(request, caller, service)


Reading = Annotated[Call, Depends(_reading)]
"""A call that may look. Raises as :meth:`~connectors.query.service.Service.owner_of`."""
Writing = Annotated[Call, Depends(_writing)]
"""A call that may change something, and is in the audit log."""


async def _call(request: Request, caller: Caller, service: Service) -> Call:
    body = await request.json() if await request.body() else None
    given = body if isinstance(body, dict) else {}
    asked = ScopeParts(
        tenant=request.headers["x-tdai-service-id"].strip(),
        team=_id(given, request, "team"),
        agent=_id(given, request, "agent"),
        user=_id(given, request, "user"),
    )
    return Call(
        request=request,
        service=service,
        caller=caller,
        owner=service.owner_of(caller, asked),
        session_id=request.headers.get("x-tdai-session-id", "").strip() or None,
        task_id=_id(given, request, "task"),
    )


def _id(body: Mapping[str, Any], request: Request, name: str) -> str | None:
    """Read one id; ``None`` when it is not named. A blank one names nobody: it is refused."""
    field = f"{name}_id"
    value = body.get(field)
    if value is None:
        value = request.headers.get(f"x-tdai-{name}-id")
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        message = (
            f"missing {field}: name one in the body or in the header x-tdai-{name}-id, "
            "or leave it out where the key decides it"
        )
        raise ApiError(422, "scope_incomplete", message, field=field)
    return value

"""Who looks at a page, who may change something, and what a form or an address asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import parse_qs

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from connectors.query.audit_log import CallNote
from connectors.query.auth import Credential, ScopeIncomplete, ScopeRefused
from connectors.query.failures import ApiError
from connectors.query.routes.access import TheService, credential_of
from connectors.query.service import Caller, Service
from connectors.query.ui.session import FORM_COOKIE, SESSION_COOKIE, Sessions
from connectors.settings import ScopeField
from stores.problems import problems_of

__all__ = [
    "Changer",
    "Form",
    "Looker",
    "Looking",
    "SignInNeeded",
    "check_form",
    "covers",
    "form_of",
    "parsed",
    "scope_parts_of",
    "sessions_of",
]

T = TypeVar("T", bound=BaseModel)

Form = Mapping[str, list[str]]
"""What was asked for, by an address or a form: every field with all its values, none empty."""

_MOST_FIELDS = 60
_MANY = frozenset({"layers", "types"})
"""Fields that may come several times."""


class SignInNeeded(Exception):
    """Nobody has signed in, or the session is over."""


@dataclass(frozen=True, slots=True)
class Looker:
    """Somebody who looks at a page.

    :arg asked: fields of the address, and of the form where there was one.
    """

    caller: Caller
    service: Service
    asked: Form

    @property
    def credential(self) -> Credential:
        """What the looker may touch."""
        return self.caller.credential

    @property
    def may_change(self) -> bool:
        """Say whether the pages offer changes."""
        return {"write", "admin"} <= self.credential.rights

    def one(self, name: str) -> str:
        """Give a field; ``""`` where it was not asked for."""
        return self.asked.get(name, [""])[-1]

    def need(self, name: str) -> str:
        """Give a field. Raises :class:`~connectors.query.failures.ApiError` 422 without it."""
        value = self.one(name)
        if not value:
            message = f"{name}: say which {name} you mean"
            raise ApiError(422, "invalid_request", message, field=name)
        return value

    def number(self, name: str, most: int) -> int:
        """Give a field that counts from 0; what is no such number is 0."""
        value = self.one(name)
        return min(int(value), most) if value.isascii() and value.isdigit() else 0


def sessions_of(request: Request) -> Sessions:
    """Give what reads the cookies of this service."""
    sessions: Sessions = request.app.state.ui_sessions
    return sessions


async def form_of(request: Request) -> Form:
    """Read the fields of the address and of the form; the form's count where both name one.

    Raises :class:`~connectors.query.failures.ApiError` 400 for a form that cannot be read.
    """
    try:
        fields = parse_qs(request.url.query, max_num_fields=_MOST_FIELDS)
        if request.method == "POST":
            body = (await request.body()).decode()
            fields.update(parse_qs(body, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise ApiError(400, "invalid_form", "the form cannot be read") from None
    return fields


def check_form(request: Request, form: Form) -> None:
    """Refuse a form that did not come from a page of ours, in this browser and session.

    Raises :class:`~connectors.query.failures.ApiError` 403.
    """
    cookies = request.cookies
    own = sessions_of(request).is_own_form(
        form.get("form_token", [""])[-1],
        cookies.get(FORM_COOKIE, ""),
        cookies.get(SESSION_COOKIE, ""),
    )
    if not own or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        message = (
            "this form was not made for this browser, or is too old: open the page anew and send "
            "it again. The page needs cookies, and off this machine HTTPS"
        )
        raise ApiError(403, "foreign_form", message)


def parsed(model: type[T], form: Form, **more: object) -> T:
    """Read a form as one of the service's requests; fields of another use are passed over.

    Raises :class:`~connectors.query.failures.ApiError` 422 that names the field.
    """
    known = model.model_fields
    given = {
        name: values if name in _MANY else values[-1]
        for name, values in form.items()
        if name in known
    }
    try:
        return model.model_validate({**given, **more})
    except ValidationError as error:
        problem = problems_of(error)[0]
        raise ApiError(422, "invalid_request", str(problem), field=problem.field) from None


def covers(credential: Credential, parts: Mapping[ScopeField, str]) -> bool:
    """Say whether a scope is one that the credential may see."""
    try:
        credential.narrow(parts, ())
    except (ScopeRefused, ScopeIncomplete):
        return False
    return True


def scope_parts_of(scope: str, service: Service) -> dict[ScopeField, str] | None:
    """Take a scope key apart; ``None`` for what is no scope key of this service."""
    from stores.ids import scope_parts

    fields, values = service.settings.scope_fields, scope_parts(scope)
    if len(fields) != len(values) or not all(values):
        return None
    return dict(zip(fields, values, strict=True))


async def _looker(request: Request, service: TheService) -> Looker:
    note = CallNote.of(request.scope)
    key = sessions_of(request).key_in(request.cookies.get(SESSION_COOKIE, ""))
    hosts = (request.url.hostname or "", request.client.host if request.client else "")
    try:
        credential = credential_of(service.keys, key, hosts)
    except ApiError as error:
        if error.code == "unauthorized":
            raise SignInNeeded from None
        raise
    note.key = credential.id
    await service.check_rate(credential, request.app.state.rate_limit)
    credential.require("read")
    form = await form_of(request)
    if request.method == "POST":
        check_form(request, form)
    return Looker(Caller(credential, note), service, form)


async def _changer(looker: Annotated[Looker, Depends(_looker)]) -> Looker:
    looker.credential.require("write")
    looker.credential.require("admin")
    looker.caller.note.changes = True
    return looker


Looking = Annotated[Looker, Depends(_looker)]
"""May look. A form of theirs has been checked."""
Changer = Annotated[Looker, Depends(_changer)]
"""May change memory: takes the rights read, write and admin; is in the audit log."""

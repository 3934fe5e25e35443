"""Events that come in over HTTP, on their way to the log: checked one by one. Pure.

The log keeps what the producer sent, unknown fields too; only ids that the credential decides
are filled in. What this lets through, the edge of the flow accepts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from connectors.query.auth import (
    Credential,
    RightMissing,
    ScopeIncomplete,
    ScopeRefused,
    right_to_forget,
)
from connectors.query.models import EventError
from connectors.settings import ScopeField, Settings
from stores.problems import problems_of
from stores.records import MAX_EVENT_BYTES, L0Event, OutRecord

__all__ = ["Accepted", "accept_events"]

_EVENT_FIELDS: Mapping[ScopeField, str] = {
    "tenant": "tenant_id",
    "team": "team_id",
    "agent": "agent_id",
    "user": "user_id",
}


@dataclass(frozen=True, slots=True)
class Accepted:
    """What may be written, in the order sent, and what may not."""

    records: tuple[OutRecord, ...]
    duplicates: int
    errors: tuple[EventError, ...]

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes written to, each once."""
        return tuple(dict.fromkeys((one.key or b"").decode() for one in self.records))


class _RejectedError(Exception):
    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(message)
        self.code, self.field, self.message = code, field, message


def accept_events(bodies: Sequence[object], credential: Credential, settings: Settings) -> Accepted:
    """Check events and turn the good ones into records of the events topic.

    One bad event costs none of the others. An event id that came earlier in ``bodies``, in
    the same scope, is a duplicate: the first one counts.
    """
    topic = settings.topic("l0.events")
    records: list[OutRecord] = []
    errors: list[EventError] = []
    seen: set[tuple[str, str]] = set()
    duplicates = 0
    for index, body in enumerate(bodies):
        try:
            scope, event_id, value = _accept(body, credential, settings)
        except _RejectedError as error:
            errors.append(
                EventError(index=index, field=error.field, code=error.code, message=error.message)
            )
            continue
        if (scope, event_id) in seen:
            duplicates += 1
            continue
        seen.add((scope, event_id))
        records.append(OutRecord(topic, scope.encode(), value))
    return Accepted(tuple(records), duplicates, tuple(errors))


def _accept(body: object, credential: Credential, settings: Settings) -> tuple[str, str, bytes]:
    if not isinstance(body, dict):
        code, message = "invalid_event", "an event is a JSON object"
        raise _RejectedError(code, "", message)
    filled = _with_scope(body, credential, settings)
    try:
        value = json.dumps(
            filled, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    except ValueError:  # what JSON has no word for: NaN, infinity, half a surrogate pair
        code, message = "invalid_event", "the event holds something that is not JSON"
        raise _RejectedError(code, "", message) from None
    if len(value) > MAX_EVENT_BYTES:
        code, message = "oversized", f"the event has more than {MAX_EVENT_BYTES} bytes"
        raise _RejectedError(code, "", message)
    try:
        event = L0Event.model_validate_json(value)
    except ValidationError as error:
        problem = problems_of(error)[0]
        code, field, message = "invalid_event", problem.field, problem.message
        raise _RejectedError(code, field, message) from None
    if event.request is not None and event.type in ("forget", "reject"):
        try:
            credential.require(right_to_forget(event.request))
        except RightMissing as error:
            raise _RejectedError(error.reason, "request.target", error.message) from None
    scope = settings.scope_of(
        tenant=event.tenant_id,
        team=event.team_id or "",
        agent=event.agent_id,
        user=event.user_id,
    )
    return scope, event.event_id, value


def _with_scope(body: dict[str, Any], credential: Credential, settings: Settings) -> dict[str, Any]:
    """Fill in the ids that the credential decides; refuse those that contradict it."""
    asked: dict[ScopeField, str | None] = {}
    for name, field in _EVENT_FIELDS.items():
        given = body.get(field)
        if given is not None and not isinstance(given, str):
            code, message = "invalid_event", "an id is a string"
            raise _RejectedError(code, field, message)
        asked[name] = given
    # The contract wants tenant, agent and user whatever the scope is made of.
    needed: tuple[ScopeField, ...] = (*settings.scope_fields, "tenant", "agent", "user")
    try:
        parts = credential.narrow(asked, needed)
    except (ScopeRefused, ScopeIncomplete) as error:
        field = _EVENT_FIELDS[error.field]
        raise _RejectedError(error.reason, field, error.message) from None
    return {**body, **{_EVENT_FIELDS[name]: value for name, value in parts.items()}}

"""Every call as data: what is sent, and what the answer is. Pure; both clients send these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from connectors.client.errors import ClientError, Invalid, error_for
from connectors.query.memory_models import (
    EditAnswer,
    EditRequest,
    EventsPage,
    EventsRequest,
    ForgetAnswer,
    ForgetRequest,
    ListRequest,
    MemoriesAnswer,
    MemoryAnswer,
    RejectRequest,
    ScenesAnswer,
    StatusAnswer,
)
from connectors.query.models import (
    ErrorAnswer,
    EventsAnswer,
    RecallAnswer,
    RecallRequest,
    ScopeParts,
    SearchAnswer,
    SearchRequest,
)
from stores.problems import problems_of
from stores.records import L0Event, Profile

__all__ = [
    "Call",
    "add_events",
    "answer_of",
    "edit",
    "events",
    "forget",
    "forget_memory",
    "memories",
    "memory",
    "persona",
    "recall",
    "reject",
    "scene",
    "scenes",
    "search",
    "status",
]

A = TypeVar("A", bound=BaseModel)

_EVERY_EVENT_REJECTED = (403, 422)


@dataclass(frozen=True, slots=True)
class Call(Generic[A]):
    """One call.

    :arg answer: the model of a good answer.
    """

    method: str
    path: str
    answer: type[A]
    json: Any = None
    params: Mapping[str, Any] | None = None


def recall(fields: Mapping[str, Any]) -> Call[RecallAnswer]:
    """Recall what bears on a question."""
    return Call("POST", "/v1/recall", RecallAnswer, json=_body(RecallRequest, fields))


def search(layer: str, fields: Mapping[str, Any]) -> Call[SearchAnswer]:
    """Search the memories or the events."""
    return Call("POST", f"/v1/{layer}/search", SearchAnswer, json=_body(SearchRequest, fields))


def add_events(events: Iterable[L0Event | Mapping[str, Any]]) -> Call[EventsAnswer]:
    """Write events; those that are models are sent as they are."""
    bodies = [
        one.model_dump(mode="json", exclude_none=True) if isinstance(one, L0Event) else dict(one)
        for one in events
    ]
    return Call("POST", "/v1/events", EventsAnswer, json={"events": bodies})


def memories(fields: Mapping[str, Any]) -> Call[MemoriesAnswer]:
    """List the atoms of a scope."""
    return Call("GET", "/v1/memories", MemoriesAnswer, params=_body(ListRequest, fields))


def events(fields: Mapping[str, Any]) -> Call[EventsPage]:
    """List what was said."""
    return Call("GET", "/v1/events", EventsPage, params=_body(EventsRequest, fields))


def edit(memory_id: str, fields: Mapping[str, Any]) -> Call[EditAnswer]:
    """Give a memory another text."""
    return Call("PATCH", _at("memories", memory_id), EditAnswer, json=_body(EditRequest, fields))


def memory(memory_id: str, fields: Mapping[str, Any]) -> Call[MemoryAnswer]:
    """Show one atom."""
    return Call("GET", _at("memories", memory_id), MemoryAnswer, params=_body(ScopeParts, fields))


def reject(memory_id: str, fields: Mapping[str, Any]) -> Call[ForgetAnswer]:
    """Mark a memory as wrong."""
    path = f"{_at('memories', memory_id)}/reject"
    return Call("POST", path, ForgetAnswer, json=_body(RejectRequest, fields))


def forget_memory(memory_id: str, fields: Mapping[str, Any]) -> Call[ForgetAnswer]:
    """Forget one memory."""
    path = _at("memories", memory_id)
    return Call("DELETE", path, ForgetAnswer, params=_body(ScopeParts, fields))


def forget(fields: Mapping[str, Any]) -> Call[ForgetAnswer]:
    """Forget events, memories, a session or a user."""
    return Call("POST", "/v1/forget", ForgetAnswer, json=_body(ForgetRequest, fields))


def persona(fields: Mapping[str, Any]) -> Call[Profile]:
    """Show the persona."""
    return Call("GET", "/v1/persona", Profile, params=_body(ScopeParts, fields))


def scenes(fields: Mapping[str, Any]) -> Call[ScenesAnswer]:
    """List the scenes."""
    return Call("GET", "/v1/scenes", ScenesAnswer, params=_body(ScopeParts, fields))


def scene(name: str, fields: Mapping[str, Any]) -> Call[Profile]:
    """Show one scene."""
    return Call("GET", _at("scenes", name), Profile, params=_body(ScopeParts, fields))


def status(fields: Mapping[str, Any]) -> Call[StatusAnswer]:
    """Say how fresh a scope is."""
    return Call("GET", "/v1/status", StatusAnswer, params=_body(ScopeParts, fields))


def answer_of(call: Call[A], response: httpx.Response) -> A:
    """Read an answer. Raises :class:`~connectors.client.errors.ClientError`.

    Of events that are all rejected the answer is given, not raised: it says why of each.
    """
    if response.is_success:
        return call.answer.model_validate_json(response.content)
    if call.answer is EventsAnswer and response.status_code in _EVERY_EVENT_REJECTED:
        try:
            return call.answer.model_validate_json(response.content)
        except ValidationError:
            pass  # the request was refused as a whole
    raise _error_of(response)


def _error_of(response: httpx.Response) -> ClientError:
    try:
        error = ErrorAnswer.model_validate_json(response.content).error
        code, message, field = error.code, error.message, error.field
    except ValidationError:  # of a proxy
        code, message, field = "", f"HTTP {response.status_code}", None
    return error_for(response.status_code, code, message, field, _retry_after(response))


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _at(collection: str, name: str) -> str:
    return f"/v1/{collection}/{quote(name, safe='')}"


def _body(model: type[BaseModel], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Check what is sent before it is: a wrong field costs no call."""
    try:
        made = model.model_validate(fields)
    except ValidationError as error:
        problem = problems_of(error)[0]
        field = problem.field or None
        raise Invalid(problem.message, code="invalid_request", field=field) from None
    sent: dict[str, Any] = made.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return sent

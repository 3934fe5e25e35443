"""Deletes of ``/v3`` as forget requests of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from connectors.query.v3.calls import Call
from stores.records import ControlRequest, Id, OutRecord
from stores.requests import request_event, request_record

__all__ = ["forget_requests", "possible_ids"]

_IDS_PER_EVENT = 500  # the longest ids that there can be then still fit into one event
_id: TypeAdapter[str] = TypeAdapter(Id)


def possible_ids(named: Sequence[str]) -> tuple[str, ...]:
    """Leave out what cannot be an id of this system, so that there can be nothing under it."""
    return tuple(one for one in named if _is_id(one))


def forget_requests(
    call: Call,
    target: Literal["event", "atom", "session"],
    ids: Sequence[str] = (),
    session: str = "",
) -> Iterator[OutRecord]:
    """Make the records that ask to forget these events or atoms, or a session."""
    if target == "session":
        yield _record(call, ControlRequest(target=target), session)
        return
    for start in range(0, len(ids), _IDS_PER_EVENT):
        some = tuple(ids[start : start + _IDS_PER_EVENT])
        control = (
            ControlRequest(target=target, event_ids=some)
            if target == "event"
            else ControlRequest(target=target, atom_ids=some)
        )
        yield _record(call, control)


def _record(call: Call, control: ControlRequest, session: str = "") -> OutRecord:
    event = request_event("forget", call.owner, control, call.service.clock.now(), session)
    return request_record(event, call.scope, call.service.settings.topic("l0.events"))


def _is_id(value: str) -> bool:
    try:
        _id.validate_python(value)
    except ValidationError:
        return False
    return True

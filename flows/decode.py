"""Decode at the edge: bytes become an event, or a reason why they cannot.

Everything behind this step works on :class:`~stores.records.SourcedEvent` only. What is
refused here keeps its original bytes and goes to the dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone

from pydantic import ValidationError

from stores.errors import InvalidEvent
from stores.ids import scope_key
from stores.problems import problems_of
from stores.records import MAX_EVENT_BYTES, L0Event, LogRecord, Redriven, SourcedEvent, to_utc

__all__ = ["CLOCK_TOLERANCE", "by_scope", "decode"]

CLOCK_TOLERANCE = timedelta(minutes=5)
"""How far an event's date may lie ahead of the log's before it is replaced and flagged."""

_SCOPE_IDS = {
    "tenant": "tenant_id",
    "team": "team_id",
    "agent": "agent_id",
    "user": "user_id",
}


def decode(
    record: LogRecord, scope_fields: Sequence[str], redriven: Redriven | None = None
) -> SourcedEvent | InvalidEvent:
    """Decode one record of the events topic.

    :arg scope_fields: which ids own a memory, in order: of ``tenant team agent user``.
    :arg redriven: says that the record is a dead letter which came again; handed on.
    :returns: the event with its scope, or the reason it was refused. Never raises for any
        bytes.
    """
    value = record.value
    if value is None:
        return InvalidEvent("null_body", "the record has no value")
    if len(value) > MAX_EVENT_BYTES:
        message = f"the value has {len(value)} bytes, the limit is {MAX_EVENT_BYTES}"
        return InvalidEvent("oversized", message)
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8"
        return InvalidEvent("invalid_utf8", message)
    try:
        event = L0Event.model_validate_json(value)
    except ValidationError as error:
        return _invalid(error)
    return _sourced(record, event, scope_fields, redriven)


def by_scope(events: Iterable[SourcedEvent]) -> dict[str, list[SourcedEvent]]:
    """Put the events of each scope together, in their order.

    So they go through a dataflow: half of them to another worker, pickled, at a call for each item.
    """
    scopes: dict[str, list[SourcedEvent]] = {}
    for sourced in events:
        scopes.setdefault(sourced.scope, []).append(sourced)
    return scopes


def _sourced(
    record: LogRecord, event: L0Event, scope_fields: Sequence[str], redriven: Redriven | None
) -> SourcedEvent | InvalidEvent:
    parts = [getattr(event, _SCOPE_IDS[name]) for name in scope_fields]
    if not all(parts):
        field = next(
            _SCOPE_IDS[name] for name, part in zip(scope_fields, parts, strict=True) if not part
        )
        message = f"{field}: the scope is made of {', '.join(scope_fields)}; this one is empty"
        return InvalidEvent("empty_id", message, field=field)
    try:
        occurred_at = to_utc(event.occurred_at)
    except OverflowError:
        message = "occurred_at: the date lies outside of years 1 to 9999 in UTC"
        return InvalidEvent("invalid_schema", message, field="occurred_at")
    logged_at = datetime.fromtimestamp(record.timestamp_ms / 1000, tz=timezone.utc)
    clock_ahead = record.timestamp_ms > 0 and occurred_at - logged_at > CLOCK_TOLERANCE
    return SourcedEvent(
        scope=scope_key(parts),
        event=event,
        record=record,
        occurred_at=logged_at if clock_ahead else occurred_at,
        clock_ahead=clock_ahead,
        redriven=redriven,
    )


def _invalid(error: ValidationError) -> InvalidEvent:
    problems = problems_of(error)
    first = problems[0]
    if first.kind == "json_invalid":
        return InvalidEvent("invalid_json", first.message)
    if any(problem.field == "v" for problem in problems):
        return InvalidEvent("unknown_version", "v: only version 1 is known", field="v")
    if first.kind == "string_too_short" and first.field.endswith("_id"):
        message = f"{first.field}: must not be empty"
        return InvalidEvent("empty_id", message, field=first.field)
    text = "; ".join(map(str, problems[:5]))
    return InvalidEvent("invalid_schema", text, field=first.field)

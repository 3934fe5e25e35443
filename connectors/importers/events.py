"""One imported event: its ids, its time, its role, its id made of content.

The files and their layouts are :mod:`connectors.importers`' concern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError

from stores.errors import InvalidEvent
from stores.ids import content_id
from stores.problems import problems_of
from stores.records import CONTRACT_VERSION, MAX_EVENT_BYTES, L0Event, to_utc

__all__ = [
    "ID_OPTIONS",
    "ImportDefaults",
    "ImportTime",
    "TimeSource",
    "encode_event",
    "fill_ids",
    "message_event",
    "message_id",
    "own_ids",
    "time_of",
    "validated",
]

TimeSource = Literal["given", "assumed_utc", "neighbour", "synthetic"]
"""Where an event's time comes from; all but ``given`` are also noted in ``metadata.time``.

- ``assumed_utc``: the file gave a time without an offset, it was read as UTC;
- ``neighbour``: the time of the message before it (of the first timed one, at the beginning);
- ``synthetic``: made up: from the start time given, or so that the file's last message is as
  old as the file.
"""

ID_OPTIONS = {
    "tenant_id": "tenant",
    "agent_id": "agent",
    "user_id": "user",
    "session_id": "session",
    "team_id": "team",
}
_TIME_FIELDS = ("timestamp", "created_at", "occurred_at")
_ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
_DATETIME = TypeAdapter(datetime)


@dataclass(frozen=True, slots=True)
class ImportDefaults:
    """Ids given on the command line. They fill what the file leaves out; empty means none.

    A file that names another id than the one given is a problem of that line: neither may
    silently win, because an id decides whose memory it becomes.
    """

    tenant: str = ""
    agent: str = ""
    user: str = ""
    session: str = ""
    team: str = ""


class ImportTime(NamedTuple):
    """When a message was said, and how that is known."""

    when: datetime
    source: TimeSource


def encode_event(event: L0Event, fields: Mapping[str, Any] | None = None) -> bytes:
    """Write an event as compact JSON, keys sorted, no null fields: equal events, equal bytes.

    :arg fields: as the producer gave them; those that the contract has not are kept.

    Raises :class:`~stores.errors.InvalidEvent`: larger than an event may be, or a number in it
    fits in no 64 bits.
    """
    unknown = {
        name: value
        for name, value in (fields or {}).items()
        if name not in L0Event.model_fields and value is not None
    }
    body = {**unknown, **event.model_dump(mode="json", exclude_none=True)}
    try:
        value = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        message = f"cannot be written as JSON: {error}"
        raise InvalidEvent(reason="invalid_schema", message=message) from None
    if len(value) > MAX_EVENT_BYTES:
        message = f"the event has {len(value)} bytes, the limit is {MAX_EVENT_BYTES}"
        raise InvalidEvent(reason="oversized", message=message)
    return value


def own_ids(value: Any) -> dict[str, Any]:
    """Take the ids that a conversation or message of a file names itself."""
    if not isinstance(value, dict):
        return {}
    return {field: value[field] for field in ID_OPTIONS if value.get(field) is not None}


def fill_ids(given: Mapping[str, Any], defaults: ImportDefaults) -> dict[str, Any]:
    """Join a file's ids with those of the command line.

    Raises :class:`~stores.errors.InvalidEvent` naming the ids that both lack, or the one that they
    disagree on.
    """
    ids: dict[str, Any] = {}
    missing: list[str] = []
    for field, option in ID_OPTIONS.items():
        in_file, on_command_line = given.get(field), getattr(defaults, option)
        if in_file is not None and on_command_line and in_file != on_command_line:
            message = (
                f"{field}: {in_file!r} in the file, {on_command_line!r} on the command line; "
                f"leave out --{option}, or import the file's other ids separately"
            )
            raise InvalidEvent(reason="invalid_schema", message=message, field=field)
        if in_file is not None:
            ids[field] = in_file
        elif on_command_line:
            ids[field] = on_command_line
        elif field != "team_id":
            missing.append(field)
    if missing:
        options = " ".join(f"--{ID_OPTIONS[field]}" for field in missing)
        them = "it" if len(missing) == 1 else "them"
        message = f"{', '.join(missing)}: missing; give {options}, or put {them} into the file"
        raise InvalidEvent(reason="empty_id", message=message, field=missing[0])
    return ids


def validated(fields: Mapping[str, Any]) -> L0Event:
    """Make an event that the pipeline will accept, but for its size.

    Raises :class:`~stores.errors.InvalidEvent` naming every field that is wrong.
    """
    try:
        event = L0Event.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error) from None
    try:
        to_utc(event.occurred_at)
    except OverflowError:
        message = "occurred_at: the date lies outside of years 1 to 9999 in UTC"
        raise InvalidEvent(reason="invalid_schema", message=message, field="occurred_at") from None
    return event


def _invalid(error: ValidationError) -> InvalidEvent:
    problems = problems_of(error)
    fields = [problem.field or problem.message.partition(":")[0] for problem in problems]
    reason = "invalid_schema"
    if "v" in fields:
        reason = "unknown_version"
    elif problems[0].kind == "string_too_short" and fields[0].endswith("_id"):
        reason = "empty_id"
    return InvalidEvent(reason, "; ".join(map(str, problems)), field=fields[0])


def time_of(message: Any) -> ImportTime | InvalidEvent | None:
    """Read a message's own time; ``None`` when it has none."""
    if not isinstance(message, dict):
        return None
    field = next((name for name in _TIME_FIELDS if message.get(name) is not None), None)
    if field is None:
        return None
    value = message[field]
    try:
        if isinstance(value, bool):
            raise ValueError
        when = _DATETIME.validate_python(value)
        if when.utcoffset() is None:
            return ImportTime(when.replace(tzinfo=timezone.utc), "assumed_utc")
        to_utc(when)
    except (ValueError, OverflowError):
        text = f"{field}: not a time; use RFC 3339 with an offset, or seconds or ms since 1970"
        return InvalidEvent("invalid_schema", text, field=field)
    return ImportTime(when, "given")


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    known = _ROLES.get(role.lower()) if isinstance(role, str) else None
    if known is None:
        text = f"role: {str(role)[:40]!r} is not one of {', '.join(_ROLES)}"
        raise InvalidEvent(reason="invalid_schema", message=text, field="role")
    return known


def message_id(session: str, ordinal: int, role: str, content: Any) -> str:
    """Give an imported message the id that a second import of it will give it again.

    The time is left out: it may be made up. ``ordinal`` keeps equal messages apart.
    """
    text = content
    if not isinstance(content, str):
        text = orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()
    return content_id("import", session, str(ordinal), role, text)


def message_event(
    message: Mapping[str, Any], ids: Mapping[str, Any], ordinal: int, time: ImportTime
) -> L0Event:
    """Turn one OpenAI-style message into an event; fields the contract has not are left out.

    Raises :class:`~stores.errors.InvalidEvent`.
    """
    role = _role(message)
    tool_calls = message.get("tool_calls")
    if tool_calls is None and message.get("function_call") is not None:
        tool_calls = [{"type": "function", "function": message["function_call"]}]
    metadata = {} if message.get("metadata") is None else message["metadata"]
    if isinstance(metadata, dict) and time.source != "given":
        metadata = {**metadata, "time": time.source}
    return validated(
        {
            **ids,
            "v": CONTRACT_VERSION,
            "event_id": message_id(str(ids["session_id"]), ordinal, role, message.get("content")),
            "role": role,
            "content": message.get("content"),
            "name": message.get("name"),
            "tool_calls": tool_calls,
            "tool_call_id": message.get("tool_call_id"),
            "occurred_at": time.when,
            "metadata": metadata,
        }
    )

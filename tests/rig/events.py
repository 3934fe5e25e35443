"""Builds events, log records and atoms for tests, with every field that does not matter set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import orjson

from flows.decode import decode
from stores.errors import InvalidEvent
from stores.records import Atom, LogRecord, Position, SourcedEvent

__all__ = ["START", "TOPIC", "at", "atom", "body", "record", "sourced"]

START = datetime(2026, 3, 1, 9, 0, tzinfo=timezone.utc)
TOPIC = "sediment.l0.events"


def at(seconds: float) -> datetime:
    """Give the moment ``seconds`` after the start of the test's conversation."""
    return START + timedelta(seconds=seconds)


def body(event_id: str = "e0", **fields: Any) -> dict[str, Any]:
    """Give an event as a producer would write it; ``fields`` replace, ``None`` removes."""
    event: dict[str, Any] = {
        "v": 1,
        "event_id": event_id,
        "type": "message",
        "tenant_id": "acme",
        "agent_id": "helper",
        "user_id": "ana",
        "session_id": "s1",
        "role": "user",
        "content": f"text of {event_id}",
        "occurred_at": START.isoformat(),
    }
    event.update(fields)
    return {name: value for name, value in event.items() if value is not None}


def record(value: bytes | None, offset: int = 0, *, timestamp: datetime = START) -> LogRecord:
    """Give a record of the events topic."""
    return LogRecord(Position(TOPIC, 0, offset), int(timestamp.timestamp() * 1000), b"k", value)


def sourced(
    event_id: str = "e0", *, seconds: float = 0, offset: int = 0, **fields: Any
) -> SourcedEvent:
    """Give a decoded event that was said ``seconds`` after the start."""
    moment = at(seconds)
    value = orjson.dumps(body(event_id, occurred_at=moment.isoformat(), **fields))
    decoded = decode(
        record(value, offset, timestamp=moment + timedelta(seconds=1)), ("tenant", "agent", "user")
    )
    assert not isinstance(decoded, InvalidEvent), decoded
    return decoded


def atom(
    atom_id: str,
    text: str,
    *,
    seconds: float = 0,
    slot: str | None = None,
    sources: Sequence[str] = (),
    **fields: Any,
) -> Atom:
    """Give an active persona atom stated ``seconds`` after the start."""
    given: dict[str, Any] = {
        "atom_id": atom_id,
        "scope": "acme/helper/ana",
        "session_id": "s1",
        "type": "persona",
        "text": text,
        "priority": 60,
        "slot": slot,
        "source_event_ids": tuple(sources) or (f"event-of-{atom_id}",),
        "window_id": f"window-of-{atom_id}",
        "extractor": "test/1",
        "occurred_at": at(seconds),
        "valid_from": at(seconds),
    }
    return Atom(**(given | fields))

"""Records inside a dataflow: they live in memory and in recovery snapshots, never in a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from stores.records.atom import AtomType
from stores.records.event import L0Event
from stores.records.log import Headers, LogRecord, Position
from stores.speakers import UNNAMED

__all__ = [
    "ClosedBy",
    "Extraction",
    "IndexedEvent",
    "Memory",
    "Redriven",
    "RefusedMemory",
    "SceneSegment",
    "SourcedEvent",
    "Window",
]


@dataclass(frozen=True, slots=True)
class Redriven:
    """That a record is a dead letter which was produced again.

    :arg letter: where the dead letter stands, as ``l1.dlq/0/17``.
    :arg stage: the stage that had given up on it.
    :arg window_id: the window that was given up; empty for a record that reached none.
    :arg window_size: events of that window; 0 without one.
    :arg window_index: the event's place in it, from 0.
    """

    letter: str
    stage: str
    window_id: str = ""
    window_size: int = 0
    window_index: int = 0


@dataclass(frozen=True, slots=True)
class SourcedEvent:
    """A decoded event, its scope and the record it came from.

    The record is kept for the dead letter, which must carry the original bytes; a pickle
    (a recovery snapshot) holds only those and decodes them again.

    :arg occurred_at: the event's own time in UTC, or the log's when the own one was refused.
    :arg clock_ahead: the producer's date lay too far ahead of the log's and was replaced.
    :arg redriven: set when this is a dead letter that came again. The record is then as it was
        the first time, with the position and the time of that.
    """

    scope: str
    event: L0Event
    record: LogRecord
    occurred_at: datetime
    clock_ahead: bool = False
    redriven: Redriven | None = None

    @property
    def position(self) -> Position:
        """Where the event stands in its log."""
        return self.record.position

    def __reduce__(self) -> tuple[Any, ...]:
        # Flat: a snapshot holds thousands of events, and each object in it costs its own call.
        record = self.record
        fields = (*record.position, record.timestamp_ms, record.key, record.value, record.headers)
        own = (self.scope, self.occurred_at, self.clock_ahead, self.redriven)
        return (_sourced_again, (*own, *fields))


def _sourced_again(
    scope: str,
    occurred_at: datetime,
    clock_ahead: bool,
    redriven: Redriven | None,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> SourcedEvent:
    event = L0Event.model_validate_json(value or b"")
    record = LogRecord(Position(topic, partition, offset), timestamp_ms, key, value, headers)
    return SourcedEvent(scope, event, record, occurred_at, clock_ahead, redriven)


ClosedBy = Literal["turns", "gap", "session_end", "size", "idle", "end_of_input", "redrive", "edit"]


@dataclass(frozen=True, slots=True)
class Window:
    """A closed stretch of one session: what one extraction call sees.

    :arg events: in log order, at least one; every one of them ends with this window.
    :arg background: up to a few earlier messages of the session, for context only.
    """

    window_id: str
    scope: str
    session_id: str
    events: tuple[SourcedEvent, ...]
    background: tuple[SourcedEvent, ...]
    closed_by: ClosedBy

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.window_id, self.scope, self.session_id, self.events, self.background)
        return (Window, (*fields, self.closed_by))


@dataclass(frozen=True, slots=True)
class Memory:
    """What an extractor proposes, before it becomes an :class:`~stores.records.Atom`.

    The fields are those of an atom. ``valid_until``: when it is known to end, as of a trip.
    """

    text: str
    type: AtomType
    priority: int
    source_event_ids: tuple[str, ...]
    slot: str | None = None
    activity_start: datetime | None = None
    activity_end: datetime | None = None
    valid_until: datetime | None = None
    said_by: str = UNNAMED
    scene: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedMemory:
    """A proposed memory that was not taken, and why."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class SceneSegment:
    """A part of a window that is about one situation. ``event_ids`` are in log order."""

    name: str
    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extraction:
    """All that one extraction call gave.

    :arg prompt_tokens: tokens sent; 0 when no model was asked or a recorded answer was used.
    """

    memories: tuple[Memory, ...]
    refused: tuple[RefusedMemory, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    scenes: tuple[SceneSegment, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexedEvent:
    """An L0 event as the search index keeps it."""

    scope: str
    event_id: str
    session_id: str
    role: str
    text: str
    occurred_at: datetime
    position: Position
    user_id: str = ""
    name: str = ""

    def search_text(self) -> str:
        """Give what is embedded and indexed: who speaks, where that has a name, and the text."""
        return f"{self.name}: {self.text}" if self.name else self.text

    @classmethod
    def of(cls, sourced: SourcedEvent) -> IndexedEvent:
        """Take from a decoded event what search needs."""
        event = sourced.event
        return cls(
            scope=sourced.scope,
            event_id=event.event_id,
            session_id=event.session_id,
            role=event.role or "",
            text=event.text(),
            occurred_at=sourced.occurred_at,
            position=sourced.position,
            user_id=event.user_id,
            name=event.name or "",
        )

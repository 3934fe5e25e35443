"""What flows and what is kept: the record types, frozen, versioned, decoded once at the edge.

Three families:

- **log records** (:class:`LogRecord` in, :class:`OutRecord` out): bytes with a position;
- **contract records** (:class:`L0Event`, :class:`Atom`, :class:`Outcome`, :class:`SceneJob`):
  what topics carry as JSON, published as JSON Schema under ``docs/contract/``;
- **flow records** (:class:`SourcedEvent`, :class:`Window`, :class:`Memory`): inside a dataflow.

All times are aware datetimes; every one of them is event time, never a wall clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from stores.slots import slot_words

__all__ = [
    "ATOM_TYPES",
    "CONTRACT_VERSION",
    "DECODE_REASONS",
    "MAX_EVENT_BYTES",
    "SKIP_REASONS",
    "Atom",
    "AtomStatus",
    "AtomType",
    "ContentPart",
    "Extraction",
    "Headers",
    "IndexedEvent",
    "L0Event",
    "LogRecord",
    "Memory",
    "OutRecord",
    "Outcome",
    "Position",
    "Redriven",
    "RefusedMemory",
    "Role",
    "SceneJob",
    "SourcedEvent",
    "Window",
    "to_utc",
]

CONTRACT_VERSION = 1
MAX_EVENT_BYTES = 1024 * 1024
MAX_ID_CHARS = 256

DECODE_REASONS: dict[str, str] = {
    "null_body": "the record has no value",
    "oversized": f"the value is larger than {MAX_EVENT_BYTES} bytes",
    "invalid_utf8": "the value is not UTF-8",
    "invalid_json": "the value is not JSON",
    "unknown_version": f"`v` is not {CONTRACT_VERSION}",
    "invalid_schema": "a field is missing or wrong; the error names it",
    "empty_id": "an id of the scope, the session or the event is empty",
}
"""Why a record of the events topic can be refused at the edge, by reason code."""

SKIP_REASONS: dict[str, str] = {
    "no_user_text": "the window holds nothing that a user said",
    "session_end": "a session end with no open window",
    "forget_unhandled": "a forget request; forgetting is not built yet, the request is kept",
    "dropped_by_operator": "a person dropped the dead letter for good",
}
"""Why an event or window can end as ``skipped``, by reason code."""


def to_utc(value: datetime) -> datetime:
    """Express an aware datetime in UTC."""
    return value.astimezone(timezone.utc)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _no_control(value: str) -> str:
    if _CONTROL.search(value):
        message = "must not contain control characters"
        raise ValueError(message)
    return value


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(_no_control)]
"""Any Unicode without control characters, 1 to 256 characters."""

Role = Literal["user", "assistant", "system", "tool"]
Headers = tuple[tuple[str, bytes], ...]


# --- log records -----------------------------------------------------------------------------


class Position(NamedTuple):
    """Where a record stands in a log. ``offset`` counts records of one partition from 0."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as read from a log: untouched bytes and their position.

    :arg timestamp_ms: the log's own time for the record, milliseconds since the epoch.
    """

    position: Position
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class OutRecord:
    """One record to be written to ``topic``; the partition follows from ``key``."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


# --- contract records ------------------------------------------------------------------------


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ContentPart(BaseModel):
    """One part of an OpenAI-style message content. Only ``text`` parts are read."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str
    text: str | None = None


class L0Event(_Contract):
    """One event of a conversation, as a producer writes it to the events topic.

    ``event_id`` is the idempotency key within the scope: the first record with it counts,
    later ones are dropped. ``extra="ignore"``: unknown fields stay in the log, unread.
    """

    v: Literal[1] = Field(description="Version of this contract.")
    event_id: Id = Field(description="Idempotency key, unique within the scope.")
    type: Literal["message", "session_end", "forget"] = "message"
    tenant_id: Id
    agent_id: Id
    user_id: Id
    session_id: Id
    team_id: Id | None = None
    task_id: Id | None = None
    role: Role | None = Field(default=None, description="Who speaks. Required for a message.")
    content: str | tuple[ContentPart, ...] | None = Field(
        default=None, description="Text, or OpenAI-style parts of which the text is used."
    )
    name: str | None = None
    tool_calls: JsonValue | None = Field(default=None, description="Kept, not extracted from.")
    tool_call_id: str | None = None
    occurred_at: AwareDatetime = Field(description="RFC 3339 with an offset: when it was said.")
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _message_is_complete(self) -> L0Event:
        if self.type == "message":
            if self.role is None:
                message = "role: a message needs one of user, assistant, system, tool"
                raise ValueError(message)
            if self.content is None and self.tool_calls is None:
                message = "content: a message needs content or tool_calls"
                raise ValueError(message)
        return self

    def text(self) -> str:
        """Read the content as plain text: text parts joined by newlines, others as ``[type]``."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(
            part.text if part.type == "text" and part.text is not None else f"[{part.type}]"
            for part in self.content
        )


AtomType = Literal["persona", "episodic", "instruction"]
ATOM_TYPES: tuple[AtomType, ...] = ("persona", "episodic", "instruction")
AtomStatus = Literal["active", "superseded"]


class Atom(_Contract):
    """One self-contained fact (L1), with where it came from and how long it holds.

    An atom is never deleted by a newer one: it is superseded, and keeps its history.
    """

    v: Literal[1] = 1
    atom_id: str = Field(description="Content id of window, ordinal and extractor version.")
    scope: str
    session_id: str
    type: AtomType
    text: str
    priority: int = Field(ge=-1, le=100, description="0 to 100; -1 is a strict instruction.")
    slot: str | None = Field(
        default=None, description="What single-valued thing it states, e.g. `home.city`."
    )
    source_event_ids: tuple[str, ...]
    window_id: str
    extractor: str = Field(description="Name and version of what extracted it.")
    occurred_at: AwareDatetime = Field(description="Event time of its newest source event.")
    activity_start: AwareDatetime | None = None
    activity_end: AwareDatetime | None = None
    status: AtomStatus = "active"
    valid_from: AwareDatetime
    valid_until: AwareDatetime | None = None
    superseded_by: str | None = None

    def search_text(self) -> str:
        """Give what is embedded and indexed: the text, and in words what it is the value of.

        "User moved to Lisbon" alone is not near the question where somebody lives.
        """
        words = slot_words(self.slot, self.text) if self.slot else ""
        return f"{self.text} ({words})" if words else self.text


OutcomeResult = Literal["extracted", "empty", "skipped", "dead_lettered", "indexed"]


class Outcome(_Contract):
    """Exactly one visible end of one window or one record.

    ``outcome_id`` is the window's id, or for a record that never reached a window the content
    id of its position. The same outcome may be written twice after a crash, then with the
    ``attempts`` of that run: a recorded answer takes one. A different one follows only where a
    person redrives a dead letter: of one id, the newest counts. Dropping a dead letter writes
    an outcome under an id of its own. ``indexed`` is written only for a redriven message whose
    indexing had failed.
    """

    v: Literal[1] = 1
    outcome_id: str
    kind: Literal["window", "record"]
    stage: str
    result: OutcomeResult
    reason: str | None = None
    scope: str | None = None
    session_id: str | None = None
    event_ids: tuple[str, ...] = ()
    atom_ids: tuple[str, ...] = ()
    refused: dict[str, int] = Field(
        default_factory=dict, description="Memories the extractor gave that were refused, by reason"
    )
    topic: str
    partition: int
    offsets: tuple[int, ...]
    attempts: int = 1
    pipeline: str = Field(description="Version of the pipeline that decided it.")


class SceneJob(_Contract):
    """A request to the scene stage: these atoms of this scope are new or changed."""

    v: Literal[1] = 1
    job_id: str
    scope: str
    window_id: str
    atom_ids: tuple[str, ...]
    occurred_at: AwareDatetime


# --- flow records ----------------------------------------------------------------------------


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
        fields = (self.scope, self.record, self.occurred_at, self.clock_ahead, self.redriven)
        return (_sourced, fields)


def _sourced(
    scope: str,
    record: LogRecord,
    occurred_at: datetime,
    clock_ahead: bool,
    redriven: Redriven | None = None,
) -> SourcedEvent:
    event = L0Event.model_validate_json(record.value or b"")
    return SourcedEvent(scope, event, record, occurred_at, clock_ahead, redriven)


ClosedBy = Literal["turns", "gap", "session_end", "size", "idle", "end_of_input", "redrive"]


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


@dataclass(frozen=True, slots=True)
class Memory:
    """What an extractor proposes, before it becomes an :class:`Atom`."""

    text: str
    type: AtomType
    priority: int
    source_event_ids: tuple[str, ...]
    slot: str | None = None
    activity_start: datetime | None = None
    activity_end: datetime | None = None


@dataclass(frozen=True, slots=True)
class RefusedMemory:
    """A proposed memory that was not taken, and why."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Extraction:
    """All that one extraction call gave.

    :arg prompt_tokens: tokens sent; 0 when no model was asked or a recorded answer was used.
    """

    memories: tuple[Memory, ...]
    refused: tuple[RefusedMemory, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0


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

    def search_text(self) -> str:
        """Give what is embedded and indexed."""
        return self.text

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
        )


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of a contract record."""
    schema = model.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

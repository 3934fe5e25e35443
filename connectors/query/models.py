"""The JSON that the query service speaks; the CLI prints the same shapes.

Requests refuse unknown fields, so that a misspelt filter is an error and not a wider answer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from stores.protocols import SearchArm
from stores.records import Atom, Id, L0Event

__all__ = [
    "MAX_EVENTS",
    "MAX_LIMIT",
    "Cut",
    "CutReason",
    "Degraded",
    "ErrorAnswer",
    "ErrorBody",
    "EventBatch",
    "EventError",
    "EventsAnswer",
    "ItemLayer",
    "Layer",
    "MemoriesAnswer",
    "MemoryAnswer",
    "ReadyAnswer",
    "RecallAnswer",
    "RecallItem",
    "RecallRequest",
    "SourceEvent",
]

MAX_LIMIT = 100
MAX_EVENTS = 500

Layer = Literal["atoms", "events"]
"""What can be asked for, in the words of :class:`~stores.protocols.Searcher`."""

ItemLayer = Literal["atom", "event"]
"""What one item is."""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


# --- recall ----------------------------------------------------------------------------------


class RecallRequest(BaseModel):
    """Body of ``POST /v1/recall``. The scope parts can only narrow what the key allows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str = Field(min_length=1, description="What to recall. Cut at 2048 characters.")
    tenant: str | None = None
    agent: str | None = None
    user: str | None = None
    team: str | None = None
    limit: int | None = Field(
        default=None, ge=1, le=MAX_LIMIT, description="Items at most; default by setting."
    )
    budget_tokens: int | None = Field(
        default=None, ge=1, le=100_000, description="Tokens of `context` at most."
    )
    layers: tuple[Layer, ...] = Field(default=("atoms", "events"), min_length=1)
    session_id: Id | None = Field(default=None, description="Only what this session said.")
    since: AwareDatetime | None = Field(
        default=None, description="Event time, RFC 3339, inclusive."
    )
    until: AwareDatetime | None = Field(
        default=None, description="Event time, RFC 3339, exclusive."
    )


class RecallItem(_Answer):
    """One memory.

    ``type`` is an atom's type, or who said an event. ``text`` has no control characters and
    no direction marks; when ``truncated``, the whole is found under ``id``.
    """

    id: str
    layer: ItemLayer
    type: str
    text: str
    score: float = Field(description="Comparable only within one answer.")
    ranks: dict[SearchArm, int] = Field(description="Place in each arm that found it, from 1.")
    occurred_at: AwareDatetime
    session_id: str
    source_event_ids: tuple[str, ...]
    truncated: bool = False
    tokens: int = Field(default=0, description="Tokens of `text`.")


CutReason = Literal["limit", "budget_tokens", "max_total_recall_chars", "said_by_atom"]


class Cut(_Answer):
    """Memories that were found and left out. ``ids`` names the best of them, at most 20."""

    reason: CutReason
    count: int
    ids: tuple[str, ...]


class Degraded(_Answer):
    """A part that did not answer: ``embed`` or layer and arm, such as ``atoms.keyword``."""

    part: str
    reason: str


class RecallAnswer(_Answer):
    """What was recalled, best first.

    ``context`` is the items rendered for a prompt inside a data fence, ``""`` when there are
    none; ``tokens`` is its exact length and never more than ``budget_tokens``.
    """

    items: tuple[RecallItem, ...]
    context: str
    tokens: int
    budget_tokens: int
    cut: tuple[Cut, ...] = ()
    degraded: tuple[Degraded, ...] = ()
    notes: tuple[str, ...] = ()
    timings_ms: dict[str, float]


# --- events ----------------------------------------------------------------------------------


class EventBatch(BaseModel):
    """Several events in one request; each is checked on its own."""

    events: list[L0Event] = Field(min_length=1, max_length=MAX_EVENTS)


class EventError(_Answer):
    """Why one event was rejected. ``index`` counts from 0 in the order sent."""

    index: int
    field: str
    code: str
    message: str


class ErrorBody(_Answer):
    """An error: a stable code, what was wrong and what to do, the field at fault if any."""

    code: str
    message: str
    field: str | None = None


class ErrorAnswer(_Answer):
    """Every answer that is not a success."""

    error: ErrorBody


class EventsAnswer(_Answer):
    """What became of the events sent.

    ``accepted`` are in the log. ``duplicates`` repeat an event id of the same request; ids
    repeated between requests are accepted here and dropped by the flow. ``error`` is there
    when every event was rejected.
    """

    accepted: int
    duplicates: int
    rejected: int
    errors: tuple[EventError, ...] = ()
    error: ErrorBody | None = None


# --- memories and health ---------------------------------------------------------------------


class MemoriesAnswer(_Answer):
    """Atoms of a scope, by ``occurred_at`` and then id; ``total`` counts all pages."""

    items: tuple[Atom, ...]
    total: int


class SourceEvent(_Answer):
    """An event that a memory came from, as the index keeps it."""

    event_id: str
    session_id: str
    role: str
    text: str
    occurred_at: AwareDatetime


class MemoryAnswer(_Answer):
    """One atom and the events it came from; ``events`` is null when they cannot be looked up."""

    memory: Atom
    events: tuple[SourceEvent, ...] | None


class ReadyAnswer(_Answer):
    """Readiness; each dependency is ``ok`` or the reason it is not."""

    ready: bool
    checks: dict[str, str]

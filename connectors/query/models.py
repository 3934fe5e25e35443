"""The JSON that the query service speaks; the CLI prints the same shapes.

Requests refuse unknown fields, so that a misspelt filter is an error and not a wider answer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from stores.protocols import SearchArm
from stores.records import AtomStatus, AtomType, Id, L0Event, Moment

__all__ = [
    "MAX_EVENTS",
    "MAX_LIMIT",
    "Answer",
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
    "RecallAnswer",
    "RecallItem",
    "RecallRequest",
    "ScopeParts",
    "SearchAnswer",
    "SearchLayer",
    "SearchRequest",
]

MAX_LIMIT = 100
MAX_EVENTS = 500

Layer = Literal["persona", "scenes", "atoms", "events"]
"""What can be asked for. The persona is not searched: it is told as a whole."""

SearchLayer = Literal["scenes", "atoms", "events"]
"""What is searched."""

ItemLayer = Literal["scene", "atom", "event"]
"""What one item is."""


class Answer(BaseModel):
    """What all answers share."""

    model_config = ConfigDict(frozen=True)


class ScopeParts(BaseModel):
    """Whose memory is meant. The parts can only narrow what the key allows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str | None = Field(default=None, description="Left out: the key's own.")
    agent: str | None = Field(default=None, description="Left out: the key's own.")
    user: str | None = Field(default=None, description="Left out: the key's own.")
    team: str | None = Field(default=None, description="Left out: the key's own.")


# --- recall ----------------------------------------------------------------------------------


class RecallRequest(ScopeParts):
    """Body of ``POST /v1/recall``."""

    query: str = Field(min_length=1, description="What to recall. Cut at 2048 characters.")
    limit: int | None = Field(
        default=None, ge=1, le=MAX_LIMIT, description="Items at most; default by setting."
    )
    budget_tokens: int | None = Field(
        default=None, ge=1, le=100_000, description="Tokens of `context` at most."
    )
    layers: tuple[Layer, ...] = Field(
        default=("persona", "scenes", "atoms", "events"), min_length=1
    )
    types: tuple[AtomType, ...] = Field(default=(), description="Only atoms of these types.")
    session_id: Id | None = Field(default=None, description="Only what this session said.")
    since: Moment | None = Field(default=None, description="Event time, RFC 3339, inclusive.")
    until: Moment | None = Field(default=None, description="Event time, RFC 3339, exclusive.")
    as_of: Moment | None = Field(
        default=None, description="Answer as things stood then, by event time and validity."
    )
    only_active: bool = Field(
        default=True,
        description="Leave out atoms that are superseded, stale, rejected or expired.",
    )
    explain: bool = Field(default=False, description="Say of each item what its score is made of.")


class RecallItem(Answer):
    """One memory.

    ``type`` is an atom's type, who said an event, or ``scene``. ``text`` has no control
    characters and no direction marks; when ``truncated``, the whole is found under ``id``. An
    event without ``ranks`` stands beside one that was found.
    """

    id: str
    layer: ItemLayer
    type: str
    speaker: str | None = Field(default=None, description="Name of who said an event.")
    text: str
    score: float = Field(description="Comparable only within one answer.")
    ranks: dict[SearchArm, int] = Field(description="Place in each arm that found it, from 1.")
    occurred_at: AwareDatetime
    session_id: str
    source_event_ids: tuple[str, ...]
    status: AtomStatus | None = Field(default=None, description="Of an atom.")
    valid_from: AwareDatetime | None = Field(default=None, description="Of an atom.")
    valid_until: AwareDatetime | None = Field(default=None, description="Of an atom that ends.")
    truncated: bool = False
    tokens: int = Field(default=0, description="Tokens of `text`.")
    explain: dict[str, float] | None = Field(
        default=None, description="Factors of the score, when asked for."
    )


CutReason = Literal[
    "limit", "budget_tokens", "max_total_recall_chars", "said_by_another", "system_budget"
]


class Cut(Answer):
    """Memories that were found and left out. ``ids`` names the best of them, at most 20."""

    reason: CutReason
    count: int
    ids: tuple[str, ...]


class Degraded(Answer):
    """A part that did not answer: ``embed``, ``profiles``, ``events.near``, or layer and arm."""

    part: str
    reason: str


class RecallAnswer(Answer):
    """What was recalled, best first.

    ``system_context`` tells who the scope is about: the persona and the list of scenes. It is
    the same for every question until one of them changes, so that a prompt cache holds.
    ``user_context`` is the items by day, in order of time. Both are rendered for a prompt inside
    a data fence, ``""`` when there is nothing; ``tokens`` is the exact length of both and never
    more than ``budget_tokens``.
    """

    items: tuple[RecallItem, ...]
    system_context: str
    user_context: str
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


class EventError(Answer):
    """Why one event was rejected. ``index`` counts from 0 in the order sent."""

    index: int
    field: str
    code: str
    message: str


class ErrorBody(Answer):
    """An error: a stable code, what was wrong and what to do, the field at fault if any."""

    code: str
    message: str
    field: str | None = None


class ErrorAnswer(Answer):
    """Every answer that is not a success."""

    error: ErrorBody


class EventsAnswer(Answer):
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


# --- search ----------------------------------------------------------------------------------


class SearchRequest(ScopeParts):
    """Body of ``/v1/memories/search`` and ``/v1/events/search``: hybrid search of one layer.

    Pages are cut from one ranking of the first hundred hits.
    """

    query: str = Field(min_length=1, description="What to find. Cut at 2048 characters.")
    limit: int = Field(default=10, ge=1, le=MAX_LIMIT, description="Hits of this page at most.")
    offset: int = Field(default=0, ge=0, lt=MAX_LIMIT, description="Hits to pass over.")
    types: tuple[AtomType, ...] = Field(default=(), description="Only atoms of these types.")
    session_id: Id | None = Field(default=None, description="Only what this session said.")
    since: Moment | None = Field(default=None, description="Event time, RFC 3339, inclusive.")
    until: Moment | None = Field(default=None, description="Event time, RFC 3339, exclusive.")
    as_of: Moment | None = Field(
        default=None, description="Find what held, or was said by, this time."
    )
    only_active: bool = Field(default=True, description="Leave out atoms that hold no longer.")
    explain: bool = Field(default=False, description="Say of each hit what its score is made of.")


class SearchAnswer(Answer):
    """Hits of one layer, best first, their texts whole; ``total`` counts the ranked hits."""

    items: tuple[RecallItem, ...]
    total: int
    degraded: tuple[Degraded, ...] = ()
    notes: tuple[str, ...] = ()
    timings_ms: dict[str, float]

"""The JSON that the query service speaks; the CLI prints the same shapes.

Requests refuse unknown fields, so that a misspelt filter is an error and not a wider answer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from stores.protocols import SearchArm
from stores.records import (
    Atom,
    AtomStatus,
    AtomType,
    ControlRequest,
    ForgetTarget,
    Id,
    L0Event,
    Profile,
)

__all__ = [
    "MAX_EVENTS",
    "MAX_IDS",
    "MAX_LIMIT",
    "Cut",
    "CutReason",
    "Degraded",
    "ErrorAnswer",
    "ErrorBody",
    "EventBatch",
    "EventError",
    "EventsAnswer",
    "ForgetAnswer",
    "ForgetPreview",
    "ForgetRequest",
    "ItemLayer",
    "Layer",
    "LayerStatus",
    "ListRequest",
    "MemoriesAnswer",
    "MemoryAnswer",
    "ReadyAnswer",
    "RecallAnswer",
    "RecallItem",
    "RecallRequest",
    "RejectRequest",
    "SceneHead",
    "ScenesAnswer",
    "ScopeParts",
    "SearchAnswer",
    "SearchLayer",
    "SearchRequest",
    "SourceEvent",
    "StatusAnswer",
]

MAX_LIMIT = 100
MAX_IDS = 1000
MAX_EVENTS = 500

Layer = Literal["persona", "scenes", "atoms", "events"]
"""What can be asked for. The persona is not searched: it is told as a whole."""

SearchLayer = Literal["scenes", "atoms", "events"]
"""What is searched."""

ItemLayer = Literal["scene", "atom", "event"]
"""What one item is."""


class _Answer(BaseModel):
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
    since: AwareDatetime | None = Field(
        default=None, description="Event time, RFC 3339, inclusive."
    )
    until: AwareDatetime | None = Field(
        default=None, description="Event time, RFC 3339, exclusive."
    )
    as_of: AwareDatetime | None = Field(
        default=None, description="Answer as things stood then, by event time and validity."
    )
    only_active: bool = Field(
        default=True,
        description="Leave out atoms that are superseded, stale, rejected or expired.",
    )
    explain: bool = Field(default=False, description="Say of each item what its score is made of.")


class RecallItem(_Answer):
    """One memory.

    ``type`` is an atom's type, who said an event, or ``scene``. ``text`` has no control
    characters and no direction marks; when ``truncated``, the whole is found under ``id``. An
    event without ``ranks`` stands beside one that was found.
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


class Cut(_Answer):
    """Memories that were found and left out. ``ids`` names the best of them, at most 20."""

    reason: CutReason
    count: int
    ids: tuple[str, ...]


class Degraded(_Answer):
    """A part that did not answer: ``embed``, ``profiles``, ``events.near``, or layer and arm."""

    part: str
    reason: str


class RecallAnswer(_Answer):
    """What was recalled, best first.

    ``system_context`` tells who the scope is about: the persona and the list of scenes. It is
    the same for every question until one of them changes, so that a prompt cache holds.
    ``user_context`` is the items. Both are rendered for a prompt inside a data fence, ``""``
    when there is nothing; ``tokens`` is the exact length of both and never more than
    ``budget_tokens``.
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
    since: AwareDatetime | None = Field(
        default=None, description="Event time, RFC 3339, inclusive."
    )
    until: AwareDatetime | None = Field(
        default=None, description="Event time, RFC 3339, exclusive."
    )
    as_of: AwareDatetime | None = Field(
        default=None, description="Find what held, or was said by, this time."
    )
    only_active: bool = Field(default=True, description="Leave out atoms that hold no longer.")
    explain: bool = Field(default=False, description="Say of each hit what its score is made of.")


class SearchAnswer(_Answer):
    """Hits of one layer, best first, their texts whole; ``total`` counts the ranked hits."""

    items: tuple[RecallItem, ...]
    total: int
    degraded: tuple[Degraded, ...] = ()
    notes: tuple[str, ...] = ()
    timings_ms: dict[str, float]


# --- memories and health ---------------------------------------------------------------------


class ListRequest(ScopeParts):
    """Query of ``GET /v1/memories``."""

    only_active: bool = Field(default=False, description="Leave out superseded atoms.")
    limit: int = Field(default=1000, ge=1, le=10_000)
    offset: int = Field(default=0, ge=0, le=1_000_000_000)


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
    """One atom, the events it came from, and the chain of versions of its fact.

    ``events`` is null when they cannot be looked up. The store keeps the newest version of an
    atom; ``memory.version`` counts them.
    """

    memory: Atom
    events: tuple[SourceEvent, ...] | None
    supersedes: tuple[Atom, ...] = Field(
        default=(), description="Atoms whose place it took, and theirs; the nearest first."
    )
    superseded_by: tuple[Atom, ...] = Field(
        default=(), description="The atom that took its place, and so on to the one that holds."
    )


class ReadyAnswer(_Answer):
    """Readiness; each dependency is ``ok`` or the reason it is not."""

    ready: bool
    checks: dict[str, str]


class LayerStatus(_Answer):
    """How far one layer of a scope is. ``newest`` is event time; of a scene or persona, when it
    was last written."""

    records: int
    newest: AwareDatetime | None


class StatusAnswer(_Answer):
    """How fresh a scope is, and what answers."""

    pipeline: str = Field(description="Version of Sediment.")
    generation: str
    layers: dict[Layer, LayerStatus]
    ready: bool
    checks: dict[str, str]


# --- scenes and persona ----------------------------------------------------------------------


class SceneHead(_Answer):
    """What a scene is about; its text is under ``/v1/scenes/{name}``."""

    name: str
    title: str
    summary: str
    heat: int
    version: int
    updated_at: AwareDatetime

    @classmethod
    def of(cls, scene: Profile) -> SceneHead:
        """Show a scene without its text."""
        return cls(
            name=scene.path,
            title=scene.title,
            summary=scene.summary,
            heat=scene.heat,
            version=scene.version,
            updated_at=scene.updated_at,
        )


class ScenesAnswer(_Answer):
    """The scenes of a scope, by name."""

    items: tuple[SceneHead, ...]


# --- forgetting ------------------------------------------------------------------------------


class RejectRequest(ScopeParts):
    """Body of ``POST /v1/memories/{id}/reject``."""

    reason: str | None = Field(
        default=None, max_length=200, description="Kept for ever: no personal data here."
    )


class ForgetRequest(ScopeParts):
    """Body of ``POST /v1/forget``: one kind of thing of one scope."""

    target: ForgetTarget
    session_id: Id | None = Field(default=None, description="For target `session`.")
    event_ids: tuple[Id, ...] = Field(
        default=(), max_length=MAX_IDS, description="For target `event`."
    )
    atom_ids: tuple[Id, ...] = Field(
        default=(), max_length=MAX_IDS, description="For target `atom`."
    )
    reason: str | None = Field(
        default=None, max_length=200, description="Kept for ever: no personal data here."
    )
    dry_run: bool = Field(default=False, description="Only count what would go.")

    @model_validator(mode="after")
    def _names_its_target_and_no_other(self) -> ForgetRequest:
        named = {
            "session": ("session_id", self.session_id),
            "event": ("event_ids", self.event_ids),
            "atom": ("atom_ids", self.atom_ids),
        }
        for target, (field, given) in named.items():
            if bool(given) != (target == self.target):
                wanted = "needed" if target == self.target else "not"
                message = f"{field}: {wanted} for target `{self.target}`"
                raise ValueError(message)
        return self

    def control(self) -> ControlRequest:
        """Give what the event of the request says."""
        return ControlRequest(
            target=self.target,
            event_ids=self.event_ids,
            atom_ids=self.atom_ids,
            reason=self.reason,
        )


class ForgetPreview(_Answer):
    """What would go, counted in the store as it is now."""

    events: int
    memories_removed: int
    memories_changed: int
    profiles: int = Field(description="Scenes and personas that rest on these memories.")


class ForgetAnswer(_Answer):
    """A request that is in the log, to be carried out by the flow; or what it would take away.

    ``event_id`` names it in the outcomes; null for a dry run.
    """

    event_id: str | None
    preview: ForgetPreview | None = None

"""The JSON of memories: listed, looked into, rejected, forgotten; scenes, persona, status."""

from __future__ import annotations

from pydantic import AwareDatetime, Field, model_validator

from connectors.query.cursors import CURSOR
from connectors.query.models import Answer, Layer, ScopeParts
from stores.records import Atom, ControlRequest, ForgetTarget, Id, IndexedEvent, Moment, Profile

__all__ = [
    "EditAnswer",
    "EditRequest",
    "EventsPage",
    "EventsRequest",
    "ForgetAnswer",
    "ForgetPreview",
    "ForgetRequest",
    "LayerStatus",
    "ListRequest",
    "MemoriesAnswer",
    "MemoryAnswer",
    "ReadyAnswer",
    "RejectRequest",
    "SceneHead",
    "ScenesAnswer",
    "SourceEvent",
    "StatusAnswer",
]

_MAX_IDS = 1000  # named in one request
MAX_MEMORY_CHARS = 8192
"""Of a text that a person gives a memory."""

# --- memories, status ---------------------------------------------------------------------


class _Paged(ScopeParts):
    cursor: str | None = Field(
        default=None,
        pattern=CURSOR,
        description="`next_cursor` of the page before; left out, the first page.",
    )
    newest_first: bool = Field(default=False, description="Backwards in time.")


class ListRequest(_Paged):
    """Query of ``GET /v1/memories``."""

    only_active: bool = Field(default=False, description="Leave out superseded atoms.")
    session_id: Id | None = Field(default=None, description="Only what came of this session.")
    limit: int = Field(default=1000, ge=1, le=10_000)
    offset: int = Field(
        default=0, ge=0, le=1_000_000_000, description="Atoms to pass over, behind the cursor."
    )


class MemoriesAnswer(Answer):
    """One page of the atoms of a scope, by event time; ``total`` counts all pages."""

    items: tuple[Atom, ...]
    total: int
    next_cursor: str | None = Field(default=None, description="Null on the last page.")


class EventsRequest(_Paged):
    """Query of ``GET /v1/events``."""

    session_id: Id | None = Field(default=None, description="Only what this session said.")
    since: Moment | None = Field(default=None, description="Event time, RFC 3339, inclusive.")
    until: Moment | None = Field(default=None, description="Event time, RFC 3339, exclusive.")
    limit: int = Field(default=100, ge=1, le=1000)


class SourceEvent(Answer):
    """An event as the index keeps it."""

    event_id: str
    session_id: str
    role: str
    text: str
    occurred_at: AwareDatetime
    name: str = Field(default="", description="Of who speaks, where that has one.")

    @classmethod
    def of(cls, event: IndexedEvent) -> SourceEvent:
        """Show an event."""
        return cls(
            event_id=event.event_id,
            session_id=event.session_id,
            role=event.role,
            text=event.text,
            occurred_at=event.occurred_at,
            name=event.name,
        )


class EventsPage(Answer):
    """One page of what was said, by event time; ``total`` counts all pages."""

    items: tuple[SourceEvent, ...]
    total: int
    next_cursor: str | None = Field(default=None, description="Null on the last page.")


class MemoryAnswer(Answer):
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


class ReadyAnswer(Answer):
    """Readiness; each dependency is ``ok`` or the reason it is not."""

    ready: bool
    checks: dict[str, str]


class LayerStatus(Answer):
    """How far one layer of a scope is.

    ``newest`` is event time; of a scene or persona, when it was last written.
    """

    records: int
    newest: AwareDatetime | None


class StatusAnswer(Answer):
    """How fresh a scope is, and what answers."""

    pipeline: str = Field(description="Version of Sediment.")
    generation: str
    layers: dict[Layer, LayerStatus]
    ready: bool
    checks: dict[str, str]


# --- scenes and persona ----------------------------------------------------------------------


class SceneHead(Answer):
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


class ScenesAnswer(Answer):
    """The scenes of a scope, by name."""

    items: tuple[SceneHead, ...]


# --- editing ---------------------------------------------------------------------------------


class EditRequest(ScopeParts):
    """Body of ``PATCH /v1/memories/{id}``."""

    text: str = Field(
        min_length=1,
        max_length=MAX_MEMORY_CHARS,
        pattern=r"\S",
        description="What the memory says from now on.",
    )


class EditAnswer(Answer):
    """An edit that is in the log, to be carried out by the flow.

    ``memory_id`` is where the new text will be; where the scope has a memory that says the same
    already, that one stands for it. ``event_id`` names the request in the outcomes; null where
    the text is what it was, and nothing is to be done.
    """

    event_id: str | None
    memory_id: str


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
        default=(), max_length=_MAX_IDS, description="For target `event`."
    )
    atom_ids: tuple[Id, ...] = Field(
        default=(), max_length=_MAX_IDS, description="For target `atom`."
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


class ForgetPreview(Answer):
    """What would go, counted in the store as it is now."""

    events: int
    memories_removed: int
    memories_changed: int
    profiles: int = Field(description="Scenes and personas that rest on these memories.")


class ForgetAnswer(Answer):
    """A request that is in the log, to be carried out by the flow; or what it would take away.

    ``event_id`` names it in the outcomes; null for a dry run.
    """

    event_id: str | None
    preview: ForgetPreview | None = None

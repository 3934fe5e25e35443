"""L1: one self-contained fact."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from stores.records.base import Contract
from stores.slots import slot_words
from stores.speakers import UNNAMED, told_of_user

__all__ = ["ATOM_TYPES", "CHAT_TYPES", "WORK_TYPES", "Atom", "AtomStatus", "AtomType"]

AtomType = Literal[
    "persona", "episodic", "instruction", "work_fact", "work_task", "work_method", "work_artifact"
]
CHAT_TYPES: tuple[AtomType, ...] = ("persona", "episodic", "instruction")
WORK_TYPES: tuple[AtomType, ...] = ("work_fact", "work_task", "work_method", "work_artifact")
ATOM_TYPES: tuple[AtomType, ...] = CHAT_TYPES + WORK_TYPES
AtomStatus = Literal["active", "superseded", "stale", "rejected"]
"""``active`` is told to agents. ``superseded``: a newer atom took its place. ``stale``: it no
longer holds and nothing took its place. ``rejected``: a person marked the value as wrong."""


class Atom(Contract):
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
    supersedes: tuple[str, ...] = Field(
        default=(), description="Atoms whose place it took; a reader who sees both shows this one."
    )
    statements: tuple[tuple[str, ...], ...] = Field(
        default=(),
        description="Event ids of each time it was said, apart: it stands on any one of them. "
        "Empty means once, by all source events together.",
    )
    version: int = Field(default=1, ge=1, description="Grows by one with every change.")
    said_by: str = Field(default=UNNAMED, description="`user`, or the name the speaker goes by.")
    scene: str | None = Field(default=None, description="Situation it belongs to, in words.")
    details: dict[str, str] = Field(
        default_factory=dict,
        description="Fields of a work type: owner, deadline, status; area, method; artifact.",
    )
    warnings: tuple[str, ...] = Field(
        default=(), description="Codes of what the quality gate found but let pass."
    )

    def search_text(self) -> str:
        """Give what is embedded and indexed: the text, and in words what it is the value of.

        "User moved to Lisbon" alone is not near the question where somebody lives. A speaker's
        name is left out: it would be near every question that names them.
        """
        text = told_of_user(self.text, self.said_by)
        words = slot_words(self.slot, text) if self.slot else ""
        return f"{text} ({words})" if words else text

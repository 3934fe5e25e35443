"""The JSON of ``/v3/atomic``, ``/v3/scenario`` and ``/v3/core``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from connectors.query.models import Answer, Degraded
from connectors.query.v3.models import (
    MAX_CONTENT_CHARS,
    MAX_DELETED,
    Limit,
    Offset,
    Query,
    Request,
    Span,
    distinct,
)
from stores.records import Id

__all__ = [
    "AtomicDelete",
    "AtomicFilter",
    "AtomicHit",
    "AtomicHits",
    "AtomicItem",
    "AtomicPage",
    "AtomicQuery",
    "AtomicSearch",
    "AtomicUpdate",
    "AtomicUpdated",
    "CoreFile",
    "CoreRequest",
    "CoreWrite",
    "CoreWritten",
    "Nothing",
    "ScenarioEntry",
    "ScenarioFile",
    "ScenarioFilter",
    "ScenarioList",
    "ScenarioPath",
    "ScenarioWrite",
    "ScenarioWritten",
]

# --- atomic ----------------------------------------------------------------------------------


class AtomicFilter(Span):
    """Body of ``atomic/count``."""

    session_id: Id | None = None
    type: str | None = None


class AtomicQuery(AtomicFilter):
    """Body of ``atomic/query``."""

    limit: Limit = 20
    offset: Offset = 0


class AtomicSearch(Span):
    """Body of ``atomic/search``. It looks into all sessions, whichever is named."""

    query: Query
    limit: Limit = 5
    type: str | None = None


class AtomicItem(Answer):
    """One atom. ``updated_at`` is the event time of the newest message that it rests on."""

    id: str
    type: str
    content: str
    background: str = ""
    version: int
    team_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    created_at: str
    updated_at: str
    priority: int
    source_message_ids: tuple[str, ...]


class AtomicPage(Answer):
    """Atoms, the newest first; ``total`` counts all pages."""

    items: tuple[AtomicItem, ...]
    total: int


class AtomicHit(AtomicItem):
    """One atom that was found."""

    score: float


class AtomicHits(Answer):
    """Atoms that were found, best first. ``degraded`` is there when a part did not answer."""

    items: tuple[AtomicHit, ...]
    degraded: tuple[Degraded, ...] = ()


class AtomicUpdate(Request):
    """Body of ``atomic/update``."""

    id: str
    content: str = Field(max_length=MAX_CONTENT_CHARS)
    background: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> AtomicUpdate:
        if not self.content.strip():
            message = "content: an atom needs a text; use atomic/delete to take it away"
            raise ValueError(message)
        return self


class AtomicUpdated(Answer):
    """The version that the atom gets."""

    id: str
    version: str
    updated_at: str


class AtomicDelete(Request):
    """Body of ``atomic/delete``."""

    ids: tuple[str, ...] = Field(min_length=1, max_length=MAX_DELETED)

    @model_validator(mode="after")
    def _names_something(self) -> AtomicDelete:
        if not self.named():
            message = "ids: name at least one"
            raise ValueError(message)
        return self

    def named(self) -> tuple[str, ...]:
        """Give each id once, without blank ones."""
        return distinct(self.ids)


# --- scenario --------------------------------------------------------------------------------


def _relative(path: str) -> str:
    if "\0" in path or "\\" in path or path.startswith("/") or ".." in path.split("/"):
        message = "a path is relative, without `..`, backslash or NUL"
        raise ValueError(message)
    return path


_Path = Annotated[str, Field(min_length=1), AfterValidator(_relative)]


class ScenarioFilter(Request):
    """Body of ``scenario/ls`` and ``scenario/count``."""

    path_prefix: str = ""


class ScenarioPath(Request):
    """Body of ``scenario/read`` and ``scenario/rm``."""

    path: _Path


class ScenarioWrite(ScenarioPath):
    """Body of ``scenario/write``."""

    content: str = Field(min_length=1)
    summary: str | None = Field(default=None, max_length=1000)


class CoreWritten(Answer):
    """A text that is in the log. ``version`` is that of the text which it takes the place of."""

    version: int
    updated_at: str


class ScenarioWritten(CoreWritten):
    """The same of a scene file."""

    path: str


class Nothing(Answer):
    """What a removal gives."""


class ScenarioEntry(Answer):
    """One scene file, without its text."""

    path: str
    summary: str = ""
    version: int
    team_id: str = ""
    agent_id: str = ""
    created_at: str
    updated_at: str


class ScenarioList(Answer):
    """All scene files, by path."""

    entries: tuple[ScenarioEntry, ...]
    total: int


class CoreFile(Answer):
    """The persona. ``content`` and the times are null where there is none."""

    content: str | None
    version: int = 0
    team_id: str = ""
    agent_id: str = ""
    created_at: str | None
    updated_at: str | None


class ScenarioFile(CoreFile):
    """One scene file. ``content`` and the times are null where there is none."""

    path: str


# --- core ------------------------------------------------------------------------------------


class CoreRequest(Request):
    """Body of ``core/read`` and ``core/count``."""


class CoreWrite(Request):
    """Body of ``core/write``."""

    content: str = Field(min_length=1)

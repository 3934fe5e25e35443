"""What all of ``/v3`` shares, and the JSON of ``/v3/conversation``.

Unknown fields are passed over, as the other system's clients expect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from connectors.query.models import MAX_LIMIT, Answer, Degraded
from stores.records import Id, to_utc

__all__ = [
    "MAX_CONTENT_CHARS",
    "MAX_DELETED",
    "ConversationAdd",
    "ConversationAdded",
    "ConversationDelete",
    "ConversationFilter",
    "ConversationHit",
    "ConversationHits",
    "ConversationItem",
    "ConversationMessage",
    "ConversationPage",
    "ConversationQuery",
    "ConversationSearch",
    "Count",
    "Deleted",
    "Limit",
    "Offset",
    "Query",
    "Request",
    "Span",
    "Time",
    "distinct",
    "iso",
    "milliseconds",
]

MAX_MESSAGES = 100
MAX_CONTENT_CHARS = 8192
MAX_QUERY_CHARS = 2048
MAX_DELETED = 5000
MAX_DELETED_SESSIONS = 100

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc) - timedelta(milliseconds=1)


def iso(value: datetime) -> str:
    """Write a time as the other system does.

    >>> iso(datetime(2026, 3, 1, 9, 30, tzinfo=timezone.utc))
    '2026-03-01T09:30:00.000Z'
    """
    return to_utc(value).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def milliseconds(value: datetime) -> int:
    """Give milliseconds since the epoch: what times are compared by, in the index as here."""
    return (value - _EPOCH) // timedelta(milliseconds=1)


def _written(value: object) -> object:
    if not isinstance(value, str) or not _RFC_3339.fullmatch(value):
        message = "a time is a string like 2026-03-01T09:30:00Z"
        raise ValueError(message)
    return value


def _representable(value: datetime) -> datetime:
    try:
        return to_utc(value)
    except OverflowError:
        message = "this time is before the year 1 or after 9999 in UTC"
        raise ValueError(message) from None


Time = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(_representable)]
_OptionalId = Annotated[Id | None, BeforeValidator(lambda value: value or None)]
Limit = Annotated[int, Field(strict=True, ge=1, le=MAX_LIMIT)]
Offset = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS)]


class Request(BaseModel):
    """The ids that every request can carry; read before the rest, see ``calls``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    team_id: str | None = Field(default=None, description="Or header x-tdai-team-id.")
    agent_id: str | None = Field(default=None, description="Or header x-tdai-agent-id.")
    user_id: str | None = Field(default=None, description="Or header x-tdai-user-id.")
    task_id: str | None = Field(default=None, description="Or header x-tdai-task-id.")


class Span(Request):
    """A stretch of event time, both ends included, to the millisecond."""

    time_start: Time | None = None
    time_end: Time | None = None

    def until(self) -> datetime | None:
        """Give its end as a search takes it: excluded."""
        if self.time_end is None:
            return None
        return min(self.time_end, _LAST) + timedelta(milliseconds=1)

    def holds(self, moment: datetime) -> bool:
        """Say whether a moment is in it."""
        at = milliseconds(moment)
        return not (
            (self.time_start is not None and at < milliseconds(self.time_start))
            or (self.time_end is not None and at > milliseconds(self.time_end))
        )


class Count(Answer):
    """How many there are, counted one by one."""

    total: int


class Deleted(Answer):
    """How many of what was named were there when the request was taken."""

    deleted_count: int


def distinct(ids: Iterable[str]) -> tuple[str, ...]:
    """Give each id once, trimmed, in order, without blank ones.

    >>> distinct(["b", " a ", "", "b"])
    ('b', 'a')
    """
    return tuple(dict.fromkeys(filter(None, (one.strip() for one in ids))))


# --- conversation ----------------------------------------------------------------------------


class ConversationMessage(BaseModel):
    """One message. Send ``id`` or ``timestamp``, and sending it again changes nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: _OptionalId = Field(default=None, description="Idempotency key, unique within the scope.")
    role: Literal["user", "assistant"]
    content: str = Field(min_length=1, max_length=MAX_CONTENT_CHARS)
    timestamp: Time | None = Field(default=None, description="When it was said.")
    recorded_at: Time | None = Field(default=None, description="Stands in for `timestamp`.")


class ConversationAdd(Request):
    """Body of ``conversation/add``."""

    session_id: Id | None = Field(default=None, description="Or header x-tdai-session-id.")
    messages: tuple[ConversationMessage, ...] = Field(min_length=1, max_length=MAX_MESSAGES)


class ConversationAdded(Answer):
    """What is in the log now, in the order sent."""

    accepted_ids: tuple[str, ...]
    accepted_versions: tuple[str, ...]
    total_count: int


class ConversationFilter(Span):
    """Body of ``conversation/count``."""

    session_id: Id | None = None


class ConversationQuery(ConversationFilter):
    """Body of ``conversation/query``."""

    limit: Limit = 20
    offset: Offset = 0


class ConversationSearch(ConversationFilter):
    """Body of ``conversation/search``."""

    query: Query
    limit: Limit = 5


class ConversationItem(Answer):
    """One message."""

    id: str
    session_id: str
    team_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    role: str
    content: str
    timestamp: str


class ConversationPage(Answer):
    """Messages, the newest first; ``total`` counts all pages."""

    messages: tuple[ConversationItem, ...]
    total: int


class ConversationHit(ConversationItem):
    """One message that was found."""

    score: float


class ConversationHits(Answer):
    """Messages that were found, best first. ``degraded`` is there when a part did not answer."""

    messages: tuple[ConversationHit, ...]
    degraded: tuple[Degraded, ...] = ()


class ConversationDelete(Request):
    """Body of ``conversation/delete``."""

    message_ids: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=MAX_DELETED)
    session_ids: tuple[str, ...] | None = Field(
        default=None, min_length=1, max_length=MAX_DELETED_SESSIONS
    )
    session_id: str | None = Field(default=None, description="One more of `session_ids`.")

    @model_validator(mode="after")
    def _names_something(self) -> ConversationDelete:
        if not self.messages() and not self.sessions():
            message = "name at least one of message_ids and session_ids"
            raise ValueError(message)
        if len(self.sessions()) > MAX_DELETED_SESSIONS:
            message = f"session_ids: at most {MAX_DELETED_SESSIONS}"
            raise ValueError(message)
        return self

    def messages(self) -> tuple[str, ...]:
        """Give the ids of messages, each once."""
        return distinct(self.message_ids or ())

    def sessions(self) -> tuple[str, ...]:
        """Give the sessions, each once."""
        return distinct((*(self.session_ids or ()), self.session_id or ""))

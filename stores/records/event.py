"""L0: what producers write."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from stores.records.base import CONTRACT_VERSION, Contract, Id, Moment, OwnerId

__all__ = [
    "DECODE_REASONS",
    "MAX_EVENT_BYTES",
    "ContentPart",
    "ControlRequest",
    "ForgetTarget",
    "L0Event",
    "Role",
]

MAX_EVENT_BYTES = 1024 * 1024

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

Role = Literal["user", "assistant", "system", "tool"]
ForgetTarget = Literal["user", "session", "event", "atom"]


class ControlRequest(Contract):
    """What a ``forget``, ``reject`` or ``edit`` event asks for.

    ``user`` means everything of the event's own ``user_id`` in its scope, ``session`` everything
    of its own ``session_id``; both cover what lies before the request in the log and whatever
    is dated no later than it, however late it comes. A ``reject`` names one atom; an ``edit`` one
    whose new text is the content of the event.
    """

    target: ForgetTarget
    event_ids: tuple[Id, ...] = Field(default=(), description="For target `event`.")
    atom_ids: tuple[Id, ...] = Field(default=(), description="For target `atom`.")
    reason: str | None = Field(
        default=None, max_length=200, description="Kept for ever: no personal data here."
    )

    @model_validator(mode="after")
    def _names_what_it_is_about(self) -> ControlRequest:
        wanted = {"event": self.event_ids, "atom": self.atom_ids}.get(self.target)
        if wanted is not None and not wanted:
            message = f"request.{self.target}_ids: name at least one"
            raise ValueError(message)
        return self


class ContentPart(BaseModel):
    """One part of an OpenAI-style message content. Only ``text`` parts are read."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str
    text: str | None = None


class L0Event(Contract):
    """One event of a conversation, as a producer writes it to the events topic.

    ``event_id`` is the idempotency key within the scope: the first record with it counts,
    later ones are dropped. ``extra="ignore"``: unknown fields stay in the log, unread.
    """

    v: Literal[1] = Field(description="Version of this contract.")
    event_id: Id = Field(description="Idempotency key, unique within the scope.")
    type: Literal["message", "session_end", "forget", "reject", "edit"] = "message"
    tenant_id: OwnerId
    agent_id: OwnerId
    user_id: OwnerId
    session_id: OwnerId
    team_id: OwnerId | None = None
    task_id: Id | None = None
    role: Role | None = Field(default=None, description="Who speaks. Required for a message.")
    content: str | tuple[ContentPart, ...] | None = Field(
        default=None, description="Text, or OpenAI-style parts of which the text is used."
    )
    name: str | None = None
    tool_calls: JsonValue | None = Field(default=None, description="Kept, not extracted from.")
    tool_call_id: str | None = None
    occurred_at: Moment = Field(description="RFC 3339 with an offset: when it was said.")
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    request: ControlRequest | None = Field(
        default=None, description="What to forget, reject or edit. Required for those types."
    )

    @model_validator(mode="after")
    def _message_is_complete(self) -> L0Event:
        if self.type == "message":
            if self.role is None:
                message = "role: a message needs one of user, assistant, system, tool"
                raise ValueError(message)
            if self.content is None and self.tool_calls is None:
                message = "content: a message needs content or tool_calls"
                raise ValueError(message)
        if self.type in ("forget", "reject", "edit"):
            if self.request is None:
                message = f"request: a {self.type} event says what to {self.type}"
                raise ValueError(message)
            if self.type != "forget" and self.request.target != "atom":
                message = f"request.target: only an atom is what one can {self.type}"
                raise ValueError(message)
            if self.type == "edit" and (len(self.request.atom_ids) != 1 or not self.text().strip()):
                message = "content: an edit names one atom and gives its new text as content"
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

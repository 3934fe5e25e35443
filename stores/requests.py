"""Requests to forget, reject or edit, as events of the log. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from stores.ids import content_id
from stores.records import ControlRequest, L0Event, OutRecord

__all__ = ["PERSON", "Owner", "edit_window_id", "edited_atom_id", "request_event", "request_record"]

PERSON = "person/1"
"""What an atom that a person wrote names as its extractor."""

_NO_SESSION = "sediment-forget"
"""Session of a request that is not about one: every event needs a session."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose memory a request is about: a scope, and the ids its events are written with."""

    scope: str
    tenant: str
    agent: str
    user: str
    team: str = ""


def request_event(
    kind: Literal["forget", "reject", "edit"],
    owner: Owner,
    request: ControlRequest,
    at: datetime,
    session: str = "",
    text: str | None = None,
) -> L0Event:
    """Make a request's event. The same one at another time is another request.

    :arg text: of an edit: the atom's new text.
    """
    about = (*request.event_ids, *request.atom_ids)
    return L0Event(
        v=1,
        event_id=content_id(
            "request", kind, request.target, owner.scope, owner.user, session, *about,
            *([] if text is None else [text]), at.isoformat(),
        ),
        type=kind,
        tenant_id=owner.tenant,
        agent_id=owner.agent,
        user_id=owner.user,
        team_id=owner.team or None,
        session_id=session or _NO_SESSION,
        occurred_at=at,
        content=text,
        request=request,
    )  # fmt: skip


def request_record(event: L0Event, scope: str, topic: str) -> OutRecord:
    """Make the record, in the scope's own partition: so it has a place in the scope's order."""
    return OutRecord(topic, scope.encode(), event.model_dump_json(exclude_none=True).encode())


def edit_window_id(scope: str, event_id: str) -> str:
    """Give the id of the window that an edit makes for itself."""
    return content_id("edit", scope, event_id)


def edited_atom_id(scope: str, event_id: str) -> str:
    """Give the id of the atom that an edit makes.

    Another atom stands for it where the scope has one with the same text.
    """
    return content_id("atom", edit_window_id(scope, event_id), "0", PERSON)

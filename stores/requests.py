"""Requests to forget, reject or edit, as events of the log or as jobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from stores.errors import UserError
from stores.ids import content_id
from stores.problems import problems_of
from stores.records import (
    ControlRequest,
    L0Event,
    OutRecord,
    PersonaJob,
    ProfileEdit,
    ProfileKind,
    SceneJob,
)

__all__ = [
    "ASKED_HEADER",
    "PERSON",
    "Owner",
    "asked_record",
    "edit_window_id",
    "edited_atom_id",
    "profile_edit_record",
    "request_event",
    "request_record",
]

ASKED_HEADER = "sediment-asked"
"""Header of a job that a person asked for, so that it is known as nobody else's."""

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

    Raises :class:`~stores.errors.UserError` for an id that no event can have.
    """
    about = (*request.event_ids, *request.atom_ids)
    try:
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
    except ValidationError as error:
        problem = problems_of(error)[0]
        message = f"{problem.field or kind}: {problem.message}"
        raise UserError(message) from None


def request_record(event: L0Event, scope: str, topic: str) -> OutRecord:
    """Make the record, in the scope's own partition: so it has a place in the scope's order."""
    return OutRecord(topic, scope.encode(), event.model_dump_json(exclude_none=True).encode())


def profile_edit_record(
    kind: ProfileKind, scope: str, edit: ProfileEdit, at: datetime, topic: str
) -> OutRecord:
    """Make the job that gives a scene or persona a person's text.

    The same text at another time is another request, and sets the same text again.

    :arg topic: full name of the jobs topic of this kind.
    """
    job_id = content_id("edit-asked", kind, scope, edit.model_dump_json(), at.isoformat())
    job = (
        SceneJob(
            job_id=job_id, scope=scope, window_id="", atom_ids=(), repair=True, edit=edit,
            occurred_at=at,
        )
        if kind == "scene"
        else PersonaJob(job_id=job_id, scope=scope, reason="edited", edit=edit, occurred_at=at)
    )  # fmt: skip
    return asked_record(job, topic)


def asked_record(job: SceneJob | PersonaJob, topic: str) -> OutRecord:
    """Make the record of a job that a person asked for."""
    value = job.model_dump_json(exclude_none=True).encode()
    return OutRecord(topic, job.scope.encode(), value, ((ASKED_HEADER, b"person"),))


def edit_window_id(scope: str, event_id: str) -> str:
    """Give the id of the window that an edit makes for itself."""
    return content_id("edit", scope, event_id)


def edited_atom_id(scope: str, event_id: str) -> str:
    """Give the id of the atom that an edit makes.

    Another atom stands for it where the scope has one with the same text.
    """
    return content_id("atom", edit_window_id(scope, event_id), "0", PERSON)

"""A person's own words for an atom, a scene or a persona: a request in the log.

The flow carries it out in its turn. An edited atom keeps its id and its history; the new text is
an atom of its own that takes its place, and a replay makes it again. The text of a scene or
persona goes to whoever keeps its file, which may be another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from connectors.query.failures import ApiError
from connectors.query.fence import clean_text
from connectors.query.service import Service
from stores.records import Atom, ControlRequest, Profile, ProfileEdit, ProfileKind
from stores.requests import (
    Owner,
    edited_atom_id,
    profile_edit_record,
    request_event,
    request_record,
)

__all__ = ["Edited", "edit_memory", "edit_profile", "holds"]

_JOBS = {"scene": "l2.jobs", "persona": "l3.jobs"}


@dataclass(frozen=True, slots=True)
class Edited:
    """What becomes of an edit.

    :arg atom: the one that was named.
    :arg memory_id: where the new text will be, unless the scope has an atom that says the same.
    :arg event_id: names the request in the outcomes; ``None`` where the text is what it was.
    """

    atom: Atom
    memory_id: str
    event_id: str | None


def holds(service: Service, atom: Atom) -> bool:
    """Say whether an atom is told now: not superseded, stale, rejected or expired."""
    ended = atom.valid_until is not None and atom.valid_until <= service.clock.now()
    return atom.status == "active" and not ended


async def edit_memory(service: Service, owner: Owner, memory_id: str, text: str) -> Edited:
    """Ask to give an atom another text; its own text again asks for nothing.

    Raises :class:`~connectors.query.failures.ApiError`: 404 where the scope has no such atom,
    409 where it no longer holds, naming the one that took its place.
    """
    atom = await service.blocking(partial(service.store.get_atom, owner.scope, memory_id))
    if atom is None or atom.scope != owner.scope:
        raise ApiError(404, "not_found", "this scope has no memory with this id")
    if not holds(service, atom):
        instead = f"; edit {atom.superseded_by}" if atom.superseded_by else ""
        message = f"this memory no longer holds, so its text cannot be changed{instead}"
        raise ApiError(409, "no_longer_holds", message, field="memory_id")
    if text == atom.text:
        return Edited(atom, atom.atom_id, None)
    request = ControlRequest(target="atom", atom_ids=(atom.atom_id,))
    event = request_event(
        "edit", owner, request, service.clock.now(), session=atom.session_id, text=text
    )
    await service.write([request_record(event, owner.scope, service.settings.topic("l0.events"))])
    return Edited(atom, edited_atom_id(owner.scope, event.event_id), event.event_id)


async def edit_profile(
    service: Service,
    scope: str,
    kind: ProfileKind,
    path: str,
    text: str | None,
    summary: str | None = None,
) -> Profile | None:
    """Ask to give a scene or the persona another text; what it says already asks for nothing.

    Gives it as it is still told; ``None``, and nothing is asked, where there is none.

    :arg text: Markdown; ``None`` takes it away.

    Raises :class:`~connectors.query.failures.ApiError`: 400 for a text that says nothing visible or
    is longer than a file may be, 422 where no flow writes scenes.
    """
    settings = service.settings
    if settings.scene_writer == "off":
        message = "scenes and personas are switched off here (SEDIMENT_SCENE_WRITER)"
        raise ApiError(422, "unsupported", message)
    body = None if text is None else clean_text(text).strip()
    if body is not None:
        _check_text(body, settings.scene_file_bytes)
    known = await service.blocking(partial(service.store.get_profile, scope, kind, path))
    if known is None or known.scope != scope:
        return None
    if (body, summary or known.summary) != (known.text, known.summary):
        edit = ProfileEdit(path=path, text=body, summary=summary, atom_ids=known.atom_ids)
        topic = settings.topic(_JOBS[kind])
        record = profile_edit_record(kind, scope, edit, service.clock.now(), topic)
        await service.write([record])
    return known


def _check_text(body: str, most_bytes: int) -> None:
    if not body:
        message = "content: give it a text; to take it away, remove it"
        raise ApiError(400, "invalid_request", message, field="content")
    if len(body.encode()) > most_bytes:
        message = f"content: a file has at most {most_bytes} bytes (SEDIMENT_SCENE_FILE_BYTES)"
        raise ApiError(400, "too_long", message, field="content")

"""Events of a scope: listed by session, and one with what came of it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from connectors.query.cursors import read_cursor, write_cursor
from connectors.query.failures import ApiError
from connectors.query.ui.memory import Here
from connectors.query.ui.pages import Pages
from stores.paging import PageRequest
from stores.protocols import Filter
from stores.records import Atom, IndexedEvent

__all__ = ["router"]

router = APIRouter()

_PAGE = 50
_AROUND = 4


@router.get("/ui/events")
async def events_page(at: Here, page: Pages) -> Response:
    """List the events of a session as they were said, or of the scope, the newest first."""
    looker = at.looker
    session = looker.one("session_id")
    cursor = looker.one("cursor")
    where = Filter(session_id=session or None)
    asked = PageRequest(_PAGE, read_cursor(cursor or None), newest_first=not session)
    found = await looker.service.blocking(lambda: at.store.events_page(at.scope, where, asked))
    return page.show(
        "events.html",
        looker,
        at=at,
        events=[one for one in found.records if one.scope == at.scope],
        total=found.total,
        next_cursor=write_cursor(found.next),
        cursor=cursor,
        session_id=session,
    )


@router.get("/ui/event")
async def event_page(at: Here, page: Pages) -> Response:
    """Show an event, what was said around it, and the atoms that stand on it."""
    name = at.looker.need("id")

    def look() -> tuple[IndexedEvent, list[IndexedEvent], list[Atom]]:
        named = at.store.get_events(at.scope, [name])
        event = next((one for one in named if one.scope == at.scope), None)
        if event is None:
            message = "this scope has no event with this id; it may have been forgotten"
            raise ApiError(404, "not_found", message)
        said = at.store.events_of(at.scope, event.session_id)
        session = sorted(
            (one for one in said if one.scope == at.scope),
            key=lambda one: (one.occurred_at, one.position),
        )
        place = next((n for n, one in enumerate(session) if one.event_id == name), 0)
        around = session[max(0, place - _AROUND) : place + _AROUND + 1]
        atoms = [
            atom
            for atom in at.store.atoms_of(at.scope)
            if atom.scope == at.scope and name in atom.source_event_ids
        ]
        return event, around, atoms

    event, around, atoms = await at.looker.service.blocking(look)
    return page.show("event.html", at.looker, at=at, event=event, around=around, atoms=atoms)

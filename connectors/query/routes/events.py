"""``/v1/events``: events into the log, and what was said, page by page."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Query, Response
from pydantic import SkipValidation

from connectors.query.auth import RightMissing, ScopeRefused
from connectors.query.cursors import read_cursor, write_cursor
from connectors.query.failures import ApiError
from connectors.query.memory_models import EventsPage, EventsRequest, SourceEvent
from connectors.query.models import MAX_EVENTS, ErrorAnswer, ErrorBody, EventBatch, EventsAnswer
from connectors.query.routes.access import BODY_ERRORS, ERRORS, Reader, TheService, Writer
from stores.paging import PageRequest
from stores.protocols import Filter
from stores.records import L0Event

__all__ = ["router"]

router = APIRouter(tags=["events"])

_DENIED = (ScopeRefused.reason, RightMissing.reason)


@router.post(
    "/v1/events",
    responses={
        **BODY_ERRORS,
        207: {"model": EventsAnswer, "description": "Some events were rejected."},
        403: {
            "model": EventsAnswer | ErrorAnswer,
            "description": "Denied; or every event was, the first for its scope or right.",
        },
        422: {
            "model": EventsAnswer | ErrorAnswer,
            "description": "There is no event, or every one was rejected.",
        },
    },
)
async def add_events(
    body: Annotated[SkipValidation[L0Event | EventBatch], Body()],
    caller: Writer,
    service: TheService,
    response: Response,
) -> EventsAnswer:
    """Write events to the log. Send an event again as often as you like: its id counts once.

    Ids that the key decides may be left out. One bad event costs none of the others.
    Right: write; an event that forgets a whole session or user: admin as well.
    """
    bodies = _bodies(body)
    accepted = await service.add_events(caller, bodies)
    error: ErrorBody | None = None
    if len(accepted.errors) == len(bodies):
        first = accepted.errors[0]
        response.status_code = 403 if first.code in _DENIED else 422
        caller.note.code = first.code
        error = ErrorBody(code=first.code, message=first.message, field=first.field)
    elif accepted.errors:
        response.status_code = 207
    return EventsAnswer(
        accepted=len(accepted.records),
        duplicates=accepted.duplicates,
        rejected=len(accepted.errors),
        errors=accepted.errors,
        error=error,
    )


@router.get("/v1/events", responses=ERRORS)
async def list_events(
    asked: Annotated[EventsRequest, Query()], caller: Reader, service: TheService
) -> EventsPage:
    """List what was said in a scope or session, by event time, page by page.

    Right: read.
    """
    scope = service.scope_of(caller, asked)
    where = Filter(session_id=asked.session_id, since=asked.since, until=asked.until)
    page_request = PageRequest(
        asked.limit, read_cursor(asked.cursor), newest_first=asked.newest_first
    )
    page = await service.blocking(partial(service.store.events_page, scope, where, page_request))
    items = tuple(SourceEvent.of(one) for one in page.records if one.scope == scope)
    return EventsPage(items=items, total=page.total, next_cursor=write_cursor(page.next))


def _bodies(body: object) -> list[object]:
    if not (isinstance(body, dict) and "events" in body):
        return [body]
    events = body["events"]
    if not isinstance(events, list) or not 1 <= len(events) <= MAX_EVENTS:
        message = f"events: a list of 1 to {MAX_EVENTS} events"
        raise ApiError(422, "invalid_request", message)
    return events

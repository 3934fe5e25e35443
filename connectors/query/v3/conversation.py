"""``/v3/conversation``: L0, the messages of conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from fastapi.responses import JSONResponse

from connectors.query.accept import accept_events
from connectors.query.auth import right_to_forget
from connectors.query.failures import ApiError
from connectors.query.models import MAX_LIMIT, RecallItem, SearchRequest
from connectors.query.question import clean_query
from connectors.query.service import MemoryStore
from connectors.query.v3.calls import Call, Reading, UnsupportedCall, Writing
from connectors.query.v3.envelope import Envelope, v3_router
from connectors.query.v3.forgetting import forget_requests, possible_ids
from connectors.query.v3.models import (
    ConversationAdd,
    ConversationAdded,
    ConversationDelete,
    ConversationFilter,
    ConversationHit,
    ConversationHits,
    ConversationItem,
    ConversationMessage,
    ConversationPage,
    ConversationQuery,
    ConversationSearch,
    Count,
    Deleted,
    iso,
)
from stores.ids import content_id
from stores.records import ControlRequest, IndexedEvent, names_none

__all__ = ["router"]

router = v3_router()

_NO_SESSION = "default"  # what the other system files messages under that name no session
_ROLES = ("user", "assistant")


@router.post("/v3/conversation/add", response_model=Envelope[ConversationAdded])
async def add(call: Writing, body: ConversationAdd) -> JSONResponse:
    """Write messages to the log, all of them or none. Right: write.

    A message that has an `id` or a `timestamp` counts once, however often it is sent.
    """
    events = list(_events(call, body))
    accepted = accept_events(events, call.caller.credential, call.service.settings)
    if accepted.errors:
        first = accepted.errors[0]
        message = f"messages.{first.index}.{first.field}: {first.message}"
        raise ApiError(400, first.code, message, field=f"messages.{first.index}")
    await call.service.write(accepted.records)
    ids = tuple(event["event_id"] for event in events)
    return call.answer(
        ConversationAdded(
            accepted_ids=ids, accepted_versions=("v1",) * len(ids), total_count=len(ids)
        )
    )


@router.post("/v3/conversation/query", response_model=Envelope[ConversationPage])
async def query(call: Reading, body: ConversationQuery) -> JSONResponse:
    """List messages, the newest first. Reads the whole scope, or session. Right: read."""
    found = await call.service.blocking(partial(_listed, call.service.store, call.scope, body))
    page = found[body.offset : body.offset + body.limit]
    return call.answer(
        ConversationPage(
            messages=tuple(ConversationItem(**_shown(call, one)) for one in page),
            total=len(found),
        )
    )


@router.post("/v3/conversation/count", response_model=Envelope[Count])
async def count(call: Reading, body: ConversationFilter) -> JSONResponse:
    """Count what `conversation/query` lists. Right: read."""
    found = await call.service.blocking(partial(_listed, call.service.store, call.scope, body))
    return call.answer(Count(total=len(found)))


@router.post("/v3/conversation/search", response_model=Envelope[ConversationHits])
async def search(call: Reading, body: ConversationSearch) -> JSONResponse:
    """Search messages by meaning and by keyword. Right: read."""
    if not clean_query(body.query)[0]:
        return call.answer(ConversationHits(messages=()))
    found = await call.service.find(
        call.caller,
        "events",
        SearchRequest(
            **call.scope_parts(),
            query=body.query,
            limit=MAX_LIMIT,
            session_id=body.session_id,
            since=body.time_start,
            until=body.until(),
        ),
    )
    # One without ranks was not found: it stands beside one that was.
    hits = [one for one in found.items if one.ranks and one.type in _ROLES]
    degraded = {"degraded": found.degraded} if found.degraded else {}
    return call.answer(
        ConversationHits(messages=tuple(_hit(call, one) for one in hits[: body.limit]), **degraded)
    )


@router.post("/v3/conversation/delete", response_model=Envelope[Deleted])
async def delete(call: Writing, body: ConversationDelete) -> JSONResponse:
    """Forget messages and whole sessions, for good, and what was made of them alone.

    The flow does it in its turn. Right: write; for a session admin as well.
    """
    messages = possible_ids(body.messages())
    sessions = tuple(one for one in possible_ids(body.sessions()) if not names_none(one))
    if sessions:
        call.caller.credential.require(right_to_forget(ControlRequest(target="session")))
        if call.task_id is not None:
            message = "a session is deleted as a whole, not for one task; leave task_id out"
            raise UnsupportedCall(message, field="task_id")
    deleted = await call.service.blocking(
        partial(_count_named, call.service.store, call.scope, messages, sessions)
    )
    await call.service.write(
        [
            *forget_requests(call, "event", messages),
            *(one for name in sessions for one in forget_requests(call, "session", session=name)),
        ]
    )
    return call.answer(Deleted(deleted_count=deleted))


def _events(call: Call, body: ConversationAdd) -> Iterator[dict[str, Any]]:
    """Make the events of messages, as a producer would write them to the log."""
    session = body.session_id or call.session_id or _NO_SESSION
    now = call.service.clock.now().astimezone(timezone.utc)
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)
    ids = {**call.ids(), **({"task_id": call.task_id} if call.task_id else {})}
    said: Counter[tuple[str, str, datetime]] = Counter()
    for index, message in enumerate(body.messages):
        at = message.timestamp or message.recorded_at or now + timedelta(milliseconds=index)
        again = said[message.role, message.content, at]
        said[message.role, message.content, at] += 1
        yield {
            "v": 1,
            "event_id": message.id or _event_id(call.scope, session, message, at, again),
            "tenant_id": call.owner.tenant,
            **ids,
            "session_id": session,
            "role": message.role,
            "content": message.content,
            "occurred_at": at.isoformat(),
        }


def _event_id(
    scope: str, session: str, message: ConversationMessage, at: datetime, again: int
) -> str:
    """Give the same id to the same message, in whichever batch it is sent again.

    :arg again: how many messages before it in the batch are equal to it.
    """
    return content_id(
        "v3", scope, session, message.role, message.content, at.isoformat(), str(again)
    )


def _listed(store: MemoryStore, scope: str, asked: ConversationFilter) -> list[IndexedEvent]:
    """Read what is asked for, the newest first."""
    found = [one for one in _told(store, scope, asked.session_id) if asked.holds(one.occurred_at)]
    found.sort(key=lambda one: (one.occurred_at, one.position), reverse=True)
    return found


def _told(store: MemoryStore, scope: str, session_id: str | None) -> Iterator[IndexedEvent]:
    """Read the messages that the other system knows: with a text, of a user or an assistant."""
    for one in store.events_of(scope, session_id):
        if one.scope == scope and one.role in _ROLES and one.text:
            yield one


def _count_named(
    store: MemoryStore, scope: str, messages: Sequence[str], sessions: Sequence[str]
) -> int:
    named = store.get_events(scope, messages) if messages else []
    found = {one.event_id for one in named if one.scope == scope}
    for session in sessions:
        found |= {one.event_id for one in _told(store, scope, session)}
    return len(found)


def _shown(call: Call, event: IndexedEvent) -> dict[str, Any]:
    ids = call.ids()
    return {
        "id": event.event_id,
        "session_id": event.session_id,
        **ids,
        "user_id": event.user_id or ids["user_id"],
        "role": event.role,
        "content": event.text,
        "timestamp": iso(event.occurred_at),
    }


def _hit(call: Call, item: RecallItem) -> ConversationHit:
    return ConversationHit(
        id=item.id,
        session_id=item.session_id,
        **call.ids(),
        role=item.type,
        content=item.text,
        timestamp=iso(item.occurred_at),
        score=item.score,
    )

"""``PATCH /v1/memories/{id}``: a person's own words. A request in the log; the flow does it."""

from __future__ import annotations

from fastapi import APIRouter

from connectors.query.editing import edit_memory
from connectors.query.memory_models import EditAnswer, EditRequest
from connectors.query.routes.access import (
    BODY_ERRORS,
    NO_LONGER_HOLDS,
    NOT_FOUND,
    TheService,
    Writer,
)
from connectors.query.routes.memories import MemoryId

__all__ = ["router"]

router = APIRouter(tags=["editing"])


@router.patch(
    "/v1/memories/{memory_id}",
    status_code=202,
    responses={**BODY_ERRORS, **NOT_FOUND, **NO_LONGER_HOLDS},
)
async def edit(
    memory_id: MemoryId, body: EditRequest, caller: Writer, service: TheService
) -> EditAnswer:
    """Give a memory another text, which takes its place; the old one stays in its history.

    Right: write.
    """
    edited = await edit_memory(service, service.owner_of(caller, body), memory_id, body.text)
    return EditAnswer(event_id=edited.event_id, memory_id=edited.memory_id)

"""``POST /v1/recall`` and the searches of one layer."""

from __future__ import annotations

from fastapi import APIRouter

from connectors.query.models import RecallAnswer, RecallRequest, SearchAnswer, SearchRequest
from connectors.query.routes.access import BODY_ERRORS, Reader, TheService

__all__ = ["router"]

router = APIRouter(tags=["memory"])


@router.post("/v1/recall", responses=BODY_ERRORS)
async def recall(body: RecallRequest, caller: Reader, service: TheService) -> RecallAnswer:
    """Recall what bears on a question: best first, within every budget, this scope only.

    Right: read.
    """
    return await service.answer(caller, body)


@router.post("/v1/memories/search", responses=BODY_ERRORS)
async def search_memories(body: SearchRequest, caller: Reader, service: TheService) -> SearchAnswer:
    """Search the atoms of a scope by meaning and by keyword, whole texts. Right: read."""
    return await service.find(caller, "atoms", body)


@router.post("/v1/events/search", responses=BODY_ERRORS)
async def search_events(body: SearchRequest, caller: Reader, service: TheService) -> SearchAnswer:
    """Search the events of a scope by meaning and by keyword, whole texts.

    A hit without `ranks` stands beside one that was found. Right: read.
    """
    return await service.find(caller, "events", body)

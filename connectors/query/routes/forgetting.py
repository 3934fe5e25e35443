"""Reject and forget. A request is written to the log and answered with 202; the flow does it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from connectors.query.forgetting import forget, forget_memory, reject_memory
from connectors.query.memory_models import ForgetAnswer, ForgetRequest, RejectRequest
from connectors.query.models import ScopeParts
from connectors.query.routes.access import BODY_ERRORS, ERRORS, NOT_FOUND, TheService, Writer
from connectors.query.routes.memories import MemoryId

__all__ = ["router"]

router = APIRouter(tags=["forgetting"])


@router.post(
    "/v1/memories/{memory_id}/reject", status_code=202, responses={**BODY_ERRORS, **NOT_FOUND}
)
async def reject(
    memory_id: MemoryId, body: RejectRequest, caller: Writer, service: TheService
) -> ForgetAnswer:
    """Mark the value of a memory as wrong: told no more, and never extracted again.

    Right: write.
    """
    return await reject_memory(service, caller, memory_id, body)


@router.delete("/v1/memories/{memory_id}", status_code=202, responses={**ERRORS, **NOT_FOUND})
async def delete(
    memory_id: MemoryId,
    asked: Annotated[ScopeParts, Query()],
    caller: Writer,
    service: TheService,
) -> ForgetAnswer:
    """Forget a memory and the events it stands on, for good. Right: write."""
    return await forget_memory(service, caller, memory_id, asked)


@router.post(
    "/v1/forget",
    status_code=202,
    responses={**BODY_ERRORS, 200: {"model": ForgetAnswer, "description": "What would go."}},
)
async def forget_target(
    body: ForgetRequest, caller: Writer, service: TheService, response: Response
) -> ForgetAnswer:
    """Forget events, memories, a session or all of a user, for good; or show what would go.

    A dry run reads the whole scope. Right: write; for a session or a user admin as well.
    """
    answer = await forget(service, caller, body)
    if body.dry_run:
        response.status_code = 200
    return answer

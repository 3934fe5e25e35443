"""Probes and metrics: no credential, no content."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from connectors.query.memory_models import ReadyAnswer
from connectors.query.routes.access import TheService

__all__ = ["router"]

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    responses={503: {"model": ReadyAnswer, "description": "A dependency does not answer."}},
)
async def readyz(service: TheService, response: Response) -> ReadyAnswer:
    """Say of each dependency whether it answers."""
    checks = await service.look()
    answer = ReadyAnswer(ready=all(one == "ok" for one in checks.values()), checks=checks)
    if not answer.ready:
        response.status_code = 503
    return answer


@router.get("/metrics", include_in_schema=False)
async def metrics() -> Response:
    """Give the metrics in Prometheus' text format."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

"""The routes, one file per resource. They translate and nothing else: a caller, then one call."""

from fastapi import APIRouter

from connectors.query.routes import (
    editing,
    events,
    forgetting,
    health,
    memories,
    profiles,
    recall,
    status,
)

__all__ = ["router"]

router = APIRouter()
for part in (recall, events, memories, editing, forgetting, profiles, status, health):
    router.include_router(part.router)

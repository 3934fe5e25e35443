"""``GET /v1/status``: how fresh a scope is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from connectors.query.memory_models import LayerStatus, StatusAnswer
from connectors.query.models import Layer, ScopeParts
from connectors.query.routes.access import ERRORS, Reader, TheService
from connectors.query.service import MemoryStore

__all__ = ["router"]

router = APIRouter(tags=["health"])


@router.get("/v1/status", responses=ERRORS)
async def status(
    asked: Annotated[ScopeParts, Query()], caller: Reader, service: TheService
) -> StatusAnswer:
    """Say how far each layer of a scope is, and what answers. Reads the whole scope.

    Right: read.
    """
    scope = service.scope_of(caller, asked)
    layers = await service.blocking(partial(_layers, service.store, scope))
    checks = await service.look()
    return StatusAnswer(
        pipeline=service.pipeline,
        generation=service.settings.generation_name,
        layers=layers,
        ready=all(result == "ok" for result in checks.values()),
        checks=checks,
    )


def _layers(store: MemoryStore, scope: str) -> dict[Layer, LayerStatus]:
    profiles = store.profiles_of(scope)
    return {
        "persona": _status(one.updated_at for one in profiles if one.kind == "persona"),
        "scenes": _status(one.updated_at for one in profiles if one.kind == "scene"),
        "atoms": _status(atom.occurred_at for atom in store.atoms_of(scope)),
        "events": _status(event.occurred_at for event in store.events_of(scope)),
    }


def _status(times: Iterable[datetime]) -> LayerStatus:
    records, newest = 0, None
    for time in times:
        records += 1
        newest = time if newest is None else max(newest, time)
    return LayerStatus(records=records, newest=newest)

"""The persona and the scenes of a scope."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query

from connectors.query.memory_models import SceneHead, ScenesAnswer
from connectors.query.models import ScopeParts
from connectors.query.profiles import find_persona, find_scene
from connectors.query.routes.access import ERRORS, NOT_FOUND, Reader, TheService
from stores.records import MAX_ID_CHARS, Profile

__all__ = ["router"]

router = APIRouter(tags=["memory"])


@router.get("/v1/persona", responses={**ERRORS, **NOT_FOUND})
async def show_persona(
    asked: Annotated[ScopeParts, Query()], caller: Reader, service: TheService
) -> Profile:
    """Show who the scope is about, as Markdown; 404 as long as there is none. Right: read."""
    scope = service.scope_of(caller, asked)
    return await service.blocking(partial(find_persona, service.store, scope))


@router.get("/v1/scenes", responses=ERRORS)
async def list_scenes(
    asked: Annotated[ScopeParts, Query()], caller: Reader, service: TheService
) -> ScenesAnswer:
    """List the scenes of a scope, without their texts. Right: read."""
    scope = service.scope_of(caller, asked)
    found = await service.blocking(partial(service.store.profiles_of, scope, "scene"))
    return ScenesAnswer(items=tuple(SceneHead.of(one) for one in found if one.scope == scope))


@router.get("/v1/scenes/{name}", responses={**ERRORS, **NOT_FOUND})
async def show_scene(
    name: Annotated[str, Path(min_length=1, max_length=MAX_ID_CHARS)],
    asked: Annotated[ScopeParts, Query()],
    caller: Reader,
    service: TheService,
) -> Profile:
    """Show one scene; `.md` may be left out of its name. Right: read."""
    scope = service.scope_of(caller, asked)
    return await service.blocking(partial(find_scene, service.store, scope, name))

"""``/v3/scenario``: L2, the scene files. The flow writes them; a person's text goes to it."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi.responses import JSONResponse

from connectors.query.editing import edit_profile
from connectors.query.failures import ApiError
from connectors.query.v3.calls import Call, Reading, UnsupportedCall, Writing
from connectors.query.v3.envelope import Envelope, v3_router
from connectors.query.v3.memory_models import (
    Nothing,
    ScenarioEntry,
    ScenarioFile,
    ScenarioFilter,
    ScenarioList,
    ScenarioPath,
    ScenarioWrite,
    ScenarioWritten,
)
from connectors.query.v3.models import Count, iso
from stores.records import Profile

__all__ = ["router"]

router = v3_router()


@router.post("/v3/scenario/ls", response_model=Envelope[ScenarioList])
async def ls(call: Reading, body: ScenarioFilter) -> JSONResponse:
    """List the scene files of a scope, by path. Right: read."""
    found = await call.service.blocking(partial(_listed, call, body.path_prefix))
    entries = tuple(ScenarioEntry(**_head(call, one)) for one in found)
    return call.answer(ScenarioList(entries=entries, total=len(found)))


@router.post("/v3/scenario/count", response_model=Envelope[Count])
async def count(call: Reading, body: ScenarioFilter) -> JSONResponse:
    """Count what `scenario/ls` lists. Right: read."""
    found = await call.service.blocking(partial(_listed, call, body.path_prefix))
    return call.answer(Count(total=len(found)))


@router.post("/v3/scenario/read", response_model=Envelope[ScenarioFile])
async def read(call: Reading, body: ScenarioPath) -> JSONResponse:
    """Read one scene file; nulls when there is none. Right: read."""
    found = await call.service.blocking(
        partial(call.service.store.get_profile, call.scope, "scene", body.path)
    )
    if found is None or found.scope != call.scope:
        nothing = ScenarioFile(path=body.path, content=None, created_at=None, updated_at=None)
        return call.answer(nothing)
    head = _head(call, found)
    head.pop("summary", None)
    return call.answer(ScenarioFile(**head, content=found.text))


@router.post("/v3/scenario/write", response_model=Envelope[ScenarioWritten])
async def write(call: Writing, body: ScenarioWrite) -> JSONResponse:
    """Give a scene file that is there another text. The flow does it in its turn. Right: write."""
    known = await edit_profile(
        call.service, call.scope, "scene", body.path, body.content, body.summary
    )
    if known is None:
        message = "this scope has no scene file of this name; the flow makes them, from memories"
        raise ApiError(404, "not_found", message, field="path")
    at = iso(call.service.clock.now())
    return call.answer(ScenarioWritten(path=known.path, version=known.version, updated_at=at))


@router.post("/v3/scenario/rm", response_model=Envelope[Nothing])
async def rm(call: Writing, body: ScenarioPath) -> JSONResponse:
    """Take a scene file away; one that is not there is no error. The flow does it in its turn.

    Right: write.
    """
    if body.path.endswith("/"):
        message = "there are no folders here; name a file"
        raise UnsupportedCall(message, field="path")
    await edit_profile(call.service, call.scope, "scene", body.path, None)
    return call.answer(Nothing())


def _listed(call: Call, prefix: str) -> list[Profile]:
    return [
        one
        for one in call.service.store.profiles_of(call.scope, "scene")
        if one.scope == call.scope and one.path.startswith(prefix)
    ]


def _head(call: Call, scene: Profile) -> dict[str, Any]:
    return {
        "path": scene.path,
        **({"summary": scene.summary} if scene.summary else {}),
        "version": scene.version,
        **{name: value for name, value in call.ids().items() if name != "user_id"},
        "created_at": iso(scene.created_at),
        "updated_at": iso(scene.updated_at),
    }

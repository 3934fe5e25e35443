"""``/v3/scenario``: L2, the scene files. They are read here and written by the flow or a person."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi.responses import JSONResponse

from connectors.query.v3.calls import Call, Reading, UnsupportedCall, Writing
from connectors.query.v3.envelope import Envelope, v3_router
from connectors.query.v3.memory_models import (
    ScenarioEntry,
    ScenarioFile,
    ScenarioFilter,
    ScenarioList,
    ScenarioPath,
    ScenarioWrite,
)
from connectors.query.v3.models import Count, iso
from stores.records import Profile

__all__ = ["router"]

router = v3_router()

_EDIT_THE_FILE = "scene files are not written over HTTP; edit the file in the scope's scene folder"


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


@router.post("/v3/scenario/write", response_model=Envelope[ScenarioFile])
async def write(_call: Writing, _body: ScenarioWrite) -> JSONResponse:
    """Not supported: 422. Right: write."""
    raise UnsupportedCall(_EDIT_THE_FILE)


@router.post("/v3/scenario/rm", response_model=Envelope[ScenarioFile])
async def rm(_call: Writing, _body: ScenarioPath) -> JSONResponse:
    """Not supported: 422. Right: write."""
    raise UnsupportedCall(_EDIT_THE_FILE)


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

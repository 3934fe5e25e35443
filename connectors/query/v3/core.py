"""``/v3/core``: L3, the persona. It is read here and written by the flow."""

from __future__ import annotations

from functools import partial

from fastapi.responses import JSONResponse

from connectors.query.v3.calls import Call, Reading, UnsupportedCall, Writing
from connectors.query.v3.envelope import Envelope, v3_router
from connectors.query.v3.memory_models import CoreFile, CoreRequest, CoreWrite
from connectors.query.v3.models import Count, iso
from stores.records import Profile

__all__ = ["router"]

router = v3_router()

_EDIT_THE_FILE = "the persona is not written over HTTP; edit its file in the scope's persona folder"


@router.post("/v3/core/read", response_model=Envelope[CoreFile])
async def read(call: Reading, _body: CoreRequest) -> JSONResponse:
    """Read the persona; nulls when there is none yet. Right: read."""
    found = await call.service.blocking(partial(_persona, call))
    if found is None:
        return call.answer(CoreFile(content=None, created_at=None, updated_at=None))
    ids = {name: value for name, value in call.ids().items() if name != "user_id"}
    return call.answer(
        CoreFile(
            content=found.text,
            version=found.version,
            created_at=iso(found.created_at),
            updated_at=iso(found.updated_at),
            **ids,
        )
    )


@router.post("/v3/core/count", response_model=Envelope[Count])
async def count(call: Reading, _body: CoreRequest) -> JSONResponse:
    """Say whether there is a persona, as 0 or 1. Right: read."""
    found = await call.service.blocking(partial(_persona, call))
    return call.answer(Count(total=int(found is not None)))


@router.post("/v3/core/write", response_model=Envelope[CoreFile])
async def write(_call: Writing, _body: CoreWrite) -> JSONResponse:
    """Not supported: 422. Right: write."""
    raise UnsupportedCall(_EDIT_THE_FILE)


def _persona(call: Call) -> Profile | None:
    found = call.service.store.profiles_of(call.scope, "persona")
    return next((one for one in found if one.scope == call.scope), None)

"""``/v3/core``: L3, the persona. The flow writes it; a person's text goes to it."""

from __future__ import annotations

from functools import partial

from fastapi.responses import JSONResponse

from connectors.query.editing import edit_profile
from connectors.query.failures import ApiError
from connectors.query.v3.calls import Call, Reading, Writing
from connectors.query.v3.envelope import Envelope, v3_router
from connectors.query.v3.memory_models import CoreFile, CoreRequest, CoreWrite, CoreWritten
from connectors.query.v3.models import Count, iso
from stores.records import Profile

__all__ = ["router"]

router = v3_router()


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


@router.post("/v3/core/write", response_model=Envelope[CoreWritten])
async def write(call: Writing, body: CoreWrite) -> JSONResponse:
    """Give the persona that is there another text. The flow does it in its turn. Right: write."""
    found = await call.service.blocking(partial(_persona, call))
    known = found and await edit_profile(
        call.service, call.scope, "persona", found.path, body.content
    )
    if not known:
        message = "this scope has no persona yet; the flow makes the first one, from the scenes"
        raise ApiError(404, "not_found", message)
    at = iso(call.service.clock.now())
    return call.answer(CoreWritten(version=known.version, updated_at=at))


def _persona(call: Call) -> Profile | None:
    found = call.service.store.profiles_of(call.scope, "persona")
    return next((one for one in found if one.scope == call.scope), None)

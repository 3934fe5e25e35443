"""``/v3/atomic``: L1, the atoms that hold now."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from fastapi.responses import JSONResponse

from connectors.query.editing import edit_memory, holds
from connectors.query.failures import ApiError
from connectors.query.models import RecallItem, SearchRequest
from connectors.query.question import clean_query
from connectors.query.service import MemoryStore
from connectors.query.v3.calls import Call, Reading, UnsupportedCall, Writing
from connectors.query.v3.envelope import Envelope, v3_router
from connectors.query.v3.forgetting import forget_requests
from connectors.query.v3.memory_models import (
    AtomicDelete,
    AtomicFilter,
    AtomicHit,
    AtomicHits,
    AtomicItem,
    AtomicPage,
    AtomicQuery,
    AtomicSearch,
    AtomicUpdate,
    AtomicUpdated,
)
from connectors.query.v3.models import Count, Deleted, iso
from stores.records import ATOM_TYPES, Atom, AtomType

__all__ = ["router"]

router = v3_router()


@router.post("/v3/atomic/query", response_model=Envelope[AtomicPage])
async def query(call: Reading, body: AtomicQuery) -> JSONResponse:
    """List the atoms that hold, the newest first. Reads the whole scope. Right: read."""
    found = await call.service.blocking(partial(_listed, call, body))
    page = found[body.offset : body.offset + body.limit]
    items = tuple(AtomicItem(**_shown(call, atom)) for atom in page)
    return call.answer(AtomicPage(items=items, total=len(found)))


@router.post("/v3/atomic/count", response_model=Envelope[Count])
async def count(call: Reading, body: AtomicFilter) -> JSONResponse:
    """Count what `atomic/query` lists. Right: read."""
    found = await call.service.blocking(partial(_listed, call, body))
    return call.answer(Count(total=len(found)))


@router.post("/v3/atomic/search", response_model=Envelope[AtomicHits])
async def search(call: Reading, body: AtomicSearch) -> JSONResponse:
    """Search the atoms that hold, by meaning and by keyword. Right: read."""
    unknown = body.type is not None and body.type not in ATOM_TYPES
    if unknown or not clean_query(body.query)[0]:
        return call.answer(AtomicHits(items=()))
    types = (cast(AtomType, body.type),) if body.type is not None else ()
    found = await call.service.find(
        call.caller,
        "atoms",
        SearchRequest(
            **call.scope_parts(),
            query=body.query,
            limit=body.limit,
            types=types,
            since=body.time_start,
            until=body.until(),
        ),
    )
    hits = await call.service.blocking(partial(_whole, call, found.items))
    degraded = {"degraded": found.degraded} if found.degraded else {}
    return call.answer(AtomicHits(items=hits, **degraded))


@router.post("/v3/atomic/update", response_model=Envelope[AtomicUpdated])
async def update(call: Writing, body: AtomicUpdate) -> JSONResponse:
    """Give an atom another text. The flow does it in its turn. Right: write."""
    if body.background is not None:
        atom = await call.service.blocking(
            partial(call.service.store.get_atom, call.scope, body.id)
        )
        if atom is not None and body.background != (atom.scene or ""):
            message = "the background of an atom cannot be edited"
            raise UnsupportedCall(message, field="background")
    try:
        edited = await edit_memory(call.service, call.owner, body.id, body.content)
    except ApiError as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
        # The other system has one text under an id: what no longer holds is not there.
        raise ApiError(404, "not_found", "this scope has no atom with this id") from None
    atom = edited.atom
    # The new text is an atom of its own, which takes the place of the old one.
    version, at = (
        (1, call.service.clock.now()) if edited.event_id else (atom.version, atom.occurred_at)
    )
    return call.answer(
        AtomicUpdated(id=edited.memory_id, version=f"v{version}", updated_at=iso(at))
    )


@router.post("/v3/atomic/delete", response_model=Envelope[Deleted])
async def delete(call: Writing, body: AtomicDelete) -> JSONResponse:
    """Forget atoms and the messages they stand on, for good. The flow does it in its turn.

    Right: write.
    """
    known = await call.service.blocking(partial(_ids, call.service.store, call.scope))
    ids = [one for one in body.named() if one in known]
    await call.service.write(list(forget_requests(call, "atom", ids)))
    return call.answer(Deleted(deleted_count=len(ids)))


def _listed(call: Call, asked: AtomicFilter) -> list[Atom]:
    """Read what is asked for, the newest first."""
    found = [
        atom
        for atom in call.service.store.atoms_of(call.scope, only_active=True)
        if atom.scope == call.scope
        and holds(call.service, atom)
        and asked.type in (None, atom.type)
        and asked.session_id in (None, atom.session_id)
        and asked.holds(atom.occurred_at)
    ]
    found.sort(key=lambda atom: (atom.occurred_at, atom.atom_id), reverse=True)
    return found


def _whole(call: Call, items: Sequence[RecallItem]) -> tuple[AtomicHit, ...]:
    """Read what was found as it is kept; what is gone by now is left out."""
    hits = []
    for item in items:
        atom = call.service.store.get_atom(call.scope, item.id)
        if atom is not None and atom.scope == call.scope:
            hits.append(AtomicHit(**_shown(call, atom), score=item.score))
    return tuple(hits)


def _ids(store: MemoryStore, scope: str) -> set[str]:
    return {atom.atom_id for atom in store.atoms_of(scope) if atom.scope == scope}


def _shown(call: Call, atom: Atom) -> dict[str, Any]:
    return {
        "id": atom.atom_id,
        "type": atom.type,
        "content": atom.text,
        **({"background": atom.scene} if atom.scene else {}),
        "version": atom.version,
        **call.ids(),
        "created_at": iso(min(atom.valid_from, atom.occurred_at)),
        "updated_at": iso(atom.occurred_at),
        "priority": atom.priority,
        "source_message_ids": atom.source_event_ids,
    }

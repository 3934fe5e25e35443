"""``GET /v1/memories`` and one memory with all that hangs on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query

from connectors.query.cursors import read_cursor, write_cursor
from connectors.query.failures import ApiError
from connectors.query.memory_models import (
    ListRequest,
    MemoriesAnswer,
    MemoryAnswer,
    SourceEvent,
)
from connectors.query.models import ScopeParts
from connectors.query.routes.access import ERRORS, NOT_FOUND, Reader, TheService
from connectors.query.service import MemoryStore
from stores.paging import PageRequest
from stores.protocols import Filter
from stores.records import MAX_ID_CHARS, Atom

__all__ = ["MemoryId", "router"]

MemoryId = Annotated[str, Path(min_length=1, max_length=MAX_ID_CHARS)]

router = APIRouter(tags=["memory"])

_CHAIN = 100  # atoms before and after one that are shown


@router.get("/v1/memories", responses=ERRORS)
async def list_memories(
    asked: Annotated[ListRequest, Query()], caller: Reader, service: TheService
) -> MemoriesAnswer:
    """List the atoms of a scope, by event time, page by page. Right: read."""
    scope = service.scope_of(caller, asked)
    where = Filter(session_id=asked.session_id, only_active=asked.only_active)
    page_request = PageRequest(
        asked.limit, read_cursor(asked.cursor), asked.offset, asked.newest_first
    )
    page = await service.blocking(partial(service.store.atoms_page, scope, where, page_request))
    items = tuple(atom for atom in page.records if atom.scope == scope)
    return MemoriesAnswer(items=items, total=page.total, next_cursor=write_cursor(page.next))


@router.get("/v1/memories/{memory_id}", responses={**ERRORS, **NOT_FOUND})
async def show_memory(
    memory_id: MemoryId,
    asked: Annotated[ScopeParts, Query()],
    caller: Reader,
    service: TheService,
) -> MemoryAnswer:
    """Show one atom, the events it came from, what it superseded and what superseded it.

    Right: read.
    """
    scope = service.scope_of(caller, asked)
    return await service.blocking(partial(_show, service.store, scope, memory_id))


def _show(store: MemoryStore, scope: str, memory_id: str) -> MemoryAnswer:
    atom = _read(store, scope, memory_id)
    if atom is None:
        raise ApiError(404, "not_found", "this scope has no memory with this id")
    found = store.get_events(scope, atom.source_event_ids)
    return MemoryAnswer(
        memory=atom,
        events=tuple(
            SourceEvent.of(event)
            for event in sorted(found, key=lambda event: (event.occurred_at, event.position))
            if event.scope == scope
        ),
        supersedes=_chain(store, atom, lambda one: one.supersedes),
        superseded_by=_chain(
            store, atom, lambda one: (one.superseded_by,) if one.superseded_by else ()
        ),
    )


def _read(store: MemoryStore, scope: str, memory_id: str) -> Atom | None:
    atom = store.get_atom(scope, memory_id)
    return atom if atom is not None and atom.scope == scope else None


def _chain(
    store: MemoryStore, atom: Atom, following: Callable[[Atom], Sequence[str]]
) -> tuple[Atom, ...]:
    """Follow links from an atom, the nearest first; one that is gone ends its branch."""
    found: dict[str, Atom] = {atom.atom_id: atom}
    wanted = list(following(atom))
    while wanted and len(found) <= _CHAIN:
        name = wanted.pop(0)
        one = None if name in found else _read(store, atom.scope, name)
        if one is not None:
            found[name] = one
            wanted += following(one)
    return tuple(found.values())[1:]

"""A scope and what is remembered of it: persona, scenes, atoms, one atom with all around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import RedirectResponse, Response

from connectors.query.failures import ApiError
from connectors.query.models import ScopeParts
from connectors.query.profiles import find_scene
from connectors.query.routes.memories import show_memory
from connectors.query.service import MemoryStore, asked_of
from connectors.query.ui.access import Looker, Looking, parsed
from connectors.query.ui.pages import Pages, link
from connectors.settings import ScopeField
from stores.records import ATOM_TYPES, Atom, Profile
from stores.scenes import without_navigation

__all__ = ["STATUSES", "Here", "Where", "here", "router"]

router = APIRouter()

STATUSES = ("active", "superseded", "stale", "rejected")
_PAGE = 50
_FAR = 1_000_000
_SHOWN_SESSIONS = 50
_SHOWN_NEWEST = 8


@dataclass(frozen=True, slots=True)
class Where:
    """The scope that a page is about, settled with the credential.

    :arg parts: its ids by field, and those that the address names beside it.
    """

    looker: Looker
    scope: str
    parts: dict[ScopeField, str]

    @property
    def store(self) -> MemoryStore:
        """What the pages read."""
        return self.looker.service.store

    @property
    def asked(self) -> ScopeParts:
        """The scope as the service asks for it."""
        return ScopeParts(**self.parts)


def here(looker: Looking) -> Where:
    """Settle which scope a page is about. Raises as ``Service.scope_of``."""
    asked = parsed(ScopeParts, looker.asked)
    scope = looker.service.scope_of(looker.caller, asked)
    fields = looker.service.settings.scope_fields
    return Where(looker, scope, looker.credential.narrow(asked_of(asked), fields))


Here = Annotated[Where, Depends(here)]
"""The scope of a page that the looker may see."""


@router.get("/ui/scope")
async def scope_page(at: Here, page: Pages) -> Response:
    """Show the persona, the scenes, and how many atoms there are. Reads all atoms."""
    atoms, profiles = await at.looker.service.blocking(lambda: _scope(at))
    personas = [one for one in profiles if one.kind == "persona"]
    sessions = Counter(atom.session_id for atom in atoms)
    persona = personas[0] if personas else None
    return page.show(
        "scope.html",
        at.looker,
        at=at,
        persona=persona,
        persona_text=without_navigation(persona.text) if persona else "",
        scenes=[one for one in profiles if one.kind == "scene"],
        count=len(atoms),
        by_status=Counter(atom.status for atom in atoms),
        by_type=Counter(atom.type for atom in atoms),
        sessions=sessions.most_common(_SHOWN_SESSIONS),
        session_count=len(sessions),
        newest=[one for one in reversed(atoms) if one.status == "active"][:_SHOWN_NEWEST],
    )


@router.get("/ui/scene")
async def scene_page(at: Here, page: Pages) -> Response:
    """Show a scene and the atoms it rests on."""
    name = at.looker.need("name")
    scene, atoms = await at.looker.service.blocking(
        lambda: (find_scene(at.store, at.scope, name), _atoms(at))
    )
    resting = [atom for atom in atoms if atom.atom_id in scene.atom_ids]
    return page.show(
        "scene.html",
        at.looker,
        at=at,
        scene=scene,
        resting=resting,
        gone=len(scene.atom_ids) - len(resting),
    )


@router.get("/ui/memories")
@router.post("/ui/memories")
async def memories_page(at: Here, page: Pages) -> Response:
    """List atoms, the newest first; by status, type, session and text."""
    looker = at.looker
    status, kind = looker.one("status"), looker.one("type")
    session, text = looker.one("session_id"), looker.one("text").strip()
    atoms = await looker.service.blocking(lambda: _atoms(at))
    found = [
        atom
        for atom in reversed(atoms)
        if status in ("", atom.status)
        and kind in ("", atom.type)
        and session in ("", atom.session_id)
        and text.casefold() in atom.text.casefold()
    ]
    offset = looker.number("offset", _FAR)
    return page.show(
        "memories.html",
        looker,
        at=at,
        atoms=found[offset : offset + _PAGE],
        found=len(found),
        total=len(atoms),
        offset=offset,
        page_size=_PAGE,
        status=status,
        type=kind,
        session_id=session,
        text=text,
        statuses=STATUSES,
        types=ATOM_TYPES,
    )


@router.get("/ui/memory")
async def memory_page(at: Here, page: Pages) -> Response:
    """Show an atom: what it says and since when, its versions, its sources, what rests on it."""
    looker = at.looker
    answer = await show_memory(looker.need("id"), at.asked, looker.caller, looker.service)
    profiles = await looker.service.blocking(lambda: _profiles(at))
    resting = [one for one in profiles if answer.memory.atom_id in one.atom_ids]
    return page.show(
        "memory.html",
        looker,
        at=at,
        atom=answer.memory,
        events=answer.events or (),
        supersedes=answer.supersedes,
        superseded_by=answer.superseded_by,
        scenes=[one for one in resting if one.kind == "scene"],
        in_persona=any(one.kind == "persona" for one in resting),
    )


@router.get("/ui/item")
async def item_page(at: Here) -> Response:
    """Go to the page of an id, whichever layer it is of: an answer names ids alone."""
    name = at.looker.need("id")

    def look() -> str | None:
        atom = at.store.get_atom(at.scope, name)
        if atom is not None and atom.scope == at.scope:
            return link("/ui/memory", at.parts, id=name)
        if any(one.scope == at.scope for one in at.store.get_events(at.scope, [name])):
            return link("/ui/event", at.parts, id=name)
        for one in _profiles(at):
            if name in (one.profile_id, one.path, one.title) and one.kind == "scene":
                return link("/ui/scene", at.parts, name=one.path)
            if name in (one.profile_id, "persona"):
                return link("/ui/scope", at.parts)
        return None

    found = await at.looker.service.blocking(look)
    if found is None:
        raise ApiError(404, "not_found", "this scope has nothing with this id")
    return RedirectResponse(found, 303)


def _scope(at: Where) -> tuple[Sequence[Atom], list[Profile]]:
    return _atoms(at), _profiles(at)


def _atoms(at: Where) -> list[Atom]:
    return [atom for atom in at.store.atoms_of(at.scope) if atom.scope == at.scope]


def _profiles(at: Where) -> list[Profile]:
    found = [one for one in at.store.profiles_of(at.scope) if one.scope == at.scope]
    return sorted(found, key=lambda one: (-one.heat, one.path))

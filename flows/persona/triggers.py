"""When a persona is written anew. Pure; the first reason that holds counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from stores.records import Atom, Profile
from stores.scenes import ProfileFile, without_navigation

__all__ = ["NOBODY_ASKED", "Due", "Trigger", "due", "told_by"]

NOBODY_ASKED = "scenes_changed"

Trigger = Literal["request", "correction", "cold_start", "recovery", "first_scene", "new_atoms"]


@dataclass(frozen=True, slots=True)
class Due:
    """A persona is due, and why.

    :arg reason: in words, for the prompt and the history.
    """

    trigger: Trigger
    reason: str


def told_by(scenes: Sequence[Profile]) -> tuple[str, ...]:
    """Give the ids of the atoms that scenes rest on, each once, in order of scenes."""
    return tuple(dict.fromkeys(one for scene in scenes for one in scene.atom_ids))


def due(
    persona: ProfileFile | None,
    scenes: Sequence[Profile],
    atoms: Mapping[str, Atom],
    requests: Sequence[str],
    at: datetime,
    every: int,
) -> Due | None:
    """Say whether a persona is due now; ``None`` when it is not.

    In this order: somebody asked; something it tells no longer holds; there is none, though
    there are scenes; it was emptied; there is one scene, and it has news; ``every`` atoms are in
    scenes that it does not rest on. All of it follows from what is stored, so a run that failed
    takes nothing away.

    :arg requests: reasons of requests that are not answered yet.
    """
    return next(_reasons(persona, scenes, atoms, requests, at, every), None) if scenes else None


def _reasons(
    persona: ProfileFile | None,
    scenes: Sequence[Profile],
    atoms: Mapping[str, Atom],
    requests: Sequence[str],
    at: datetime,
    every: int,
) -> Iterator[Due]:
    if requests:
        yield Due("request", "; ".join(dict.fromkeys(requests)))
    if persona is None:
        yield Due("cold_start", "there is no profile yet")
        return
    if not without_navigation(persona.body).strip():
        yield Due("recovery", "the profile was emptied")
    rests_on = set(persona.atoms)
    wrong = [one for one in persona.atoms if _ended_since(atoms.get(one), rests_on, persona, at)]
    if wrong:
        yield Due("correction", f"{len(wrong)} things it tells no longer hold")
    news = [one for one in told_by(scenes) if one not in rests_on]
    if news and len(scenes) == 1:
        yield Due("first_scene", "the first scene was written")
    if len(news) >= every:
        yield Due("new_atoms", f"{len(news)} things were learned since the last one")


def _ended_since(atom: Atom | None, rests_on: set[str], persona: ProfileFile, at: datetime) -> bool:
    if atom is None or atom.status == "active":
        return False
    if atom.superseded_by is not None:
        return atom.superseded_by not in rests_on
    end = atom.valid_until
    return atom.status == "stale" and end is not None and persona.updated < end <= at

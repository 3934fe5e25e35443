"""A scope's atoms as they stood at a time. Pure.

A job is often worked on when later atoms are in the store already: in a replay, behind a slow
model, after an outage. It sees what it would have seen in time, so that the history of a scene
tells how it came about, and a run that is made again asks the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from stores.records import Atom

__all__ = ["as_of"]


def as_of(atoms: Iterable[Atom], at: datetime, needed: Collection[str]) -> list[Atom]:
    """Give the atoms that were there at ``at``, with the status they had then.

    What a person rejected is rejected at any time.

    :arg needed: ids of atoms that are given in any case: a late event may be dated after ``at``.
    """
    return [_then(atom, at) for atom in atoms if atom.valid_from <= at or atom.atom_id in needed]


def _then(atom: Atom, at: datetime) -> Atom:
    changed: dict[str, object] = {}
    if atom.occurred_at > at >= atom.valid_from:  # it was said again since
        changed["occurred_at"] = atom.valid_from
    ended_later = atom.valid_until is not None and atom.valid_until > at
    if atom.status in ("superseded", "stale") and ended_later:
        changed |= {"status": "active", "superseded_by": None}
    return atom.model_copy(update=changed) if changed else atom

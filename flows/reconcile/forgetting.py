"""What a forget or a reject request does to the atoms of its scope. Pure.

An atom goes when nothing is left that it stands on. Where a statement of it is left, only the
dead ones are taken off. What a removed atom alone had superseded holds again, unless its own end
lies behind it: the newer value was never said, as far as memory may know. The same for what a
rejected atom alone had superseded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flows.reconcile.statements import statements_of
from flows.reconcile.units import Units
from stores.ids import event_key
from stores.records import Atom, Tombstone
from stores.value_keys import value_keys

__all__ = ["CarriedOut", "forget", "reject"]


class CarriedOut(NamedTuple):
    """What a request did.

    :arg touched: atoms it is about that are still there, as they are now.
    :arg changed: those of them that the store does not hold like this yet.
    :arg removed: ids of the atoms to be deleted.
    :arg tombstone: the request's, with the atoms that it took along.
    """

    touched: tuple[Atom, ...]
    changed: tuple[Atom, ...]
    removed: tuple[str, ...]
    tombstone: Tombstone


def forget(
    scope: Units, tombstone: Tombstone, covers: Callable[[Atom], bool] | None = None
) -> CarriedOut:
    """Carry out a forget request.

    :arg covers: whether nothing is left that an atom may stand on. Without it, the request's
        own user or session decides where the tombstone names no events.
    """
    dead = _DeadStatements(tombstone, alone=covers is None)
    removed: list[Atom] = []
    reduced: list[Atom] = []
    for unit in scope:
        said = statements_of(unit)
        left = tuple(one for one in said if not dead.are(unit, one, first=one is said[0]))
        by_name = unit.atom_id in tombstone.atom_ids
        if by_name or not left or (covers is not None and covers(unit)):
            removed.append(unit)
        elif len(left) < len(said):
            reduced.append(_with_statements(unit, left))
    gone = {unit.atom_id for unit in removed}
    scope.begin()
    for unit in reduced:
        scope.put(unit)
    free = {
        other.atom_id
        for unit in removed
        for other in scope.retired_by(unit.atom_id)
        if other.atom_id not in gone
    }
    for atom_id in sorted(free):
        scope.release(_there(scope, atom_id), gone)
    scope.drop(sorted(gone))
    for unit in (*removed, *reduced, *(_there(scope, atom_id) for atom_id in sorted(free))):
        scope.retime(unit)
    named = tuple(dict.fromkeys((*tombstone.atom_ids, *sorted(gone))))
    changed = tuple(scope.changes())
    return CarriedOut(
        changed,
        changed,
        tuple(sorted(gone | set(tombstone.atom_ids))),
        tombstone.model_copy(update={"atom_ids": named}),
    )


def reject(scope: Units, tombstone: Tombstone) -> CarriedOut:
    """Carry out a reject request: the atoms it names, and all with the same values."""
    named = [unit for atom_id in tombstone.atom_ids if (unit := scope.get(atom_id)) is not None]
    keys = dict.fromkeys(tombstone.text_keys)
    scope.begin()
    wrong: dict[str, None] = {}
    for unit in named:
        keys.update(dict.fromkeys(value_keys(unit.scope, unit.text)))
        for same in scope.with_value(unit.text):
            wrong[same.atom_id] = None
            now = _there(scope, same.atom_id)
            if now.status != "rejected":
                scope.reject(now)
    changed = tuple(scope.changes())
    touched = {atom_id: _there(scope, atom_id) for atom_id in wrong}
    for atom_id in wrong:  # what it had superseded, so that it is named when it is done again
        touched |= {one.atom_id: one for one in scope.listed_by(touched[atom_id])}
    touched |= {one.atom_id: one for one in changed}
    return CarriedOut(
        tuple(touched.values()),
        changed,
        (),
        tombstone.model_copy(update={"text_keys": tuple(keys)}),
    )


class _DeadStatements:
    """Which statements of an atom are not to be used any more."""

    def __init__(self, tombstone: Tombstone, *, alone: bool) -> None:
        self._tombstone = tombstone
        self._alone = alone
        self._keys = frozenset(tombstone.event_keys)

    def are(self, unit: Atom, said: tuple[str, ...], *, first: bool) -> bool:
        tombstone = self._tombstone
        if any(event_key(unit.scope, event_id) in self._keys for event_id in said):
            return True
        if not self._alone or self._keys or unit.valid_from > tombstone.requested_at:
            return False
        if tombstone.target == "session":
            # Of later statements the session is not known; of the first one it is the atom's.
            return first and unit.session_id == tombstone.session_id
        return tombstone.target == "user" and unit.occurred_at <= tombstone.requested_at


def _with_statements(unit: Atom, left: tuple[tuple[str, ...], ...]) -> Atom:
    alive = {event_id for said in left for event_id in said}
    return unit.model_copy(
        update={
            "statements": left if len(left) > 1 else (),
            "source_event_ids": tuple(one for one in unit.source_event_ids if one in alive),
        }
    )


def _there(scope: Units, atom_id: str) -> Atom:
    unit = scope.get(atom_id)
    if unit is None:
        message = f"atom {atom_id} is not in its scope"
        raise KeyError(message)
    return unit

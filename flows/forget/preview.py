"""What a request would take away, counted from the topics. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flows.upkeep.history import History, Tally
from stores.ids import event_key
from stores.records import Atom, Profile, Tombstone
from stores.tombstones import Tombstones, more_of
from stores.value_keys import value_keys

__all__ = ["Preview", "preview"]


@dataclass(frozen=True, slots=True)
class Preview:
    """What would go.

    :arg events: events of the log that would be kept out from now on.
    :arg atoms_removed: atoms that nothing would be left to stand on.
    :arg atoms_changed: atoms that would lose a source, or be rejected.
    :arg profiles: scenes and personas that rest on any of these atoms, to be written anew.
    """

    events: int
    atoms_removed: int
    atoms_changed: int
    profiles: int


def preview(
    history: History, profiles: Iterable[Profile], requests: Sequence[Tombstone]
) -> Preview:
    """Count what requests would take away that is still there.

    :arg profiles: each scene and persona as it stands now.
    """
    before, after = history.kept_out, history.kept_out.copy()
    scopes = {one.scope for one in requests}
    for one in requests:
        after.add(one)
    atoms = [
        atom
        for atom in history.atoms(history.final_atoms(Tally()), Tally())
        if atom.scope in scopes
    ]
    for one in requests:
        _name(one, after, [atom for atom in atoms if atom.atom_id in one.atom_ids])
    events = 0
    covered: dict[str, list[str]] = {}
    for sourced in history.events(Tally()):
        if sourced.scope in scopes and after.covers_event(sourced):
            events += 1
            key = event_key(sourced.scope, sourced.event.event_id)
            covered.setdefault(sourced.scope, []).append(key)
    for one in requests:
        if one.kind == "forget":
            _add(more_of(one, after, event_keys=covered.get(one.scope, ())), after)
    removed, changed = set(), set()
    for atom in atoms:
        settled = after.settle(atom)
        if settled is None:
            removed.add(atom.atom_id)
        elif settled != before.settle(atom):
            changed.add(atom.atom_id)
    resting = sum(
        not one.deleted and not (removed | changed).isdisjoint(one.atom_ids) for one in profiles
    )
    return Preview(events, len(removed), len(changed), resting)


def _name(request: Tombstone, after: Tombstones, named: Sequence[Atom]) -> None:
    """Add what the atoms that a request names stand on, or their values."""
    if request.kind == "reject":
        keys = [key for atom in named for key in value_keys(atom.scope, atom.text)]
        _add(more_of(request, after, text_keys=keys), after)
    else:
        sources = [event_key(atom.scope, one) for atom in named for one in atom.source_event_ids]
        _add(more_of(request, after, event_keys=sources), after)


def _add(more: Tombstone | None, after: Tombstones) -> None:
    if more is not None:
        after.add(more)

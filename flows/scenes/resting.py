"""What of a scope is gone, so that nothing that rests on it may be told any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Protocol

from stores.protocols import AtomReader, KeptOut
from stores.records import Atom

__all__ = ["Buried", "Resting", "gone_atoms", "gone_in", "rests_on"]


class Buried(KeptOut, Protocol):
    """What is kept out, and which atoms went with it: :class:`stores.tombstones.Tombstones`."""

    def concerns(self, scope: str) -> bool:
        """Say whether anything of a scope was ever forgotten or rejected."""
        ...

    def forgotten_atoms(self, scope: str) -> frozenset[str]:
        """Give the ids of the atoms that forget requests of a scope took along."""
        ...


def gone_atoms(atoms: Iterable[Atom], kept_out: KeptOut | None) -> frozenset[str]:
    """Give the ids of those atoms that must not be told: rejected, or with nothing left to rest on.

    Also where a request is on its way and the atom itself does not say so yet.
    """
    return frozenset(
        one.atom_id
        for one in atoms
        if one.status == "rejected"
        or (
            kept_out is not None
            and (
                kept_out.covers_atom(one)
                or (one.status == "active" and kept_out.rejects(one.scope, one.text))
            )
        )
    )


def gone_in(scope: str, held: Iterable[Atom], kept_out: Buried | None) -> frozenset[str]:
    """Give the ids of all atoms of a scope that are gone: also of those not in the store any more.

    One that is merely not there says nothing: a person may have written any id into their file.

    :arg held: the atoms of the scope, as the store has them.
    """
    held = list(held)
    gone = gone_atoms(held, kept_out)
    if kept_out is None or not kept_out.concerns(scope):
        return gone
    return gone | kept_out.forgotten_atoms(scope).difference(one.atom_id for one in held)


def rests_on(
    gone: Collection[str],
    scope: str,
    atom_ids: Collection[str],
    updated: datetime,
    kept_out: KeptOut | None,
) -> bool:
    """Say whether a text is to be told no more: it rests on an atom that is gone.

    One that rests on no atom goes with all of the user whose scope it is.

    :arg atom_ids: atoms that it tells or has archived.
    :arg updated: when it was written; what is written after a request is not covered by it.
    """
    if atom_ids:
        return not set(gone).isdisjoint(atom_ids)
    return kept_out is not None and kept_out.covers_atom(_stand_in(scope, updated))


def _stand_in(scope: str, updated: datetime) -> Atom:
    """Give an atom for a text that has none, of which only scope and date can be covered."""
    return Atom(
        atom_id="text", scope=scope, session_id="", type="persona", text="text", priority=0,
        source_event_ids=("text",), window_id="", extractor="", occurred_at=updated,
        valid_from=updated,
    )  # fmt: skip


class Resting:
    """Finds what of a scope is gone. Blocking; asks the store only where it must."""

    def __init__(self, atoms: AtomReader, kept_out: Buried) -> None:
        self._atoms = atoms
        self._kept_out = kept_out

    def gone(self, scope: str) -> frozenset[str]:
        """Give the ids of the atoms of a scope that are gone; empty where nothing ever went."""
        if not self._kept_out.concerns(scope):
            return frozenset()
        return gone_in(scope, self._atoms.atoms_of(scope), self._kept_out)

    def hides(
        self, scope: str, gone: Collection[str], atom_ids: Collection[str], updated: datetime
    ) -> bool:
        """Say whether a text is not told: see :func:`rests_on`."""
        return rests_on(gone, scope, atom_ids, updated, self._kept_out)

    def concerns(self, scope: str) -> bool:
        """Say whether anything of a scope was ever forgotten or rejected."""
        return self._kept_out.concerns(scope)

"""What of a scope is gone, so that nothing that rests on it may be told any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stores.protocols import AtomReader, KeptOut
from stores.records import Atom

__all__ = ["Buried", "Resting", "gone_atoms"]


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


class Resting:
    """Finds the atoms of a scope that are gone. Blocking; asks the store only where it must.

    An atom is gone when it must not be told, or when a forget request took it and it is not in
    the store. One that is merely not there says nothing: a person may have written any id into
    their file.
    """

    def __init__(self, atoms: AtomReader, kept_out: Buried) -> None:
        self._atoms = atoms
        self._kept_out = kept_out

    def gone(self, scope: str) -> frozenset[str]:
        """Give the ids of the atoms of a scope that are gone; empty where nothing ever went."""
        if not self._kept_out.concerns(scope):
            return frozenset()
        held = self._atoms.atoms_of(scope)
        taken = self._kept_out.forgotten_atoms(scope).difference(one.atom_id for one in held)
        return gone_atoms(held, self._kept_out) | taken

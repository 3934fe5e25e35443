"""Reconcile: what a scope's new atoms do to the ones it already has. Rule-based.

Two rules, on exact values only, so that they decide the same way every time:

- **The same fact again** (same type, same text but for case, width and white space) makes no
  second atom; its sources are added to the atom that stands.
- **A newer value of a single-valued thing** (same ``slot``, other text) supersedes the older
  one: status ``superseded``, ``superseded_by`` and ``valid_until`` set. Nothing is deleted.
  Which one is newer is decided by event time, never by which came first, so a history that is
  imported late does not overwrite what was said after it.

Applying the same window twice changes nothing, also when later windows were applied between.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stores.protocols import AtomStore, Embedder
from stores.records import Atom, RefusedMemory, Window

__all__ = ["NewAtoms", "Reconciler", "ScopeAtoms", "StoredAtoms", "WarmScopes", "normalised"]

_WARM_SCOPES = 2000
"""Scopes whose atoms are kept in memory between windows, most recently used."""


def normalised(text: str) -> str:
    """Reduce a text to what makes two statements of it the same.

    >>> normalised("  User LIKES  tea. ") == normalised("user likes tea")
    True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).rstrip(".!。！ ")


class ScopeAtoms:
    """All atoms of one scope, in memory, and what new ones do to them."""

    def __init__(self, atoms: Iterable[Atom] = ()) -> None:
        """Begin with what the store holds."""
        self._by_id: dict[str, Atom] = {}
        self._by_text: dict[tuple[str, str], list[str]] = {}
        self._by_slot: dict[str, list[str]] = {}
        for atom in atoms:
            self._put(atom)

    def apply(self, incoming: Sequence[Atom]) -> list[Atom]:
        """Take in one window's atoms.

        :returns: every atom to be written, new ones first, each once, in its final state.
        """
        changed: dict[str, Atom] = {}
        for atom in incoming:
            for written in self._apply_one(atom):
                self._put(written)
                changed[written.atom_id] = written
        return list(changed.values())

    def _apply_one(self, atom: Atom) -> list[Atom]:
        if atom.atom_id in self._by_id:
            return []
        for other_id in self._by_text.get((atom.type, normalised(atom.text)), ()):
            other = self._by_id[other_id]
            if set(atom.source_event_ids) <= set(other.source_event_ids):
                return []  # taken in before, by a run that was killed after it
            if other.status == "active":
                sources = dict.fromkeys((*other.source_event_ids, *atom.source_event_ids))
                # Said again: it holds from the first statement to at least the newest one.
                merged = {
                    "source_event_ids": tuple(sources),
                    "occurred_at": max(other.occurred_at, atom.occurred_at),
                }
                return self._timeline(other.model_copy(update=merged))
        return self._timeline(atom)

    def _timeline(self, atom: Atom) -> list[Atom]:
        """Put ``atom`` where its date belongs among the values of its slot."""
        if atom.slot is None:
            return [atom]
        values = [
            self._by_id[other]
            for other in self._by_slot.get(atom.slot, ())
            if other != atom.atom_id
        ]
        values.append(atom)
        values.sort(key=lambda value: (value.occurred_at, value.atom_id))
        written = [atom]
        for value, newer in zip(values, [*values[1:], None], strict=True):
            settled = _superseded(value, newer) if newer else value
            if value.atom_id == atom.atom_id:
                written[0] = settled
            elif settled != value:
                written.append(settled)
        return written

    def _put(self, atom: Atom) -> None:
        if atom.atom_id not in self._by_id:
            self._by_text.setdefault((atom.type, normalised(atom.text)), []).append(atom.atom_id)
            if atom.slot is not None:
                self._by_slot.setdefault(atom.slot, []).append(atom.atom_id)
        self._by_id[atom.atom_id] = atom


def _superseded(old: Atom, newer: Atom) -> Atom:
    return old.model_copy(
        update={
            "status": "superseded",
            "superseded_by": newer.atom_id,
            "valid_until": newer.occurred_at,
        }
    )


class WarmScopes:
    """The atoms of the scopes in use, most recently used last. For one event loop only."""

    def __init__(self, capacity: int = _WARM_SCOPES) -> None:
        """Begin with nothing loaded."""
        self._capacity = capacity
        self._scopes: OrderedDict[str, ScopeAtoms] = OrderedDict()

    def get(self, scope: str) -> ScopeAtoms | None:
        """Give a scope's atoms, or ``None`` when they have to be read from the store."""
        atoms = self._scopes.get(scope)
        if atoms is not None:
            self._scopes.move_to_end(scope)
        return atoms

    def put(self, scope: str, atoms: ScopeAtoms) -> None:
        """Keep a scope's atoms; the scope used longest ago makes room."""
        self._scopes[scope] = atoms
        while len(self._scopes) > self._capacity:
            self._scopes.popitem(last=False)

    def drop(self, scope: str) -> None:
        """Forget a scope's atoms; the next use reads them anew."""
        self._scopes.pop(scope, None)


# --- the stage's work --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewAtoms:
    """What extraction gave for one window, on its way into the store."""

    window: Window
    atoms: tuple[Atom, ...]
    refused: tuple[RefusedMemory, ...]
    attempts: int


@dataclass(frozen=True, slots=True)
class StoredAtoms:
    """A window whose atoms are in the store.

    :arg written: every atom that was written for it, changed older ones included.
    """

    written: tuple[Atom, ...]


class Reconciler:
    """Work of the reconcile stage: one window of one scope at a time.

    It writes atoms, then returns; a crash between repeats the write with the same result.
    """

    def __init__(self, store: AtomStore, embedder: Embedder) -> None:
        """Nothing is read until the first window comes."""
        self._store = store
        self._embedder = embedder
        self._warm = WarmScopes()

    async def __call__(
        self, items: Sequence[NewAtoms], previous_error: str | None
    ) -> list[StoredAtoms]:
        """Reconcile and store each item, in order. Raises what store and embedder raise."""
        return [await self._one(item) for item in items]

    async def _one(self, item: NewAtoms) -> StoredAtoms:
        if not item.atoms:
            return StoredAtoms(())
        scope = item.window.scope
        known = self._warm.get(scope)
        if known is None:
            known = ScopeAtoms(await asyncio.to_thread(self._store.atoms_of, scope))
            self._warm.put(scope, known)
        # From here the memory is ahead of the store, until the write is done.
        try:
            written = known.apply(item.atoms)
            if written:
                vectors = await self._embedder.embed_passages(
                    [atom.search_text() for atom in written]
                )
                await asyncio.to_thread(self._store.upsert_atoms, written, vectors)
        except BaseException:
            self._warm.drop(scope)
            raise
        return StoredAtoms(tuple(written))

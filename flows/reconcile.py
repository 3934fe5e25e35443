"""Reconcile: what a scope's new atoms do to the ones it already has. Rule-based.

Two rules, on exact values only, so that they decide the same way every time:

- **The same fact again** (same type, same text but for case, width and white space) makes no
  second atom; its sources are added to the atom that stands.
- **A newer value of a single-valued thing** (same ``slot``, other text) supersedes the older
  one: status ``superseded``, ``superseded_by`` and ``valid_until`` set. Nothing is deleted.
  Which one is newer is decided by event time, never by which came first, so a history that is
  imported late does not overwrite what was said after it.

Applying the same window twice changes nothing, also when later windows were applied between;
it names the same atoms again, so that a run killed between storing and producing them makes
up for it.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from connectors.metrics import RECALLABLE_SECONDS
from stores.protocols import AtomStore, Clock, Embedder
from stores.records import Atom, RefusedMemory, Window

__all__ = [
    "Applied",
    "NewAtoms",
    "Reconciler",
    "ScopeAtoms",
    "StoredAtoms",
    "WarmScopes",
    "normalised",
]

_WARM_SCOPES = 2000
"""Scopes whose atoms are kept in memory between windows, most recently used."""


def normalised(text: str) -> str:
    """Reduce a text to what makes two statements of it the same.

    >>> normalised("  User LIKES  tea. ") == normalised("user likes tea")
    True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).rstrip(".!。！ ")


class Applied(NamedTuple):
    """What a window's atoms did, each atom once and in its final state.

    :arg touched: every atom the window makes, adds to or supersedes; the same ones when it was
        applied before. These are produced.
    :arg changed: those of them that the store does not hold like this yet.
    """

    touched: tuple[Atom, ...]
    changed: tuple[Atom, ...]


class ScopeAtoms:
    """All atoms of one scope, in memory, and what new ones do to them."""

    def __init__(self, atoms: Iterable[Atom] = ()) -> None:
        """Begin with what the store holds."""
        self._by_id: dict[str, Atom] = {}
        self._by_text: dict[tuple[str, str], list[str]] = {}
        self._by_slot: dict[str, list[str]] = {}
        for atom in atoms:
            self._put(atom)

    def apply(self, incoming: Sequence[Atom]) -> Applied:
        """Take in one window's atoms."""
        touched: dict[str, Atom] = {}
        changed: set[str] = set()
        for atom in incoming:
            for settled in self._settle(atom):
                touched[settled.atom_id] = settled
                if self._by_id.get(settled.atom_id) != settled:
                    changed.add(settled.atom_id)
                    self._put(settled)
        return Applied(
            tuple(touched.values()),
            tuple(touched[atom_id] for atom_id in touched if atom_id in changed),
        )

    def _settle(self, atom: Atom) -> list[Atom]:
        """Give the atom that stands for ``atom``, and all that it supersedes, as they end."""
        known = self._by_id.get(atom.atom_id) or self._merged(atom)
        settled = [atom] if known is None else [known]
        if known is None or self._by_id.get(known.atom_id) != known:
            settled = self._timeline(settled[0])
        ids = {one.atom_id for one in settled}
        older = self._by_slot.get(atom.slot or "", ())
        return settled + [
            self._by_id[other]
            for other in older
            if other not in ids and self._by_id[other].superseded_by == settled[0].atom_id
        ]

    def _merged(self, atom: Atom) -> Atom | None:
        """Give the atom that says the same, with the sources of both; ``None`` without one."""
        for other_id in self._by_text.get((atom.type, normalised(atom.text)), ()):
            other = self._by_id[other_id]
            if set(atom.source_event_ids) <= set(other.source_event_ids):
                return other  # taken in before, by a run that was killed after it
            if other.status == "active":
                # Said again: it holds from the first statement to at least the newest one.
                sources = dict.fromkeys((*other.source_event_ids, *atom.source_event_ids))
                newest = max(other.occurred_at, atom.occurred_at)
                return other.model_copy(
                    update={"source_event_ids": tuple(sources), "occurred_at": newest}
                )
        return None

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
    # The newer value may have been said again since: it took over when it was first said.
    since = newer.valid_from if newer.valid_from >= old.occurred_at else newer.occurred_at
    return old.model_copy(
        update={"status": "superseded", "superseded_by": newer.atom_id, "valid_until": since}
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

    :arg touched: every atom it made or changed, older ones included.
    """

    touched: tuple[Atom, ...]


class Reconciler:
    """Work of the reconcile stage: one window of one scope at a time.

    It writes atoms, then returns; a crash between repeats the write with the same result.
    """

    def __init__(self, store: AtomStore, embedder: Embedder, clock: Clock) -> None:
        """Nothing is read until the first window comes; ``clock`` is for the freshness metric."""
        self._store = store
        self._embedder = embedder
        self._clock = clock
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
            touched, changed = known.apply(item.atoms)
            if changed:
                vectors = await self._embedder.embed_passages(
                    [atom.search_text() for atom in changed]
                )
                await asyncio.to_thread(self._store.upsert_atoms, changed, vectors)
        except BaseException:
            self._warm.drop(scope)
            raise
        newest = max(sourced.record.timestamp_ms for sourced in item.window.events)
        age = self._clock.now().timestamp() - newest / 1000
        RECALLABLE_SECONDS.labels("atoms").observe(max(0.0, age))
        return StoredAtoms(touched)

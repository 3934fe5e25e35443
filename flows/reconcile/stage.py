"""Work of the reconcile stage: one window, or one forget or reject request, at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from connectors.metrics import RECALLABLE_SECONDS, RECONCILED
from connectors.settings import DEFAULT_GATE_CHARS
from connectors.together import Together
from flows.forget.request import Forgetting, is_edit
from flows.reconcile.forgetting import forget, reject
from flows.reconcile.items import Decision, NewAtoms, StoredAtoms
from flows.reconcile.judge import Judge
from flows.reconcile.scope import ScopeAtoms
from flows.reconcile.warm import WarmScope, WarmScopes
from flows.reconcile.whole import Write, scope_atoms, write_whole
from stores.protocols import (
    AtomStore,
    ChatModel,
    Clock,
    Embedder,
    KeptOut,
    UnfinishedWrites,
    Vectors,
)
from stores.records import Atom, RefusedMemory, Window
from stores.unfinished import UnfinishedInMemory

__all__ = ["Reconciler"]

_PAGE = 1000  # vectors read at once
_reconciled = cache(RECONCILED.labels)
_RECALLABLE = RECALLABLE_SECONDS.labels("atoms")


class Reconciler:
    """Reconciles and stores, in order; one scope's items never at the same time.

    With a model it is asked at most once a window, and only where something near is known;
    without one, rules alone decide. Everything a window does is one write; then it returns. Writes
    of other scopes that are ready at the same moment go to the store in the same call. A crash
    before the write repeats the question, whose recorded answer is found; a crash after it finds
    the window applied, asks nothing, and names the same atoms again; a crash in the middle of it
    is as one after it, for the rest is written when the scope is next read.

    Raises what store, embedder and model raise. Nothing is stored then: an atom is never stored
    because a model or a store could not be asked.

    :arg clock: for the freshness metric only.
    :arg chat: the model that decides; ``None`` for rules alone.
    :arg kept_out: what was forgotten or rejected.
    :arg announce: told about a forget request once it is known what it takes along, before
        anything of it is deleted; what is deleted cannot be found again after a crash. Blocking;
        called from a thread. It may be told the same twice.
    :arg max_chars: characters of a text that the model writes, at most.
    :arg unfinished: notes about writes that have begun; they must outlive whatever the store
        outlives.
    """

    def __init__(
        self,
        store: AtomStore,
        embedder: Embedder,
        clock: Clock,
        *,
        chat: ChatModel | None = None,
        kept_out: KeptOut | None = None,
        announce: Callable[[StoredAtoms], None] | None = None,
        max_chars: int = DEFAULT_GATE_CHARS,
        answer_tokens: int = 4096,
        unfinished: UnfinishedWrites | None = None,
    ) -> None:
        """Nothing is read until the first window comes."""
        self._store = store
        self._embedder = embedder
        self._clock = clock
        self._kept_out = kept_out
        self._announce = announce
        self._judge = (
            Judge(chat, embedder, max_chars=max_chars, answer_tokens=answer_tokens)
            if chat is not None
            else None
        )
        self._warm = WarmScopes()
        self._unfinished = unfinished or UnfinishedInMemory()
        self._written = Together(partial(write_whole, store, self._unfinished))

    async def __call__(
        self, items: Sequence[NewAtoms | Forgetting], previous_error: str | None
    ) -> list[StoredAtoms]:
        """Reconcile and store each item, in order. Raises as the class says."""
        return [
            await self._carry_out(item)
            if isinstance(item, Forgetting)
            else await self._one(item, previous_error)
            for item in items
        ]

    # --- a window ---------------------------------------------------------------------------

    async def _one(self, item: NewAtoms, previous_error: str | None) -> StoredAtoms:
        scope = item.window.scope
        kept = await self._warm_scope(scope)
        atoms = kept.atoms
        incoming, refused = self._not_forgotten(item.atoms)
        edits: dict[str, Decision] = {}
        if is_edit(item.window):
            incoming, edits, unknown = _as_edits(atoms, item.window, incoming)
            refused += unknown
        at = max(sourced.occurred_at for sourced in item.window.events)
        vectors: dict[tuple[str, str], Vectors] = {}
        decisions = edits
        if self._judge is not None and not edits:
            asked = atoms.open_questions(incoming, rejects=self._rejects(scope))
            if asked:
                rows = await self._embedder.embed_passages([one.search_text() for one in asked])
                vectors = {
                    (one.atom_id, one.search_text()): row
                    for one, row in zip(asked, rows, strict=True)
                }
                now = atoms.time_at(incoming, at) or at
                decisions = await self._judge.decide(
                    item.window, asked, rows, atoms, kept.active, now, previous_error
                )
        # From here the memory is ahead of the store, until the write is done.
        try:
            applied = atoms.apply(
                incoming,
                at=at,
                decisions=decisions,
                rejects=self._rejects(scope),
                composer=self._judge.composer if self._judge else "",
            )
            await self._write(kept, applied.changed, vectors)
        except BaseException:
            self._warm.drop(scope)
            raise
        self._warm.put(scope, kept)
        for result, count in Counter(applied.results).items():
            _reconciled(result).inc(count)
        if item.atoms:
            newest = max(sourced.record.timestamp_ms for sourced in item.window.events)
            age = self._clock.now().timestamp() - newest / 1000
            _RECALLABLE.observe(max(0.0, age))
        return StoredAtoms(
            applied.touched, refused=(*refused, *applied.refused), newer=applied.newer
        )

    def _not_forgotten(self, atoms: Sequence[Atom]) -> tuple[list[Atom], tuple[RefusedMemory, ...]]:
        """Leave out what was forgotten while it was on its way."""
        kept_out = self._kept_out
        if kept_out is None:
            return list(atoms), ()
        gone = {atom.atom_id for atom in atoms if kept_out.covers_atom(atom)}
        _reconciled("forgotten").inc(len(gone))
        refused = tuple(
            RefusedMemory("forgotten", f"memory {number}")
            for number, atom in enumerate(atoms, start=1)
            if atom.atom_id in gone
        )
        return [atom for atom in atoms if atom.atom_id not in gone], refused

    def _rejects(self, scope: str) -> Callable[[str], bool]:
        kept_out = self._kept_out
        return lambda text: kept_out is not None and kept_out.rejects(scope, text)

    # --- a request --------------------------------------------------------------------------

    async def _carry_out(self, item: Forgetting) -> StoredAtoms:
        scope, tombstone = item.scope, item.tombstone
        kept = await self._warm_scope(scope)
        try:
            if tombstone.kind == "reject":
                done = reject(kept.atoms, tombstone)
            else:
                covers = self._kept_out.covers_atom if self._kept_out else None
                done = forget(kept.atoms, tombstone, covers)
            result = StoredAtoms(done.touched, done.removed, (), done.tombstone)
            if self._announce is not None:
                await asyncio.to_thread(self._announce, result)
            await self._write(kept, done.changed, {})
            if done.removed:
                await asyncio.to_thread(self._store.delete_atoms, scope, done.removed)
                for atom_id in done.removed:
                    kept.active.remove(atom_id)
        except BaseException:
            self._warm.drop(scope)
            raise
        self._warm.put(scope, kept)
        return result

    # --- store and memory -------------------------------------------------------------------

    async def _warm_scope(self, scope: str) -> WarmScope:
        kept = self._warm.get(scope)
        if kept is None:
            held = await scope_atoms(self._store, self._unfinished, self._embedder, scope)
            kept = WarmScope(ScopeAtoms(held))
            if self._judge is not None:
                active = [unit for unit in kept.atoms if unit.status == "active"]
                for at in range(0, len(active), _PAGE):
                    page = active[at : at + _PAGE]
                    ids = [unit.atom_id for unit in page]
                    vectors = await asyncio.to_thread(self._store.vectors_of, scope, ids)
                    kept.active.put(ids, [unit.search_text() for unit in page], vectors)
            self._warm.put(scope, kept)
        return kept

    async def _write(
        self, kept: WarmScope, changed: Sequence[Atom], known: dict[tuple[str, str], Vectors]
    ) -> None:
        """Write atoms in one call, so that a new one and those it supersedes change together."""
        if not changed:
            return
        texts = [one.search_text() for one in changed]
        keys = [(one.atom_id, text) for one, text in zip(changed, texts, strict=True)]
        unknown = [key for key in keys if key not in known]
        if unknown:
            rows = await self._embedder.embed_passages([text for _, text in unknown])
            known = known | dict(zip(unknown, rows, strict=True))
        vectors = np.stack([known[key] for key in keys])
        await self._written(Write(changed, vectors))
        if self._judge is None:
            return
        active = [row for row, unit in enumerate(changed) if unit.status == "active"]
        for unit in changed:
            kept.active.remove(unit.atom_id)
        kept.active.put(
            [changed[row].atom_id for row in active],
            [texts[row] for row in active],
            vectors[active],
        )


def _as_edits(
    atoms: ScopeAtoms, window: Window, incoming: Sequence[Atom]
) -> tuple[list[Atom], dict[str, Decision], tuple[RefusedMemory, ...]]:
    """Let a person's new text take the place of the atom that the edit names."""
    request = window.events[0].event.request
    edited = atoms.get(request.atom_ids[0]) if request is not None else None
    if edited is None or edited.status == "rejected":
        return [], {}, (RefusedMemory("unknown_atom", "the edited atom"),)
    like = {
        name: getattr(edited, name)
        for name in ("type", "slot", "priority", "scene", "details", "said_by")
    }
    return (
        [atom.model_copy(update=like) for atom in incoming],
        {atom.atom_id: Decision("update", (edited.atom_id,)) for atom in incoming},
        (),
    )

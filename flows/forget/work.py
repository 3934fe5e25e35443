"""Work of the reconcile stage where forgetting takes part: windows' atoms, and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from flows.forget.events import EventForgetter, TombstoneLog
from flows.forget.request import Forgetting
from flows.reconcile import Leaving, NewAtoms, StoredAtoms
from stores.ids import event_key
from stores.protocols import AnswerJournal, AtomReader, EventIndex
from stores.records import Atom, Tombstone
from stores.tombstones import more_of
from stores.value_keys import value_keys

__all__ = ["ForgettingWork", "ReconcileWork"]

ReconcileWork = Callable[
    [Sequence[NewAtoms | Forgetting], str | None], Awaitable[Sequence[StoredAtoms]]
]
"""What :class:`~flows.reconcile.Reconciler` is."""


class ForgettingWork:
    """Reconciles windows, and carries requests out behind the windows that came before them.

    In this order, so that doing all of it again after a crash at any point ends the same:

    1. the events and atoms that go, or the value that is rejected, are found and published;
    2. the events leave the L0 index, the recorded answers about them the journal;
    3. scenes and personas that rest on those atoms are told no more, until they are rewritten;
    4. the atoms leave the store, or change (``reconcile``).

    What is found in 1 comes from what 2 and 4 take away: so the former is durable first. Raises
    what stores, journal and log raise.

    :arg journal: ``None`` where no answer is recorded.
    :arg hide: :meth:`flows.scenes.ProfileSync.hide`; blocking.
    """

    def __init__(
        self,
        reconcile: ReconcileWork,
        *,
        atoms: AtomReader,
        index: EventIndex,
        journal: AnswerJournal | None,
        log: TombstoneLog,
        hide: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._reconcile = reconcile
        self._atoms = atoms
        self._index = index
        self._events = EventForgetter(index, log)
        self._journal = journal
        self._log = log
        self._hide = hide

    async def __call__(
        self, items: Sequence[NewAtoms | Forgetting | Leaving], previous_error: str | None
    ) -> list[StoredAtoms]:
        """Work on each item, in order."""
        return [await self._one(item, previous_error) for item in items]

    async def _one(
        self, item: NewAtoms | Forgetting | Leaving, previous_error: str | None
    ) -> StoredAtoms:
        if isinstance(item, Leaving):
            return StoredAtoms(())
        if isinstance(item, NewAtoms):
            (stored,) = await self._reconcile([item], previous_error)
            return stored
        work = self._forget if item.tombstone.kind == "forget" else self._reject
        tombstone = await asyncio.to_thread(work, item)
        await asyncio.to_thread(self._hide, item.scope)
        (stored,) = await self._reconcile([replace(item, tombstone=tombstone)], previous_error)
        if tombstone.kind == "reject":
            return replace(stored, tombstone=tombstone)
        more = more_of(item.tombstone, self._log.known, atom_ids=stored.removed)
        await asyncio.to_thread(self._publish, more)
        # Also those that a run which was killed had taken out of the store before.
        removed = tuple(dict.fromkeys((*tombstone.atom_ids, *stored.removed)))
        return replace(stored, removed=removed, tombstone=tombstone)

    def _forget(self, item: Forgetting) -> Tombstone:
        base, known, scope = item.tombstone, self._log.known, item.scope
        self._log.refresh()  # the index may be another process's, and have named its rows there
        held = self._atoms.atoms_of(scope)
        named = {
            source
            for atom in held
            if known.covers_sources(atom) or self._names(base, atom)
            for source in atom.source_event_ids
        }
        keys = [event_key(scope, one) for one in named]
        self._publish(more_of(base, known, event_keys=keys))
        self._events.forget(item.sourced)
        if named:
            self._index.delete_events(scope, sorted(named))
        if base.target == "session":
            unseen = [event_key(scope, one) for one in self._not_indexed(base, held)]
            self._publish(more_of(base, known, event_keys=unseen))
        doomed = [atom.atom_id for atom in held if known.covers_atom(atom)]
        self._publish(more_of(base, known, atom_ids=doomed))
        covered = known.of_request(scope, base.request_id)
        if self._journal is not None:
            self._journal.forget((*covered.event_keys, *doomed))
        living = {atom.atom_id for atom in held}.difference(doomed)
        gone = tuple(one for one in covered.atom_ids if one not in living)
        return base.model_copy(update={"event_keys": covered.event_keys, "atom_ids": gone})

    def _not_indexed(self, base: Tombstone, held: Sequence[Atom]) -> list[str]:
        """Give the events of a session that atoms stand on and the index never had.

        Their indexing failed, or is behind. Only the first statement of an atom is known to be
        of its session, and that one may be gone, so an event that the index knows is another's.
        """
        candidates = [
            atom
            for atom in held
            if atom.session_id == base.session_id
            and atom.occurred_at <= base.requested_at
            and not self._log.known.covers_atom(atom)
        ]
        if not candidates:
            return []
        indexed = {one.event_id for one in self._index.events_of(base.scope)}
        firsts = [(atom.statements or (atom.source_event_ids,))[0] for atom in candidates]
        return [one for first in firsts if not indexed.intersection(first) for one in first]

    def _names(self, base: Tombstone, atom: Atom) -> bool:
        """Say whether a request names this atom.

        Once its sources are known they decide, and not the id: after a replay without them,
        another memory of the window may have it.
        """
        if atom.atom_id not in base.atom_ids:
            return False
        known = set(self._log.known.of_request(base.scope, base.request_id).event_keys)
        return not known or known.issuperset(
            event_key(base.scope, one) for one in atom.source_event_ids
        )

    def _reject(self, item: Forgetting) -> Tombstone:
        base, known, scope = item.tombstone, self._log.known, item.scope
        self._log.refresh()
        if not known.of_request(scope, base.request_id).text_keys:
            named = (self._atoms.get_atom(scope, one) for one in base.atom_ids)
            keys = [key for atom in named if atom for key in value_keys(scope, atom.text)]
            self._publish(more_of(base, known, text_keys=keys))
        values = known.of_request(scope, base.request_id).text_keys
        with_value = tuple(
            one
            for one in base.atom_ids
            if (atom := self._atoms.get_atom(scope, one)) is not None
            and set(values).intersection(value_keys(scope, atom.text))
        )
        return base.model_copy(update={"text_keys": values, "atom_ids": with_value})

    def _publish(self, more: Tombstone | None) -> None:
        if more is not None:
            self._log.publish([more])

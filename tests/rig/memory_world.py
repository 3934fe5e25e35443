"""Store, index, journal and tombstones in memory, to be killed before any of their effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from stores.protocols import ChatAnswer, Vectors
from stores.records import Atom, IndexedEvent, Tombstone
from stores.tombstones import Tombstones

__all__ = ["Killed", "MemoryWorld"]


class Killed(BaseException):
    """The process died here. No code of ours catches it."""


@dataclass
class MemoryWorld:
    """What outlives a process. Every change is an effect; at the ``kill_at``-th one it dies.

    :arg effects: the changes that were made, in order.
    """

    atoms: dict[str, Atom] = field(default_factory=dict)
    events: dict[str, IndexedEvent] = field(default_factory=dict)
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    durable: list[Tombstone] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    kill_at: int | None = None
    known: Tombstones = field(default_factory=Tombstones)

    def restart(self) -> None:
        """Begin a process: what was kept out is what the topic holds, and nobody kills it."""
        self.kill_at = None
        self.known = Tombstones(self.durable)

    def _effect(self, what: str) -> None:
        if self.kill_at == len(self.effects):
            raise Killed(what)
        self.effects.append(what)

    # --- a TombstoneLog ---

    def refresh(self) -> None:
        for one in self.durable:
            self.known.add(one)

    def publish(self, tombstones: Sequence[Tombstone]) -> None:
        self._effect("publish")
        self.durable.extend(tombstones)
        self.refresh()

    # --- an EventIndex ---

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        self._effect("upsert events")
        self.events |= {one.event_id: one for one in events}

    def delete_events(self, scope: str, event_ids: Sequence[str]) -> None:
        self._effect("delete events")
        for one in event_ids:
            self.events.pop(one, None)

    def events_of(self, scope: str, session_id: str | None = None) -> Iterator[IndexedEvent]:
        yield from [one for one in self.events.values() if session_id in (None, one.session_id)]

    # --- an AtomStore ---

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        found = [one for one in self.atoms.values() if one.status == "active" or not only_active]
        return sorted(found, key=lambda one: (one.occurred_at, one.atom_id))

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        return self.atoms.get(atom_id)

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        self._effect("upsert atoms")
        self.atoms |= {one.atom_id: one for one in atoms}

    def vectors_of(self, scope: str, atom_ids: Sequence[str]) -> Vectors:
        return np.ones((len(atom_ids), 2), np.float32)

    def delete_atoms(self, scope: str, atom_ids: Sequence[str]) -> None:
        self._effect("delete atoms")
        for one in atom_ids:
            self.atoms.pop(one, None)

    # --- an AnswerJournal ---

    def get(self, request_hash: str) -> ChatAnswer | None:
        return None

    def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
        return [None for _ in request_hashes]

    def put(
        self,
        request_hash: str,
        prompt_version: str,
        answer: ChatAnswer,
        about: Sequence[str] = (),
    ) -> None:
        self.answers[request_hash] = tuple(about)

    def forget(self, about: Sequence[str]) -> int:
        self._effect("forget answers")
        doomed = [one for one, named in self.answers.items() if set(named) & set(about)]
        for one in doomed:
            del self.answers[one]
        return len(doomed)

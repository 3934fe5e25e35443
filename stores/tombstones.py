"""What was forgotten or rejected, in memory: asked before anything becomes memory.

Filled from the tombstones topic and from requests as they pass. Adding is idempotent and the
order does not matter: nothing here is ever taken back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from stores.ids import content_id, event_key
from stores.records import Atom, IndexedEvent, Position, SourcedEvent, Tombstone, to_utc
from stores.value_keys import value_keys

__all__ = [
    "MAX_KEYS",
    "Covered",
    "NothingKeptOut",
    "Tombstones",
    "more_of",
    "split",
    "tombstone_of",
]

MAX_KEYS = 10_000
"""Ids in one tombstone at most: about 350 kB, well below the limit of a record."""


# --- records -----------------------------------------------------------------------------------


def tombstone_of(sourced: SourcedEvent) -> Tombstone:
    """Give the tombstone of a request, as far as the request alone tells."""
    event, request, position = sourced.event, sourced.event.request, sourced.position
    assert request is not None and event.type in ("forget", "reject")
    target, scope = request.target, sourced.scope
    ids = (*request.event_ids, *request.atom_ids)
    return Tombstone(
        tombstone_id=content_id("tombstone", scope, event.event_id, event.type, target, *ids),
        kind="reject" if event.type == "reject" else "forget",
        target=target,
        scope=scope,
        user_id=event.user_id if target == "user" else None,
        session_id=event.session_id if target == "session" else None,
        event_keys=tuple(event_key(scope, one) for one in request.event_ids),
        atom_ids=request.atom_ids,
        reason=request.reason,
        request_id=event.event_id,
        requested_at=sourced.occurred_at,
        topic=position.topic,
        partition=position.partition,
        offset=position.offset,
    )


def split(tombstone: Tombstone) -> list[Tombstone]:
    """Cut a tombstone with more than :data:`MAX_KEYS` ids into several; ids come from content.

    The first keeps the id, and with it what is not a list.
    """
    keys, atoms, texts = tombstone.event_keys, tombstone.atom_ids, tombstone.text_keys
    if len(keys) + len(atoms) + len(texts) <= MAX_KEYS:
        return [tombstone]
    named = [("event_keys", key) for key in keys]
    named += [("atom_ids", one) for one in atoms] + [("text_keys", key) for key in texts]
    parts = []
    for start in range(0, len(named), MAX_KEYS):
        chunk = named[start : start + MAX_KEYS]
        ids = [one for _, one in chunk]
        lists = {
            name: tuple(one for of, one in chunk if of == name)
            for name in ("event_keys", "atom_ids", "text_keys")
        }
        own_id = _part_id(tombstone, ids) if start else tombstone.tombstone_id
        parts.append(tombstone.model_copy(update={**lists, "tombstone_id": own_id}))
    return parts


def _part_id(tombstone: Tombstone, ids: Sequence[str]) -> str:
    """Give the id of a part of a tombstone that holds ``ids``."""
    return content_id("tombstone-part", tombstone.scope, tombstone.request_id, *ids)


# --- answers -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Before:
    """All of a user or session up to a request, or to the latest of several.

    :arg until: events dated no later are covered, wherever and whenever they stand in the log.
    :arg offsets: by (topic, partition): events that stand before are covered, whatever the date.
    """

    until: datetime
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    def extend(self, tombstone: Tombstone) -> None:
        self.until = max(self.until, to_utc(tombstone.requested_at))
        place = tombstone.topic, tombstone.partition
        self.offsets[place] = max(tombstone.offset, self.offsets.get(place, -1))

    def covers(self, position: Position, occurred_at: datetime) -> bool:
        if occurred_at <= self.until:
            return True
        return position.offset < self.offsets.get((position.topic, position.partition), -1)


@dataclass(slots=True)
class _Scope:
    """What is kept out of one scope."""

    users: dict[str, _Before] = field(default_factory=dict)
    sessions: dict[str, _Before] = field(default_factory=dict)
    events: set[str] = field(default_factory=set)
    atoms: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    requests: dict[str, dict[str, Tombstone]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Covered:
    """All that the tombstones of one request name, in the order in which it was added."""

    event_keys: tuple[str, ...]
    atom_ids: tuple[str, ...]
    text_keys: tuple[str, ...]


class Tombstones:
    """Everything that is kept out: a :class:`~stores.protocols.KeptOut`. Thread-safe.

    Memory: about 150 bytes for each id of a tombstone, nothing for what was never forgotten.
    Asking is one look into a dict for a scope without tombstones.

    :arg user_owns_scope: the scope has the user in it, so that all of a user is all of the scope.
    """

    def __init__(
        self, tombstones: Iterable[Tombstone] = (), *, user_owns_scope: bool = True
    ) -> None:
        self._user_owns_scope = user_owns_scope
        self._lock = threading.Lock()
        self._scopes: dict[str, _Scope] = {}
        for tombstone in tombstones:
            self.add(tombstone)

    def copy(self) -> Tombstones:
        """Give one with the same tombstones, to try out what a further one would cover."""
        return Tombstones(self, user_owns_scope=self._user_owns_scope)

    def __iter__(self) -> Iterator[Tombstone]:
        """Give every tombstone, as it was at this moment."""
        with self._lock:
            found = [
                tombstone
                for scope in self._scopes.values()
                for request in scope.requests.values()
                for tombstone in request.values()
            ]
        return iter(found)

    def add(self, tombstone: Tombstone) -> Tombstone:
        """Keep out what a tombstone names, from now on; give the one that is kept under its id.

        The first one stays: a request that comes again, as with an old export, must not cover
        what was said since.
        """
        with self._lock:
            scope = self._scopes.setdefault(tombstone.scope, _Scope())
            request = scope.requests.setdefault(tombstone.request_id, {})
            known = request.setdefault(tombstone.tombstone_id, tombstone)
            if known is not tombstone:
                return known
            if tombstone.kind == "reject":
                scope.values.update(tombstone.text_keys)
                return tombstone
            scope.events.update(tombstone.event_keys)
            scope.atoms.update(tombstone.atom_ids)
            for table, name in (
                (scope.users, tombstone.user_id),
                (scope.sessions, tombstone.session_id),
            ):
                if name is not None:
                    before = table.setdefault(name, _Before(to_utc(tombstone.requested_at)))
                    before.extend(tombstone)
            return tombstone

    def concerns(self, scope: str) -> bool:
        """Say whether anything of a scope was ever forgotten or rejected."""
        return scope in self._scopes

    def forgotten_atoms(self, scope: str) -> frozenset[str]:
        """Give the ids of the atoms that forget requests of a scope took along.

        One that is there now is not gone: after a replay another memory may have its id.
        """
        with self._lock:
            of_scope = self._scopes.get(scope)
            return frozenset(of_scope.atoms) if of_scope else frozenset()

    def of_request(self, scope: str, request_id: str) -> Covered:
        """Give all that is known to be covered by one request."""
        with self._lock:
            of_scope = self._scopes.get(scope)
            found = list(of_scope.requests.get(request_id, {}).values()) if of_scope else []
        return Covered(
            tuple(dict.fromkeys(key for one in found for key in one.event_keys)),
            tuple(dict.fromkeys(key for one in found for key in one.atom_ids)),
            tuple(dict.fromkeys(key for one in found for key in one.text_keys)),
        )

    def covers_event(self, sourced: SourcedEvent) -> bool:
        """Say whether a forget request covers this event. A request itself is never covered."""
        if sourced.scope not in self._scopes or sourced.event.type in ("forget", "reject"):
            return False
        event = sourced.event
        return self._covers(
            sourced.scope,
            event.event_id,
            (event.user_id,),
            event.session_id,
            sourced.position,
            sourced.occurred_at,
        )

    def covers_indexed(self, event: IndexedEvent) -> bool:
        """Say the same of an event as the search index holds it.

        A row without a user, of an older version, counts as of every user: it comes back with
        a rebuild if it should not have gone.
        """
        of_scope = self._scopes.get(event.scope)
        if of_scope is None:
            return False
        return self._covers(
            event.scope,
            event.event_id,
            (event.user_id,) if event.user_id else tuple(of_scope.users),
            event.session_id,
            event.position,
            event.occurred_at,
        )

    def covers_atom(self, atom: Atom) -> bool:
        """Say whether nothing is left that this atom may stand on.

        Not decided by the atom's id: of a window that lost an event, another atom may have it
        after a replay.
        """
        return atom.scope in self._scopes and (
            self.covers_sources(atom) or not self.living_statements(atom)
        )

    def covers_sources(self, atom: Atom) -> bool:
        """Say whether requests for the user whose scope it is cover all sources, by their date."""
        of_scope = self._scopes.get(atom.scope)
        if of_scope is None or not self._user_owns_scope:
            return False
        at = to_utc(atom.occurred_at)
        return any(at <= user.until for user in of_scope.users.values())

    def living_statements(self, atom: Atom) -> tuple[tuple[str, ...], ...]:
        """Give the statements of an atom of which no source is covered by its key."""
        of_scope = self._scopes.get(atom.scope)
        statements = atom.statements or (atom.source_event_ids,)
        if of_scope is None or not of_scope.events:
            return statements
        dead = of_scope.events
        return tuple(
            group
            for group in statements
            if not any(event_key(atom.scope, one) in dead for one in group)
        )

    def settle(self, atom: Atom) -> Atom | None:
        """Give an atom as it may be kept: without what is forgotten, rejected where it is that.

        ``None`` when nothing of it may be kept.
        """
        if atom.scope not in self._scopes:
            return atom
        if self.covers_atom(atom):
            return None
        living = self.living_statements(atom)
        update: dict[str, object] = {}
        if len(living) < len(atom.statements):
            sources = {one for group in living for one in group}
            update["statements"] = living
            update["source_event_ids"] = tuple(
                one for one in atom.source_event_ids if one in sources
            )
        if atom.status == "active" and self.rejects(atom.scope, atom.text):
            update["status"] = "rejected"
        return atom.model_copy(update=update) if update else atom

    def rejects(self, scope: str, text: str) -> bool:
        """Say whether a person marked this value as wrong."""
        of_scope = self._scopes.get(scope)
        if of_scope is None or not of_scope.values:
            return False
        return any(key in of_scope.values for key in value_keys(scope, text))

    def _covers(
        self,
        scope: str,
        event_id: str,
        users: Iterable[str],
        session_id: str,
        position: Position,
        occurred_at: datetime,
    ) -> bool:
        of_scope = self._scopes[scope]
        session = of_scope.sessions.get(session_id)
        if session is not None and session.covers(position, occurred_at):
            return True
        for name in users:
            user = of_scope.users.get(name)
            if user is not None and user.covers(position, occurred_at):
                return True
        return bool(of_scope.events) and event_key(scope, event_id) in of_scope.events


def more_of(
    base: Tombstone,
    known: Tombstones,
    *,
    event_keys: Sequence[str] = (),
    atom_ids: Sequence[str] = (),
    text_keys: Sequence[str] = (),
) -> Tombstone | None:
    """Give a tombstone of the same request with what is not known yet; ``None`` without any."""
    before = known.of_request(base.scope, base.request_id)
    events = sorted(set(event_keys) - set(before.event_keys))
    atoms = sorted(set(atom_ids) - set(before.atom_ids))
    texts = sorted(set(text_keys) - set(before.text_keys))
    if not (events or atoms or texts):
        return None
    return base.model_copy(
        update={
            "tombstone_id": _part_id(base, [*events, *atoms, *texts]),
            "event_keys": tuple(events),
            "atom_ids": tuple(atoms),
            "text_keys": tuple(texts),
        }
    )


class NothingKeptOut:
    """A ``KeptOut`` for where nothing was forgotten."""

    def covers_event(self, sourced: SourcedEvent) -> bool:
        """Answer no."""
        return False

    def covers_atom(self, atom: Atom) -> bool:
        """Answer no."""
        return False

    def rejects(self, scope: str, text: str) -> bool:
        """Answer no."""
        return False

"""Asking to forget or reject through the service: a request in the log, or what it would take.

The flow carries a request out in its turn; the service changes nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

from connectors.query.auth import right_to_forget
from connectors.query.failures import ApiError
from connectors.query.memory_models import (
    ForgetAnswer,
    ForgetPreview,
    ForgetRequest,
    RejectRequest,
)
from connectors.query.models import ScopeParts
from connectors.query.service import Caller, MemoryStore, Service
from stores.ids import event_key
from stores.records import (
    Atom,
    ControlRequest,
    IndexedEvent,
    L0Event,
    LogRecord,
    Position,
    SourcedEvent,
    Tombstone,
)
from stores.requests import Owner, request_event, request_record
from stores.tombstones import Tombstones, more_of, tombstone_of

__all__ = ["forget", "forget_memory", "reject_memory"]


async def forget(service: Service, caller: Caller, asked: ForgetRequest) -> ForgetAnswer:
    """Ask to forget something, or count what would go.

    Raises :class:`~connectors.query.auth.RightMissing` for a session or a user without the right
    ``admin``.
    """
    control = asked.control()
    caller.credential.require(right_to_forget(control))
    owner = service.owner_of(caller, asked)
    if not asked.dry_run:
        return await _ask(service, "forget", owner, control, asked.session_id or "")
    caller.note.changes = False
    event = request_event("forget", owner, control, service.clock.now(), asked.session_id or "")
    owns = "user" in service.settings.scope_fields
    seen = await service.blocking(
        partial(_preview, service.store, owner.scope, event, user_owns_scope=owns)
    )
    return ForgetAnswer(event_id=None, preview=seen)


async def forget_memory(
    service: Service, caller: Caller, memory_id: str, asked: ScopeParts
) -> ForgetAnswer:
    """Ask to forget one memory and the events it stands on; 404 where there is none."""
    owner = service.owner_of(caller, asked)
    await _need(service, owner.scope, memory_id)
    control = ControlRequest(target="atom", atom_ids=(memory_id,))
    return await _ask(service, "forget", owner, control)


async def reject_memory(
    service: Service, caller: Caller, memory_id: str, asked: RejectRequest
) -> ForgetAnswer:
    """Ask to mark the value of a memory as wrong; 404 where there is none."""
    owner = service.owner_of(caller, asked)
    await _need(service, owner.scope, memory_id)
    control = ControlRequest(target="atom", atom_ids=(memory_id,), reason=asked.reason)
    return await _ask(service, "reject", owner, control)


async def _ask(
    service: Service,
    kind: Literal["forget", "reject"],
    owner: Owner,
    control: ControlRequest,
    session: str = "",
) -> ForgetAnswer:
    event = request_event(kind, owner, control, service.clock.now(), session)
    topic = service.settings.topic("l0.events")
    await service.write([request_record(event, owner.scope, topic)])
    return ForgetAnswer(event_id=event.event_id)


async def _need(service: Service, scope: str, memory_id: str) -> Atom:
    atom = await service.blocking(partial(service.store.get_atom, scope, memory_id))
    if atom is None or atom.scope != scope:
        raise ApiError(404, "not_found", "this scope has no memory with this id")
    return atom


def _preview(
    store: MemoryStore, scope: str, request: L0Event, *, user_owns_scope: bool
) -> ForgetPreview:
    """Count what a request covers, by the same rules as the flow, in what the store holds."""
    base = tombstone_of(_sourced(scope, request))
    kept_out = Tombstones([base], user_owns_scope=user_owns_scope)
    atoms = [atom for atom in store.atoms_of(scope) if atom.scope == scope]
    named = [atom for atom in atoms if atom.atom_id in base.atom_ids]
    _add(kept_out, more_of(base, kept_out, event_keys=_keys(scope, _sources(named))))
    session = base.session_id if base.target == "session" else None
    events = [
        one
        for one in store.events_of(scope, session)
        if one.scope == scope and kept_out.covers_indexed(one)
    ]
    _add(kept_out, more_of(base, kept_out, event_keys=_keys(scope, _ids(events))))
    removed, changed = set(), set()
    for atom in atoms:
        settled = kept_out.settle(atom)
        if settled is None:
            removed.add(atom.atom_id)
        elif settled != atom:
            changed.add(atom.atom_id)
    touched = removed | changed
    resting = [one for one in store.profiles_of(scope) if not touched.isdisjoint(one.atom_ids)]
    return ForgetPreview(
        events=len(events),
        memories_removed=len(removed),
        memories_changed=len(changed),
        profiles=len(resting),
    )


def _sourced(scope: str, event: L0Event) -> SourcedEvent:
    nowhere = LogRecord(Position("", 0, -1), 0, scope.encode(), None)
    return SourcedEvent(scope, event, nowhere, event.occurred_at)


def _sources(atoms: Iterable[Atom]) -> Iterable[str]:
    return (event_id for atom in atoms for event_id in atom.source_event_ids)


def _ids(events: Iterable[IndexedEvent]) -> Iterable[str]:
    return (event.event_id for event in events)


def _keys(scope: str, event_ids: Iterable[str]) -> list[str]:
    return [event_key(scope, one) for one in event_ids]


def _add(kept_out: Tombstones, more: Tombstone | None) -> None:
    if more is not None:
        kept_out.add(more)

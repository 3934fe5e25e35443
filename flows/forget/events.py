"""Forgetting in the L0 index: which of its rows a request covers, named first, then deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stores.ids import event_key
from stores.protocols import EventIndex
from stores.records import IndexedEvent, SourcedEvent, Tombstone
from stores.tombstones import Tombstones, more_of, tombstone_of

__all__ = ["EventForgetter", "TombstoneLog"]


class TombstoneLog(Protocol):
    """Where tombstones are kept for good: :class:`connectors.tombstones_topic.TombstonesTopic`."""

    known: Tombstones

    def refresh(self) -> None:
        """Read what others wrote so far. Blocking."""
        ...

    def publish(self, tombstones: Sequence[Tombstone]) -> None:
        """Keep out, and write durably before this returns. Blocking."""
        ...


class EventForgetter:
    """Deletes from the L0 index what a forget request covers. Idempotent.

    The keys of the covered events are published before the rows go: the index alone knows which
    events a session or user has, and it cannot be asked again afterwards. A crash between the
    two repeats both. Blocking; call it from a thread.
    """

    def __init__(self, index: EventIndex, log: TombstoneLog) -> None:
        self._index = index
        self._log = log

    def covers(self, sourced: SourcedEvent) -> bool:
        """Say whether a request covers an event, so that it is not indexed."""
        return self._log.known.covers_event(sourced)

    def forget(self, request: SourcedEvent) -> None:
        """Carry out a request on the index. A rejection touches no event."""
        base = tombstone_of(request)
        if base.kind == "reject":
            return
        known = self._log.known
        asked = request.event.request
        named = list(asked.event_ids) if asked is not None else []
        if base.target in ("user", "session"):
            found = [
                one
                for one in self._index.events_of(request.scope, base.session_id)
                if known.covers_indexed(one)
            ]
            self._publish(base, found)
            named = [one.event_id for one in found]
        if named:
            self._index.delete_events(request.scope, named)

    def _publish(self, base: Tombstone, found: Sequence[IndexedEvent]) -> None:
        keys = sorted(event_key(base.scope, one.event_id) for one in found)
        if more := more_of(base, self._log.known, event_keys=keys):
            self._log.publish([more])

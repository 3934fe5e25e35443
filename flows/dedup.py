"""Repeated events: the first record with an event id counts, later ones are dropped.

Producers send again after a timeout, files are ingested twice. Ids are remembered per scope,
newest first, up to a cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

import bytewax.operators as op
from bytewax.operators import KeyedStream, StatefulBatchLogic

from stores.records import SourcedEvent

__all__ = ["RecentIds", "first_only"]

_DIGEST_BYTES = 16


class RecentIds:
    """The last ``cap`` event ids of one scope, as 128-bit digests."""

    def __init__(self, cap: int, snapshot: bytes = b"") -> None:
        """Start empty or from a snapshot."""
        self._cap = cap
        self._digests: dict[bytes, None] = {
            snapshot[at : at + _DIGEST_BYTES]: None for at in range(0, len(snapshot), _DIGEST_BYTES)
        }

    def add(self, event_id: str) -> bool:
        """Remember an id; false when it was remembered already."""
        digest = blake2b(event_id.encode("utf-8"), digest_size=_DIGEST_BYTES).digest()
        if digest in self._digests:
            return False
        self._digests[digest] = None
        if len(self._digests) > self._cap:
            del self._digests[next(iter(self._digests))]
        return True

    def snapshot(self) -> bytes:
        """Give all digests, oldest first."""
        return b"".join(self._digests)


class _FirstOnly(StatefulBatchLogic[Sequence[SourcedEvent], SourcedEvent, bytes]):
    def __init__(self, cap: int, resume: bytes | None) -> None:
        self._ids = RecentIds(cap, resume or b"")

    def on_batch(self, values: list[Sequence[SourcedEvent]]) -> tuple[Sequence[SourcedEvent], bool]:
        return [
            one
            for one in chain.from_iterable(values)
            if self._ids.add(one.event.event_id) or _failed_before(one)
        ], self.RETAIN

    def snapshot(self) -> bytes:
        return self._ids.snapshot()


def _failed_before(sourced: SourcedEvent) -> bool:
    """Tell whether this is a dead letter of the index that came again: the first record itself."""
    return sourced.redriven is not None and sourced.redriven.stage == "index"


def first_only(
    step_id: str, up: KeyedStream[Sequence[SourcedEvent]], cap: int
) -> KeyedStream[SourcedEvent]:
    """Drop repeated events, but not those whose indexing failed before; order is kept.

    :arg cap: ids remembered per scope; what is repeated later than that many other events
        passes again.
    """
    return op.stateful_batch(step_id, up, lambda resume: _FirstOnly(cap, resume))

"""What an audit keeps in memory of each outcome, event and partition: digests and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from flows.upkeep.audit.report import End

__all__ = ["OutcomeRead", "PartitionProgress", "digest", "event_digest", "record_digest"]

_DIGEST_BYTES = 16


@dataclass(slots=True, eq=False)
class OutcomeRead:
    """One outcome, as it was written last.

    :arg changed: it was written again with another content, which only a redrive explains.
    :arg conflict: what speaks against it, in words.
    """

    end: End
    stage: str
    outcome_id: str
    attempts: int
    pipeline: str
    content: bytes
    partition: int
    first: int
    last: int
    expected: int
    matched: int = 0
    changed: bool = False
    conflict: str = ""

    @property
    def given_up(self) -> bool:
        """True when it ended in dead letters."""
        return self.end[0] == "dead_lettered"

    def covers_as(self, other: OutcomeRead) -> bool:
        """Tell whether both are about as many events of the same stretch."""
        mine = (self.partition, self.first, self.last, self.expected)
        return mine == (other.partition, other.first, other.last, other.expected)


@dataclass(slots=True)
class PartitionProgress:
    """How far the flow has come in one partition, as outcomes and commits show.

    ``settled`` is the largest offset that began a settled outcome; ``first`` and ``next`` bound
    what was read of the events topic.
    """

    read_to: int = 0
    settled: int = -1
    first: int = -1
    next: int = 0


def digest(text: str) -> bytes:
    """Hash a text into 128 bits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


def event_digest(scope: str, event_id: str) -> bytes:
    """Identify an event. Ids hold no control characters."""
    return digest(f"{scope}\n{event_id}")


def record_digest(scope: str, event_id: str, offset: int) -> bytes:
    """Identify one record of an event."""
    return digest(f"{scope}\n{event_id}\n{offset}")

"""Records of a log: bytes with a position in, bytes for a topic out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Headers", "LogRecord", "OutRecord", "Position"]

Headers = tuple[tuple[str, bytes], ...]


class Position(NamedTuple):
    """Where a record stands in a log. ``offset`` counts records of one partition from 0."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as read from a log: untouched bytes and their position.

    :arg timestamp_ms: the log's own time for the record, milliseconds since the epoch.
    """

    position: Position
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class OutRecord:
    """One record to be written to ``topic``; the partition follows from ``key``."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    # Half of all that a flow writes goes from one worker to another.
    def __reduce__(self) -> tuple[Any, ...]:
        return (OutRecord, (self.topic, self.key, self.value, self.headers))

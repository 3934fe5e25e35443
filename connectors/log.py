"""What the file log and Kafka have in common: places in a log, and what the rest asks of one.

A log is topics of partitions; a partition is records in one order, counted by offset. Both
logs send a key to the same partition (:func:`partition_of`), so that a conversation that was
tried on the file log splits the same way on Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stores.records import LogRecord, OutRecord, Position

if TYPE_CHECKING:
    from connectors.dataflow import Cursor

__all__ = [
    "MAX_RECORD_BYTES",
    "Appender",
    "EndAt",
    "LogReader",
    "Place",
    "StartAt",
    "given_up",
    "murmur2",
    "partition_of",
]

MAX_RECORD_BYTES = 16 * 1024 * 1024
"""Key, value and headers of one record, together, that either log takes at most.

Far above what an event may hold (1 MiB): a dead letter carries the original bytes untouched,
also of an event that was refused for its size.
"""


def given_up(why: str, who: str, seconds: float) -> str:
    """Say that ``who`` waited for a log for too long, and what to do."""
    return (
        f"{why}; {who} waited for {seconds:.0f} s (SEDIMENT_BROKER_PATIENCE_S says how long it "
        "may). Nothing is lost: start the flow again when the brokers are back"
    )


# --- places in a log -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A place in one partition.

    :arg value: the offset, or milliseconds since the epoch; unused for the other kinds. A
        timestamp stands for the first record whose time is not earlier.
    """

    kind: Literal["beginning", "end", "offset", "timestamp"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where reading starts when there is no snapshot to resume from.

    A timestamp later than every record means the end.

    :arg partitions: places that differ from ``default``, by partition.

    >>> StartAt.offset(5).of(2)
    Place(kind='offset', value=5)
    >>> StartAt(partitions={1: Place("end")}).of(1).kind
    'end'
    """

    default: Place = Place("beginning")
    partitions: Mapping[int, Place] = field(default_factory=dict)

    @classmethod
    def beginning(cls) -> StartAt:
        """Start at the oldest record that is still kept."""
        return cls()

    @classmethod
    def end(cls) -> StartAt:
        """Start after the newest record: read only what comes later."""
        return cls(Place("end"))

    @classmethod
    def offset(cls, offset: int) -> StartAt:
        """Start with the record at ``offset`` in every partition."""
        return cls(Place("offset", offset))

    @classmethod
    def timestamp(cls, timestamp_ms: int) -> StartAt:
        """Start with the first record that is not earlier than ``timestamp_ms``."""
        return cls(Place("timestamp", timestamp_ms))

    def of(self, partition: int) -> Place:
        """Give the place for one partition."""
        return self.partitions.get(partition, self.default)


@dataclass(frozen=True, slots=True)
class EndAt:
    """Where reading ends; the record at the place itself is no longer read.

    The place is looked up once, when the partition is opened. ``latest`` is the end as it was
    then. A timestamp later than every record also means the end as it was then, so that a
    replay up to a time always ends. An offset that is not reached yet is waited for.

    :arg partitions: places that differ from ``default``, by partition.
    """

    default: Place = Place("end")
    partitions: Mapping[int, Place] = field(default_factory=dict)

    @classmethod
    def latest(cls) -> EndAt:
        """Read what is there now, then end."""
        return cls()

    @classmethod
    def offset(cls, offset: int) -> EndAt:
        """Read every partition up to ``offset``, exclusive."""
        return cls(Place("offset", offset))

    @classmethod
    def timestamp(cls, timestamp_ms: int) -> EndAt:
        """Read up to the first record that is not earlier than ``timestamp_ms``, exclusive."""
        return cls(Place("timestamp", timestamp_ms))

    def of(self, partition: int) -> Place:
        """Give the place for one partition."""
        return self.partitions.get(partition, self.default)


# --- what the rest asks of a log -------------------------------------------------------------


class Appender(Protocol):
    """Writes records outside a dataflow. Thread-safe."""

    def append(self, records: Sequence[OutRecord]) -> list[Position]:
        """Write records and give their positions, in the order given.

        When it returns, all of them are durable (file log: synced; Kafka: acknowledged by all
        in-sync replicas). Records of one partition keep their order.

        Raises :class:`~stores.errors.ServiceUnavailable` or
        :class:`~stores.errors.OversizedInput`, naming the record by its index and topic. Other
        records of the same call may have been written then; appending all of them again is
        safe, because everything Sediment reads is idempotent by id.
        """
        ...


class LogReader(Protocol):
    """Reads a log outside a dataflow."""

    def partitions(self, topic: str) -> int:
        """Count the partitions of a topic."""
        ...

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Give the offset after the newest record, by partition."""
        ...

    def offsets(self, topic: str, place: Place) -> dict[int, int]:
        """Look a place up in every partition: the offset of the first record at or after it.

        Never beyond the end: an offset that is not reached yet gives the end as it is now.
        """
        ...

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Give the offset after what a consumer group has read, by partition.

        A partition for which the group has noted nothing is not there. Only for lag and audit:
        a flow's snapshot decides where it resumes, and may stand before this.
        """
        ...

    def cursor(self, topic: str, partition: int, *, start: Place, end: Place | None) -> Cursor[Any]:
        """Open one partition for reading, at its own pace; close it afterwards."""
        ...

    def read(self, topic: str, start: StartAt, end: EndAt) -> Iterator[LogRecord]:
        """Read partition by partition, each in its order, from ``start`` up to ``end``.

        Blocks until ``end`` is reached. Raises ``ServiceUnavailable`` when the log is down.
        """
        ...


# --- keys to partitions ----------------------------------------------------------------------


def murmur2(data: bytes) -> int:
    """Hash as Kafka's Java producer does: MurmurHash2, 32 bits, unsigned, seed 0x9747b28c.

    >>> murmur2(b"21")  # the example of Kafka's own unit tests: -973932308 as a signed int
    3321034988
    """
    mask = 0xFFFFFFFF
    factor = 0x5BD1E995
    length = len(data)
    value = (0x9747B28C ^ length) & mask
    whole = length - length % 4
    for start in range(0, whole, 4):
        part = int.from_bytes(data[start : start + 4], "little") * factor & mask
        part ^= part >> 24
        value = (value * factor & mask) ^ (part * factor & mask)
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = value * factor & mask
    value ^= value >> 13
    value = value * factor & mask
    return value ^ (value >> 15)


@lru_cache(maxsize=65536)
def partition_of(key: bytes | None, partitions: int) -> int:
    """Give the partition of a key, the same one that Kafka's default partitioner gives.

    A record without a key goes to partition 0 here; Kafka would pick one at random.
    """
    if key is None or partitions == 1:
        return 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions

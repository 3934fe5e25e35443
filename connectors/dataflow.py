"""What both logs share towards Bytewax: a source partition, and how records reach a sink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Protocol, TypeVar

import bytewax.operators as op
from bytewax.dataflow import Stream
from bytewax.inputs import StatefulSourcePartition
from bytewax.outputs import FixedPartitionedSink

from stores.records import LogRecord, OutRecord

__all__ = [
    "BATCH_RECORDS",
    "SINK_WRITERS",
    "Cursor",
    "LogPartition",
    "drain",
    "never",
    "partition_name",
    "partition_number",
    "write_records",
]

BATCH_RECORDS = 500
"""Records a source hands on at once: large enough that Bytewax's own cost per batch is small."""

IDLE = timedelta(milliseconds=20)
"""How long a source with nothing to read waits before it looks again."""

SINK_WRITERS = ("writer-0", "writer-1", "writer-2", "writer-3")
"""The partitions of a sink, spread over the workers. Bytewax refuses a recovery store that
knows a partition which the sink no longer lists, so this never shrinks."""

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Cursor(Protocol[S_co]):
    """Reads one partition of a log, forwards."""

    def fetch(self, limit: int) -> list[LogRecord]:
        """Give up to ``limit`` records that are there now, maybe none. Never blocks."""
        ...

    def at_end(self) -> bool:
        """Say whether everything up to the end place has been fetched."""
        ...

    def snapshot(self) -> S_co:
        """Give the place after the last fetched record, to resume from."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def drain(cursor: Cursor[S]) -> Iterator[LogRecord]:
    """Read a cursor to its end, waiting for what is not there yet, and close it."""
    try:
        while True:
            records = cursor.fetch(BATCH_RECORDS)
            yield from records
            if not records:
                if cursor.at_end():
                    return
                time.sleep(IDLE.total_seconds())
    finally:
        cursor.close()


class LogPartition(StatefulSourcePartition[LogRecord, S]):
    """One partition of a log as a Bytewax source.

    :arg paused: while true, nothing is read (back-pressure); asked before every batch.
    :arg stopping: once true, the partition ends as if the log ended here. Its snapshot still
        says where it was, so the next run goes on from there.
    """

    def __init__(
        self,
        cursor: Cursor[S],
        *,
        paused: Callable[[], bool],
        stopping: Callable[[], bool],
        batch_size: int,
    ) -> None:
        self._cursor = cursor
        self._paused = paused
        self._stopping = stopping
        self._batch_size = batch_size
        self._awake: datetime | None = None

    def next_batch(self) -> list[LogRecord]:
        """Read what is there, without blocking."""
        if self._stopping():
            raise StopIteration
        records = [] if self._paused() else self._cursor.fetch(self._batch_size)
        if not records and self._cursor.at_end():
            raise StopIteration
        self._awake = None if records else datetime.now(timezone.utc) + IDLE
        return records

    def next_awake(self) -> datetime | None:
        """Wait a little when the last look found nothing."""
        return self._awake

    def snapshot(self) -> S:
        """Give the place after the last record handed on."""
        return self._cursor.snapshot()

    def close(self) -> None:
        """Close the cursor."""
        self._cursor.close()


def never() -> bool:
    """Answer no: a source that is not paused, or not stopped."""
    return False


def partition_name(topic: str, partition: int) -> str:
    """Name a partition as Bytewax keeps it in the recovery store."""
    return f"{topic}/{partition}"


def partition_number(name: str) -> int:
    """Undo :func:`partition_name`.

    >>> partition_number(partition_name("sediment.l0.events", 3))
    3
    """
    return int(name.rpartition("/")[2])


def _writer_key(record: OutRecord) -> str:
    return record.topic if record.key is None else record.key.decode("latin-1")


def write_records(
    step_id: str, records: Stream[OutRecord], sink: FixedPartitionedSink[OutRecord, None]
) -> None:
    """Write a stream to :class:`FileLogSink` or :class:`KafkaSink`.

    Records of one key keep their order. An epoch closes only when all of its records are
    durable, so after a crash none is lost and those of the last open epoch are written again.
    """
    op.output(step_id, op.key_on(f"{step_id}_by_key", records, _writer_key), sink)

"""What both logs share towards Bytewax: a source partition, and how records reach a sink."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Protocol, TypeVar

import bytewax.operators as op
from bytewax.inputs import StatefulSourcePartition
from bytewax.operators import KeyedStream
from bytewax.outputs import FixedPartitionedSink

from stores.records import LogRecord, OutRecord

__all__ = [
    "BATCH_RECORDS",
    "SINK_WRITERS",
    "Cursor",
    "LogPartition",
    "Written",
    "drain",
    "keep_thread_state",
    "never",
    "partition_name",
    "partition_number",
    "write_records",
    "written_of",
]

BATCH_RECORDS = 500
"""Records a source hands on at once: large enough that Bytewax's own cost per batch is small."""

IDLE = timedelta(milliseconds=20)
"""How long a source with nothing to read waits before it looks again."""

SINK_WRITERS = ("writer-0", "writer-1", "writer-2", "writer-3")
"""The partitions of a sink, spread over the workers. Bytewax refuses a recovery store that
knows a partition which the sink no longer lists, so this never shrinks."""

S = TypeVar("S")
V = TypeVar("V")
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
        keep_thread_state()
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


_kept = threading.local()


def keep_thread_state() -> None:
    """Let the worker that calls this keep its Python thread state for as long as its thread lives.

    The threads of Bytewax's workers are Rust's, unless a single one runs in the caller's own. Such
    a thread is given a new state at each call into Python and loses it behind it, which was a
    sixth of a replay's processor time. A thread that has asked for its state once more than it
    gives it back, as here, keeps it.
    """
    if not hasattr(_kept, "done"):
        _kept.done = True
        ctypes.pythonapi.PyGILState_Ensure()


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


Written = KeyedStream[Sequence[OutRecord]]
"""Records that belong together, under the scope that they are of."""


def written_of(
    step_id: str, up: KeyedStream[V], records: Callable[[V], Sequence[OutRecord]]
) -> Written:
    """Make what is written of each item of a stream, under the item's key; maybe nothing."""

    def make(item: tuple[str, V]) -> Sequence[tuple[str, Sequence[OutRecord]]]:
        key, value = item
        made = records(value)
        return ((key, made),) if made else ()

    return op.flat_map(step_id, up, make)


def write_records(
    step_id: str, records: Written, sink: FixedPartitionedSink[Sequence[OutRecord], None]
) -> None:
    """Write a stream to :class:`FileLogSink` or :class:`KafkaSink`.

    What comes under one key keeps its order, so the records of one topic that share a key must
    come under one. An epoch closes only when all of its records are durable, so after a crash none
    is lost and those of the last open epoch are written again.
    """
    op.output(step_id, records, sink)

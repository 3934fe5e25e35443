"""The embedded log: topics as folders, partitions as JSONL files. No server.

``<root>/<topic>/partition-N.jsonl`` holds one record a line, see
:mod:`connectors.partition_file`; offsets count lines from 0. ``<root>/<topic>/topic.json``
holds the number of partitions, ``<root>/<topic>/group-G.json`` how far the reader named G had
read at its last snapshot, by partition. As on Kafka, nothing resumes from there: it is for lag
and audit.

Several processes may append, one at a time per partition (file lock), while others read. A
crash in the middle of an append can leave a last line without its newline: it was never
acknowledged, no reader ever takes it, and the next append cuts it off. Complete lines of
such an append stay, as Kafka keeps an unacknowledged record.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import orjson
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

from connectors.dataflow import (
    BATCH_RECORDS,
    SINK_WRITERS,
    Cursor,
    LogPartition,
    drain,
    never,
    partition_name,
    partition_number,
)
from connectors.log import MAX_RECORD_BYTES, EndAt, Place, StartAt, partition_of
from connectors.partition_file import FileAppending, FileCursor, FileState, end_of
from stores.errors import OversizedInput, ServiceUnavailable, SettingsError
from stores.protocols import Clock
from stores.records import LogRecord, OutRecord, Position

__all__ = ["FileLog", "FileLogSink", "FileLogSource", "FileState"]

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # what Kafka allows, so both logs take the same
_TOPIC_FILE = "topic.json"
_SERVICE = "file log"

logger = logging.getLogger(__name__)


# --- the log ---------------------------------------------------------------------------------


class FileLog:
    """A log in a folder: an :class:`~connectors.log.Appender` and a ``LogReader``.

    Opening a topic that does not exist creates it. Thread-safe for appending.

    :arg root: the folder of the topics.
    :arg clock: gives a record its timestamp.
    :arg partitions: partitions of a topic that is created without saying how many.
    """

    def __init__(self, root: Path, clock: Clock, *, partitions: int = 1) -> None:
        self._root = root
        self._clock = clock
        self._default_partitions = partitions
        self._counts: dict[str, int] = {}
        self._appending: dict[tuple[str, int], FileAppending] = {}
        self._lock = threading.Lock()

    def create_topic(self, topic: str, partitions: int) -> int:
        """Create a topic unless it exists; give the partitions it has, which may differ.

        Raises :class:`~stores.errors.SettingsError` when the name is not one Kafka would take.
        """
        if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
            message = f"topic name {topic!r}: use 1 to 249 of letters, digits, '.', '_' and '-'"
            raise SettingsError(message)
        folder = self._root / topic
        meta = folder / _TOPIC_FILE
        if not meta.exists():
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f"{_TOPIC_FILE}.{os.getpid()}.{threading.get_ident()}"
            draft.write_bytes(orjson.dumps({"partitions": partitions}))
            with contextlib.suppress(FileExistsError):
                os.link(draft, meta)  # the first of several creators wins, and is never half seen
            draft.unlink()
        count = int(orjson.loads(meta.read_bytes())["partitions"])
        for partition in range(count):
            self._path(topic, partition).touch()
        _sync_folder(folder)
        return count

    def partitions(self, topic: str) -> int:
        """Count the partitions of a topic, creating it when it does not exist."""
        with self._lock:
            if topic not in self._counts:
                self._counts[topic] = self.create_topic(topic, self._default_partitions)
            return self._counts[topic]

    def append(self, records: Sequence[OutRecord]) -> list[Position]:
        """Append and sync. See :class:`connectors.log.Appender`."""
        positions = self.write(records)
        self.sync({(position.topic, position.partition) for position in positions})
        return positions

    def write(self, records: Sequence[OutRecord]) -> list[Position]:
        """Append without syncing: readers see the records, a power cut may lose them.

        Raises as :meth:`append` does.
        """
        groups: dict[tuple[str, int], list[int]] = {}
        for index, record in enumerate(records):
            if _size(record) > MAX_RECORD_BYTES:
                message = (
                    f"record {index} for topic {record.topic} has {_size(record)} bytes; "
                    f"the log takes {MAX_RECORD_BYTES} at most"
                )
                raise OversizedInput(message)
            partition = partition_of(record.key, self.partitions(record.topic))
            groups.setdefault((record.topic, partition), []).append(index)
        now_ms = int(self._clock.now().timestamp() * 1000)
        positions: dict[int, Position] = {}
        for (topic, partition), indexes in groups.items():
            with _naming(topic, indexes[0]):
                first = self._file(topic, partition).write([records[i] for i in indexes], now_ms)
            for place, index in enumerate(indexes):
                positions[index] = Position(topic, partition, first + place)
        return [positions[index] for index in range(len(records))]

    def sync(self, parts: Iterable[tuple[str, int]]) -> None:
        """Make what was written to these (topic, partition) pairs survive a power cut."""
        for topic, partition in sorted(parts):
            with _naming(topic, 0):
                self._file(topic, partition).sync()

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Give the offset after the newest record, by partition."""
        ends: dict[int, int] = {}
        for partition in range(self.partitions(topic)):
            path = self._path(topic, partition)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                ends[partition] = end_of(fd, path)[0]
            finally:
                os.close(fd)
        return ends

    def offsets(self, topic: str, place: Place) -> dict[int, int]:
        """Look a place up in every partition. See :class:`connectors.log.LogReader`."""
        ends = self.end_offsets(topic)
        if place.kind == "offset":
            return {partition: min(place.value, end) for partition, end in ends.items()}
        found: dict[int, int] = {}
        for partition in ends:
            cursor = self.cursor(topic, partition, start=place, end=None)
            found[partition] = cursor.snapshot()[0]
            cursor.close()
        return found

    def has_topic(self, topic: str) -> bool:
        """Say whether a topic exists, without creating it."""
        return (self._root / topic / _TOPIC_FILE).exists()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all records; a missing one is no error. No flow may use it."""
        with self._lock:
            for key in [key for key in self._appending if key[0] == topic]:
                self._appending.pop(key).close()
            self._counts.pop(topic, None)
            if (self._root / topic).exists():
                shutil.rmtree(self._root / topic)

    def read(self, topic: str, start: StartAt, end: EndAt) -> Iterator[LogRecord]:
        """Read partition by partition. See :class:`connectors.log.LogReader`."""
        for partition in range(self.partitions(topic)):
            cursor = self.cursor(topic, partition, start=start.of(partition), end=end.of(partition))
            yield from drain(cursor)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Give how far a group has read, by partition. See :class:`connectors.log.LogReader`."""
        try:
            found = orjson.loads(self._group_path(group, topic).read_bytes())
        except FileNotFoundError:
            return {}
        return {int(partition): int(offset) for partition, offset in found.items()}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Note how far a group has read. Whole or not at all; a power cut may lose it.

        Raises ``OSError`` when the file system refuses it.
        """
        with self._lock:
            merged = {**self.committed(group, topic), **offsets}
            path = self._group_path(group, topic)
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            named = {str(partition): merged[partition] for partition in sorted(merged)}
            draft.write_bytes(orjson.dumps(named))
            draft.replace(path)

    def cursor(
        self,
        topic: str,
        partition: int,
        *,
        start: Place,
        end: Place | None,
        resume: FileState | None = None,
    ) -> Cursor[FileState]:
        """Open one partition for reading."""
        path = self._path(topic, partition)
        return FileCursor(path, topic, partition, start=start, end=end, resume=resume)

    def close(self) -> None:
        """Close the files held open for appending."""
        with self._lock:
            for file in self._appending.values():
                file.close()
            self._appending.clear()

    def _group_path(self, group: str, topic: str) -> Path:
        return self._root / topic / f"group-{quote(group, safe='')}.json"

    def _path(self, topic: str, partition: int) -> Path:
        return self._root / topic / f"partition-{partition}.jsonl"

    def _file(self, topic: str, partition: int) -> FileAppending:
        with self._lock:
            key = (topic, partition)
            if key not in self._appending:
                self._appending[key] = FileAppending(self._path(topic, partition))
            return self._appending[key]


def _size(record: OutRecord) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _naming(topic: str, index: int) -> Iterator[None]:
    """Turn what the file system refuses (full, read-only) into an error that names the record."""
    try:
        yield
    except OSError as error:
        message = f"record {index} for topic {topic} was not written: {error.strerror}"
        raise ServiceUnavailable(_SERVICE, message) from error


# --- Bytewax ---------------------------------------------------------------------------------


class FileLogSource(FixedPartitionedSource[LogRecord, FileState]):
    """Reads one topic of the file log, each partition in its order.

    A snapshot in the recovery store goes before ``start``. Reading notices appended records
    within 20 ms. ``paused`` and ``stopping``: see :class:`connectors.dataflow.LogPartition`.

    :arg group: under this name a snapshot notes how far it has read, for lag and audit only;
        nothing resumes from there. Empty notes nothing.
    :arg end: where to end; ``None`` follows for ever.
    """

    def __init__(
        self,
        log: FileLog,
        topic: str,
        *,
        group: str = "",
        start: StartAt | None = None,
        end: EndAt | None = None,
        paused: Callable[[], bool] = never,
        stopping: Callable[[], bool] = never,
        batch_size: int = BATCH_RECORDS,
    ) -> None:
        self._log = log
        self._topic = topic
        self._group = group
        self._start = start or StartAt.beginning()
        self._end = end
        self._paused = paused
        self._stopping = stopping
        self._batch_size = batch_size

    def list_parts(self) -> list[str]:
        """Name the topic's partitions."""
        count = self._log.partitions(self._topic)
        return [partition_name(self._topic, partition) for partition in range(count)]

    def build_part(
        self, step_id: str, for_part: str, resume_state: FileState | None
    ) -> StatefulSourcePartition[LogRecord, FileState]:
        """Open a partition at its snapshot, or at ``start`` when there is none."""
        partition = partition_number(for_part)
        cursor = self._log.cursor(
            self._topic,
            partition,
            start=self._start.of(partition),
            end=None if self._end is None else self._end.of(partition),
            resume=resume_state,
        )
        opened = LogPartition(
            cursor, paused=self._paused, stopping=self._stopping, batch_size=self._batch_size
        )
        if not self._group:
            return opened
        return _Noted(opened, lambda offset: self._note(partition, offset))

    def _note(self, partition: int, offset: int) -> None:
        try:
            self._log.commit(self._group, self._topic, {partition: offset})
        except OSError as error:  # for lag and audit only: never worth a crash
            logger.warning(
                "topic %s, partition %d: the offset was not noted for lag and audit: %s",
                self._topic, partition, error.strerror,
            )  # fmt: skip


class _Noted(StatefulSourcePartition[LogRecord, FileState]):
    """A partition whose snapshots are also noted for its group."""

    def __init__(self, inner: LogPartition[FileState], note: Callable[[int], None]) -> None:
        self._inner = inner
        self._note = note
        self._noted = -1

    def next_batch(self) -> list[LogRecord]:
        return self._inner.next_batch()

    def next_awake(self) -> datetime | None:
        return self._inner.next_awake()

    def snapshot(self) -> FileState:
        state = self._inner.snapshot()
        if state[0] != self._noted:
            self._note(state[0])
            self._noted = state[0]
        return state

    def close(self) -> None:
        self._inner.close()


class FileLogSink(FixedPartitionedSink[Sequence[OutRecord], None]):
    """Writes records to the file log; use it through ``connectors.dataflow.write_records``.

    Readers see a record at once; an epoch closes when its records are synced.
    """

    def __init__(self, log: FileLog) -> None:
        self._log = log

    def list_parts(self) -> list[str]:
        """Name the writers."""
        return list(SINK_WRITERS)

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> _FileWriter:
        """Give a writer."""
        return _FileWriter(self._log)


class _FileWriter(StatefulSinkPartition[Sequence[OutRecord], None]):
    def __init__(self, log: FileLog) -> None:
        self._log = log
        self._unsynced: set[tuple[str, int]] = set()

    def write_batch(self, values: list[Sequence[OutRecord]]) -> None:
        positions = self._log.write([record for together in values for record in together])
        self._unsynced.update((position.topic, position.partition) for position in positions)

    def snapshot(self) -> None:
        self._log.sync(self._unsynced)
        self._unsynced.clear()

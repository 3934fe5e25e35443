"""One partition of the embedded log: a JSONL file, its writing end and its reading end.

A line holds ``offset``, ``timestamp_ms``, ``key``, ``value``, ``headers``. Bytes are text where
they are UTF-8 and ``{"base64": …}`` where not; a missing key or value is ``null``.
"""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from connectors.log import Place
from connectors.metrics import LOG_OFFSET_RESETS
from stores.errors import UserError
from stores.records import LogRecord, OutRecord, Position

__all__ = ["FileAppending", "FileCursor", "FileState", "end_of"]

logger = logging.getLogger(__name__)

FileState = tuple[int, int]
"""A place in the file: the next offset, and its byte position so that resuming need not count."""

_CHUNK = 1024 * 1024


# --- one line --------------------------------------------------------------------------------


def _pack(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _unpack(field: str | dict[str, str] | None) -> bytes | None:
    if field is None:
        return None
    if isinstance(field, str):
        return field.encode("utf-8")
    return base64.b64decode(field["base64"])


def _encode(record: OutRecord, offset: int, timestamp_ms: int) -> bytes:
    row = {
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "key": _pack(record.key),
        "value": _pack(record.value),
        "headers": [[name, _pack(value)] for name, value in record.headers],
    }
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _decode(row: dict[str, Any], topic: str, partition: int) -> LogRecord:
    return LogRecord(
        position=Position(topic, partition, row["offset"]),
        timestamp_ms=row["timestamp_ms"],
        key=_unpack(row["key"]),
        value=_unpack(row["value"]),
        headers=tuple((name, _unpack(value) or b"") for name, value in row["headers"]),
    )


def _parse(line: bytes, path: Path, position: int) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        row = None
    if not isinstance(row, dict) or "offset" not in row:
        message = (
            f"{path}: the line at byte {position} is not a record of this log; "
            "restore the file from a copy, or remove the topic's folder to begin anew"
        )
        raise UserError(message)
    return row


# --- one file --------------------------------------------------------------------------------


def _last_newline(fd: int, size: int) -> int:
    """Find the byte position after the last newline before ``size``; 0 when there is none."""
    end = size
    while end > 0:
        start = max(0, end - _CHUNK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def end_of(fd: int, path: Path) -> FileState:
    """Give the offset and byte position after the last complete line."""
    end = _last_newline(fd, os.fstat(fd).st_size)
    if end == 0:
        return 0, 0
    start = _last_newline(fd, end - 1)
    row = _parse(os.pread(fd, end - start, start), path, start)
    return row["offset"] + 1, end


def _lines(fd: int, position: int) -> Iterator[tuple[int, bytes]]:
    """Give (byte position, line without newline) of every complete line from ``position``."""
    while True:
        size = _CHUNK
        while True:
            chunk = os.pread(fd, size, position)
            end = chunk.rfind(b"\n")
            if end >= 0 or len(chunk) < size:
                break
            size *= 2  # one line is longer than what was read
        if end < 0:
            return
        for line in chunk[:end].split(b"\n"):
            yield position, line
            position += len(line) + 1


class FileAppending:
    """The writing end of one partition file.

    It knows where the file ended after its last append, so that it reads the tail again only
    when another process has written since.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._end: FileState = (0, 0)

    def write(self, records: Sequence[OutRecord], timestamp_ms: int) -> int:
        """Append ``records`` and give the offset of the first; the system has them then."""
        with self._lock:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                size = os.fstat(self._fd).st_size
                if size != self._end[1]:
                    self._end = end_of(self._fd, self._path)
                    if self._end[1] != size:
                        os.ftruncate(self._fd, self._end[1])  # a torn last line
                first, position = self._end
                lines = b"".join(
                    _encode(record, first + index, timestamp_ms)
                    for index, record in enumerate(records)
                )
                written = 0
                while written < len(lines):
                    written += os.pwrite(self._fd, lines[written:], position + written)
                self._end = (first + len(records), position + len(lines))
                return first
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def sync(self) -> None:
        """Make everything written so far survive a power cut."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class FileCursor:
    """Reads one partition file. See :class:`connectors.dataflow.Cursor`."""

    def __init__(
        self,
        path: Path,
        topic: str,
        partition: int,
        *,
        start: Place,
        end: Place | None,
        resume: FileState | None = None,
    ) -> None:
        self._path = path
        self._topic = topic
        self._partition = partition
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._lines: Iterator[tuple[int, bytes]] = iter(())
        last = end_of(self._fd, path)
        if resume is not None and self._is_place(resume, last):
            self._next = resume
        else:
            self._next = self._find(start if resume is None else Place("offset", resume[0]), last)
        self._end: int | None = None
        if end is not None:
            self._end = end.value if end.kind == "offset" else self._find(end, last)[0]

    def _is_place(self, state: FileState, last: FileState) -> bool:
        """Check a snapshot against the file: it may have been replaced in between."""
        offset, position = state
        if state in ((0, 0), last):
            return True
        if not 0 < position < last[1] or os.pread(self._fd, 1, position - 1) != b"\n":
            return False
        _, line = next(_lines(self._fd, position))
        return bool(_parse(line, self._path, position)["offset"] == offset)

    def _find(self, place: Place, last: FileState) -> FileState:
        """Look a place up; linear in the file, so done only when a partition is opened."""
        if place.kind == "beginning":
            return 0, 0
        if place.kind == "end" or (place.kind == "offset" and place.value == last[0]):
            return last
        if place.kind == "offset" and place.value > last[0]:
            logger.warning(
                "%s ends at offset %d, but offset %d was asked for: reading from the beginning. "
                "Was the log removed and the snapshots kept?",
                self._path, last[0], place.value,
            )  # fmt: skip
            LOG_OFFSET_RESETS.labels(self._topic).inc()
            return 0, 0
        for offset, (position, line) in enumerate(_lines(self._fd, 0)):
            if place.kind == "offset":
                if offset == place.value:
                    return offset, position
            elif _parse(line, self._path, position)["timestamp_ms"] >= place.value:
                return offset, position
        return last

    def fetch(self, limit: int) -> list[LogRecord]:
        """Read up to ``limit`` complete lines."""
        if self._end is not None:
            limit = max(0, min(limit, self._end - self._next[0]))
        records = self._take(limit)
        if not records:  # all that was read ahead is used up: look for what was appended since
            self._lines = _lines(self._fd, self._next[1])
            records = self._take(limit)
        return records

    def _take(self, limit: int) -> list[LogRecord]:
        records: list[LogRecord] = []
        for position, line in islice(self._lines, limit):
            row = _parse(line, self._path, position)
            records.append(_decode(row, self._topic, self._partition))
            self._next = (row["offset"] + 1, position + len(line) + 1)
        return records

    def at_end(self) -> bool:
        """Say whether the end place is reached."""
        return self._end is not None and self._next[0] >= self._end

    def snapshot(self) -> FileState:
        """Give the place after the last record."""
        return self._next

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

"""Notes about unfinished writes in files of one machine, each written over again and again.

A window's note lives for some milliseconds, and to make and remove a file costs more than to write
one. So a process keeps as many files as it had notes at once, and a note that is thrown away is
written over with zeros. A file is::

    length | CRC-32 | when it was written (ns) | hash of the scope | note

of which length and CRC are of what follows. A note that was cut in the middle does not fit them and
counts as none: the write it was for had not begun.
Each process holds a lock on its files. What another one left is found by its scope; an empty file
that nobody holds is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stores.errors import ServiceUnavailable

__all__ = ["UnfinishedInFiles"]

_HEAD = struct.Struct(">LL")
_AT_AND_SCOPE = struct.Struct(">Q16s")


@dataclass(slots=True)
class _Slot:
    """A file of this process, open and locked.

    :arg used: bytes of it that are not zero.
    """

    path: str
    file: int
    used: int = 0


class _Note(NamedTuple):
    """A note in a file, ordered by when it was written."""

    at_ns: int
    scope_hash: bytes
    text: bytes


@dataclass(frozen=True, slots=True)
class _Held:
    slot: _Slot
    note: bytes


class UnfinishedInFiles:
    """Notes in a folder of their own, for one machine. Thread-safe.

    Not flushed to the disk: a note outlives the process, not a power cut. Every method raises
    :class:`~stores.errors.ServiceUnavailable` when the disk is full or cannot be reached; then
    the old note stays.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is made before the first note."""
        self._folder = folder
        self._name = uuid.uuid4().hex
        self._free: list[_Slot] = []
        self._held: dict[str, _Held] = {}
        self._left: dict[str, list[str]] = {}  # files of others, by the scope they were found for

    def put(self, notes: Mapping[str, bytes]) -> None:
        """Keep a note for each of these scopes: of each the old or the new one, never a part."""
        for scope, note in notes.items():
            self._put(scope, note)

    def _put(self, scope: str, note: bytes) -> None:
        kept = _AT_AND_SCOPE.pack(time.time_ns(), _scope_hash(scope)) + note
        written = _HEAD.pack(len(kept), zlib.crc32(kept)) + kept
        with self._errors():
            try:
                slot = self._free.pop()
            except IndexError:
                slot = self._made()
            try:
                slot.used = max(slot.used, len(written))
                _write(slot.file, written)
            except OSError:
                self._free.append(slot)
                raise
            before = self._held.get(scope)
            self._held[scope] = _Held(slot, note)
            if before is not None:
                self._empty(before.slot)

    def get(self, scope: str) -> bytes | None:
        """Give the note of a scope, or ``None``."""
        if (held := self._held.get(scope)) is not None:
            return held.note
        found = self._found(scope)
        return max(found).text if found else None

    def clear(self, scopes: Sequence[str]) -> None:
        """Throw their notes away."""
        for scope in scopes:
            self._clear(scope)

    def _clear(self, scope: str) -> None:
        held = self._held.pop(scope, None)
        if held is None and scope not in self._left:
            self._found(scope)
        with self._errors():
            for path in self._left.pop(scope, ()):
                Path(path).unlink(missing_ok=True)
            if held is not None:
                self._empty(held.slot)

    def close(self) -> None:
        """Remove the files that hold no note, and let go of the others."""
        for slot in self._free:
            Path(slot.path).unlink(missing_ok=True)
        for slot in (*self._free, *(held.slot for held in self._held.values())):
            os.close(slot.file)
        self._free.clear()
        self._held.clear()

    def _made(self) -> _Slot:
        """Make one more file. Threads may do so at once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = f"{self._folder}/{self._name}-{uuid.uuid4().hex[:8]}.note"
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:  # else another process took it for one left behind
                return _Slot(path, file)
            os.close(file)

    def _empty(self, slot: _Slot) -> None:
        """Leave no text of a note in its file."""
        try:
            _write(slot.file, bytes(slot.used))
            slot.used = 0
        finally:
            self._free.append(slot)

    def _found(self, scope: str) -> list[_Note]:
        """Give what other processes left of a scope; remove empty files of nobody."""
        scope_hash = _scope_hash(scope)
        found: list[_Note] = []
        with self._errors():
            try:
                names = os.listdir(self._folder)
            except FileNotFoundError:
                return []
            for name in names:
                if name.startswith(self._name):
                    continue
                path = f"{self._folder}/{name}"
                note = _read(path)
                if note is None:
                    _remove_if_nobodys(path)
                elif note.scope_hash == scope_hash:
                    found.append(note)
                    self._left.setdefault(scope, []).append(path)
        return found

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            service = "data folder"
            message = f"{self._folder}: {error.strerror}; free some space or repair it"
            raise ServiceUnavailable(service, message) from error


def _scope_hash(scope: str) -> bytes:
    return hashlib.sha256(scope.encode()).digest()[:16]


def _write(file: int, data: bytes) -> None:
    at, left = 0, memoryview(data)
    while left:
        done = os.pwrite(file, left, at)
        at, left = at + done, left[done:]


def _read(path: str) -> _Note | None:
    """Give the note of a file, if there is a whole one."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size + _AT_AND_SCOPE.size:
        return None
    length, check = _HEAD.unpack_from(data)
    kept = data[_HEAD.size : _HEAD.size + length]
    if len(kept) != length or length < _AT_AND_SCOPE.size or zlib.crc32(kept) != check:
        return None
    at_ns, scope_hash = _AT_AND_SCOPE.unpack_from(kept)
    return _Note(at_ns, scope_hash, kept[_AT_AND_SCOPE.size :])


def _remove_if_nobodys(path: str) -> None:
    """Remove an empty file whose process has ended, and with it what a cut note left in it."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _read(path) is None:  # still: it may have been taken into use before the lock
            os.unlink(path)
    except (BlockingIOError, FileNotFoundError):
        return
    finally:
        os.close(file)

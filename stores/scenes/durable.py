"""Files that outlive a power cut, as far as the disk keeps its word.

A flush to disk takes milliseconds however little is written, and flushes that are asked for at
the same time share one: so files are written and flushed in parallel (15 of them in 5 ms
instead of 75 on the disk this was measured on).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Durable", "flush_folder", "locked"]

_WRITERS = 16


class Durable:
    """Writes many files at once, durably. Thread-safe; ``close`` ends its threads.

    Every method raises ``OSError`` as the system gives it.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_WRITERS, "scene-files")

    def write(self, files: Mapping[Path, bytes], folders: Sequence[Path] = ()) -> None:
        """Write new files, and flush them and ``folders``. When it returns all of it is on disk.

        When it raises, any part of it may be there; nothing is being written any more.
        """
        tasks: list[Callable[[], None]] = []
        tasks.extend(_writer(path, data) for path, data in files.items())
        waiting = [self._pool.submit(task) for task in tasks]
        errors = [error for future in waiting if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        for future in [self._pool.submit(flush_folder, folder) for folder in folders]:
            future.result()

    def switch(self, path: Path, data: bytes) -> None:
        """Put ``data`` in the place of what ``path`` held: before or after, never between."""
        new = path.with_name(f"{path.name}.tmp")
        self.write({new: data})
        self.rename(new, path)

    def rename(self, new: Path, path: Path) -> None:
        """Let ``new``, flushed already, take the place of ``path`` in the same folder."""
        new.replace(path)
        flush_folder(path.parent)

    def close(self) -> None:
        """End the threads; nothing can be written after it."""
        self._pool.shutdown()


def _writer(path: Path, data: bytes) -> Callable[[], None]:
    def write() -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    return write


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock against other threads and processes, waiting for it.

    The system lets go of it when the process dies, however it dies.
    """
    with path.open("ab") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield

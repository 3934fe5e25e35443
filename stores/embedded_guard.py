"""What milvus-lite leaves to its caller, done for the owner of a folder and all its guests.

- **Writers are serialised** per collection; milvus-lite is not safe with two.
- **Reads and writes wait for a flush** of their collection. There is a moment in which
  milvus-lite has the rows in neither of the places a read looks at, and a row written in it
  may go to a log that is about to be deleted.
- **Flushing** (:class:`FlushPolicy`).
- **A full disk.** A write that was cut leaves a torn row in the write-ahead log, and the next
  start reads no further: rows that were written behind it would be gone. A flush that was cut
  takes its rows out of memory, and the next one deletes their log. So nothing is written where
  less than :data:`RESERVE_BYTES` are free; and should a write be cut all the same, nothing is
  read, written or flushed any more: the next start finds everything that had been written.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from stores.milvus_errors import DISK_FULL

__all__ = ["RESERVE_BYTES", "FlushPolicy", "Flusher", "Gate", "Guarded", "Space"]

logger = logging.getLogger(__name__)

_READS = frozenset({"Query", "Search", "HybridSearch", "DescribeCollection", "DescribeIndex"})
_ROW_WRITES = frozenset({"Insert", "Upsert", "Delete"})
_OPEN = frozenset({"Connect", "GetVersion", "CheckHealth", "HasCollection", "ShowCollections"})
_ERRNO = re.compile(r"\[errno \d+\]", re.IGNORECASE)  # what the system says, in an answer
RESERVE_BYTES = 32 * 1024 * 1024
"""Free space that is left alone: room for a request's rows in the log, and for their flush."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When rows go from memory to a file.

    Each search turns every row still in memory into Python objects, about 0.1 ms a row for the
    two arms, a quarter of that in the owner's own reads; rows in files are searched as arrays. So
    few may wait in memory. A flush costs about 0.1 ms a row and some 10 ms whatever it writes, so
    flushing by time keeps its share of a bulk load small, where flushing by count would not.

    :arg seconds: flush a collection this long after its first waiting row was written.
    """

    seconds: float = 1.0


class Space:
    """Whether milvus-lite may be used at all. See the module, on a full disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.broken = ""

    def refusal(self, *, write: bool) -> str:
        """Say why a call must not be made now; empty when it may be."""
        if not self.broken and write:
            disk = os.statvfs(self._folder)
            if disk.f_bavail * disk.f_frsize < RESERVE_BYTES:
                return f"{DISK_FULL}: {self._folder} has less than {RESERVE_BYTES >> 20} MiB left"
        return self.broken

    def failed(self, why: object) -> None:
        """Note that a write was cut: what is in memory is not what the next start will find."""
        self.broken = f"{DISK_FULL}, or cannot be written: {self._folder}: {why}"
        logger.error("milvus-lite is used no more by this process: %s", self.broken)


class Guarded:
    """milvus-lite's service, each call checked for the token and let through its gate."""

    def __init__(
        self,
        service: Any,
        token: str,
        gates: defaultdict[str, Gate],
        flusher: Flusher,
        space: Space,
    ) -> None:
        self._service = service
        self._authorization = base64.b64encode(token.encode()).decode()
        self._gates = gates
        self._flusher = flusher
        self._space = space

    def __getattr__(self, method: str) -> Callable[[Any, Any], Any]:
        call = getattr(self._service, method)

        def guarded(request: Any, context: Any) -> Any:
            given = dict(context.invocation_metadata()).get("authorization", "")
            if not secrets.compare_digest(str(given), self._authorization):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "not the token of this folder")
            name = getattr(request, "collection_name", "")
            if method in _OPEN or not name:
                return call(request, context)
            if refusal := self._space.refusal(write=method in _ROW_WRITES):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
            if method in _READS:
                with self._gates[name].shared():
                    return call(request, context)
            if method in _ROW_WRITES:
                with self._gates[name].writing():
                    answer = call(request, context)
                    if _ERRNO.search(answer.status.reason):
                        self._space.failed(answer.status.reason)
                self._flusher.wrote(name)
                return answer
            with self._gates[name].exclusive():
                return call(request, context)

        return guarded


class Gate:
    """Who may work on a collection together: many readers and one writer, or one flush."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False
        self._writer = threading.Lock()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be inside beside others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be inside beside readers, as the only writer."""
        with self._writer, self.shared():
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Be inside alone."""
        with self._writer:
            with self._changed:
                self._closed = True  # nobody new comes in, so a flush is not starved by reads
                self._changed.wait_for(lambda: self._inside == 0)
            try:
                yield
            finally:
                with self._changed:
                    self._closed = False
                    self._changed.notify_all()


class Flusher:
    """One thread that flushes collections by the policy."""

    def __init__(self, flush: Callable[[str], None], policy: FlushPolicy) -> None:
        self._flush = flush
        self._policy = policy
        self._changed = threading.Condition()
        self._due_at: dict[str, float] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="milvus-lite-flush", daemon=True)
        self._thread.start()

    def wrote(self, name: str) -> None:
        """Note that a collection has rows that wait."""
        with self._changed:
            if name not in self._due_at:
                self._due_at[name] = time.monotonic() + self._policy.seconds
                self._changed.notify()

    def close(self) -> None:
        """Stop; what still waits is flushed when the database closes."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (name := self._next()) is not None:
            try:
                self._flush(name)
            except Exception:  # the store refuses everything from now on
                logger.exception("milvus-lite could not flush %s", name)

    def _next(self) -> str | None:
        """Wait for the next collection that is due; ``None`` at the end."""
        with self._changed:
            while not self._closing:
                name = min(self._due_at, key=self._due_at.__getitem__, default=None)
                wait = self._due_at[name] - time.monotonic() if name is not None else None
                if name is not None and wait is not None and wait <= 0:
                    del self._due_at[name]
                    return name
                self._changed.wait(wait)
            return None

"""The embedded store: milvus-lite in a folder, one process that owns it, others as guests.

milvus-lite runs inside the owner's process and is served on a loopback port, so another process
(``sediment recall`` beside ``sediment up``) can search the same folder. Who owns it is decided
by a lock that dies with its process, never by what a file says: ``owner.json`` only tells
guests where the owner listens, and the token in it is accepted by that owner alone. So a file
left behind by a killed process leads nobody astray.

Three things milvus-lite leaves to its caller are done here, for the owner and all guests:

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

What a killed process leaves: every upsert that returned is in the write-ahead log and is there
again after the next :func:`open_embedded`. A power cut may lose what the operating system had
not yet written.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import re
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from stores.errors import ServiceUnavailable, UserError
from stores.milvus_errors import DISK_FULL

__all__ = ["RESERVE_BYTES", "EmbeddedStore", "FlushPolicy", "open_embedded"]

logger = logging.getLogger(__name__)

_READS = frozenset({"Query", "Search", "HybridSearch", "DescribeCollection", "DescribeIndex"})
_ROW_WRITES = frozenset({"Insert", "Upsert", "Delete"})
_OPEN = frozenset({"Connect", "GetVersion", "CheckHealth", "HasCollection", "ShowCollections"})
_MAX_MESSAGE_BYTES = 256 * 1024 * 1024
_POLL_S = 0.05
_ERRNO = re.compile(r"\[errno \d+\]", re.IGNORECASE)  # what the system says, in an answer
_left_open: list[Any] = []
"""Databases that must not be closed; their files stay open until the process ends."""
RESERVE_BYTES = 32 * 1024 * 1024
"""Free space that is left alone: room for a request's rows in the log, and for their flush."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When rows go from memory to a file.

    Each search turns every row still in memory into Python objects, about 0.1 ms a row for the
    two arms; rows in files are searched as arrays. So few may wait in memory. A flush costs
    about 0.1 ms a row and some 10 ms whatever it writes, so flushing by time keeps its share
    of a bulk load small, where flushing by count would not.

    :arg seconds: flush a collection this long after its first waiting row was written.
    """

    seconds: float = 1.0


class EmbeddedStore:
    """A handle on the embedded store; close it, or use it as a context manager.

    :ivar uri: where the owner listens, for :class:`~stores.milvus.MilvusStore`.
    :ivar token: what it wants to see.
    :ivar owner: True when this process owns the folder.
    :ivar owner_pid: the process that owns it.
    :ivar refuse_writes: why a guest may not write; empty for the owner.
    """

    def __init__(
        self, uri: str, token: str, owner_pid: int, *, owner: bool, release: Callable[[], None]
    ) -> None:
        self.uri = uri
        self.token = token
        self.owner = owner
        self.owner_pid = owner_pid
        self.refuse_writes = "" if owner else _in_use(owner_pid)
        self._release = release
        self._closing = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Flush, stop serving and give the folder free. Idempotent; a guest only lets go."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._release()

    def __enter__(self) -> EmbeddedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_embedded(
    data_dir: Path,
    *,
    write: bool = True,
    policy: FlushPolicy | None = None,
    wait_s: float = 5.0,
) -> EmbeddedStore:
    """Open the store in ``data_dir/milvus``, as its owner, or as a guest of the owner.

    A process that is just starting or ending is waited for, ``wait_s`` seconds at most.

    :arg write: this process wants to write, so it must become the owner. False takes what
        there is: the folder if it is free, else a guest's place.

    Raises :class:`~stores.errors.UserError` when another process owns the folder and ``write``
    is wanted, and :class:`~stores.errors.ServiceUnavailable` when the owner does not answer.
    """
    folder = data_dir / "milvus"
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / "owner.json"
    deadline = time.monotonic() + wait_s
    while True:
        lock = _try_lock(folder / "owner.lock")
        if lock is not None:
            return _become_owner(folder, address, lock, policy or FlushPolicy())
        owner = _read_address(address)
        if not write and owner is not None and _answers(owner):
            return EmbeddedStore(
                owner["uri"], owner["token"], owner["pid"], owner=False, release=lambda: None
            )
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    pid = owner["pid"] if owner else 0
    if write:
        raise UserError(_in_use(pid))
    message = f"process {pid or 'unknown'} owns {folder} and does not answer"
    service = "milvus"
    raise ServiceUnavailable(service, message)


def _in_use(pid: int) -> str:
    return (
        f"the data folder is in use by process {pid or 'unknown'}; stop it first "
        "(`sediment up` runs flow and query service in one process)"
    )


# --- owner -----------------------------------------------------------------------------------


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _become_owner(folder: Path, address: Path, lock: int, policy: FlushPolicy) -> EmbeddedStore:
    address.unlink(missing_ok=True)  # a killed owner's
    token = secrets.token_urlsafe(24)
    try:
        server = _Server(folder / "lite", token, policy)
    except BaseException:
        os.close(lock)
        raise

    def release() -> None:
        address.unlink(missing_ok=True)
        server.close()
        os.close(lock)

    try:
        _write_address(address, {"pid": os.getpid(), "uri": server.uri, "token": token})
    except BaseException:
        release()
        raise
    return EmbeddedStore(server.uri, token, os.getpid(), owner=True, release=release)


class _Server:
    """milvus-lite served on a loopback port, behind the token, the gates and the flusher."""

    def __init__(self, folder: Path, token: str, policy: FlushPolicy) -> None:
        import jieba
        from milvus_lite.adapter.grpc.servicer import MilvusServicer
        from milvus_lite.db import MilvusLite
        from milvus_lite.exceptions import DataDirLockedError
        from pymilvus.grpc_gen import milvus_pb2_grpc

        jieba.setLogLevel(logging.WARNING)
        try:
            self._db = MilvusLite(str(folder))
        except DataDirLockedError as error:
            message = f"another milvus-lite uses {folder}; stop it first"
            raise UserError(message) from error
        # milvus-lite opens a collection at its first use, and two first uses at once would
        # open it twice. So all are opened now; later ones are created behind their gate.
        names = self._db.list_collections()
        for name in names:
            self._db.get_collection(name)
        # The dictionary takes more than a second to load; nobody's first call shall wait for it.
        self._warming = threading.Thread(target=jieba.initialize, name="jieba-dictionary")
        self._warming.start()
        self._gates: defaultdict[str, _Gate] = defaultdict(_Gate)
        self._space = _Space(folder)
        self._flusher = _Flusher(self._flush, policy)
        for name in names:
            self._flusher.wrote(name)  # there may be rows in the write-ahead log
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="milvus-lite")
        self._grpc = grpc.server(
            self._pool,
            options=[
                ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
            ],
        )
        service = MilvusServicer(self._db)
        guarded = _Guarded(service, token, self._gates, self._flusher, self._space)
        milvus_pb2_grpc.add_MilvusServiceServicer_to_server(guarded, self._grpc)
        port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        self.uri = f"http://127.0.0.1:{port}"

    def _flush(self, name: str) -> None:
        with self._gates[name].exclusive():
            if self._db.has_collection(name) and not self._space.broken:
                try:
                    self._db.get_collection(name).flush()
                except Exception as error:
                    self._space.failed(error)
                    raise

    def close(self) -> None:
        self._flusher.close()
        self._grpc.stop(grace=2).wait()
        self._pool.shutdown(wait=True)
        self._warming.join()
        if self._space.broken:  # closing would flush
            _left_open.append(self._db)
        else:
            self._db.close()


class _Space:
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


class _Guarded:
    """milvus-lite's service, each call checked for the token and let through its gate."""

    def __init__(
        self,
        service: Any,
        token: str,
        gates: defaultdict[str, _Gate],
        flusher: _Flusher,
        space: _Space,
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


class _Gate:
    """Who may work on a collection together: many readers and one writer, or one flush."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False
        self._writer = threading.Lock()

    @contextmanager
    def shared(self) -> Iterator[None]:
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
        with self._writer, self.shared():
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
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


class _Flusher:
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


# --- guest -----------------------------------------------------------------------------------


def _write_address(path: Path, address: dict[str, Any]) -> None:
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        json.dump(address, file)
    draft.rename(path)


def _read_address(path: Path) -> dict[str, Any] | None:
    try:
        address = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return address if isinstance(address, dict) and address.keys() >= {"uri", "pid"} else None


def _answers(address: dict[str, Any]) -> bool:
    """Ask the owner whether it is there and knows the token: a reused port does not."""
    from pymilvus.grpc_gen import milvus_pb2, milvus_pb2_grpc

    authorization = base64.b64encode(address["token"].encode()).decode()
    with grpc.insecure_channel(address["uri"].removeprefix("http://")) as channel:
        try:
            milvus_pb2_grpc.MilvusServiceStub(channel).GetVersion(
                milvus_pb2.GetVersionRequest(),
                timeout=1.0,
                metadata=(("authorization", authorization),),
            )
        except grpc.RpcError:
            return False
    return True

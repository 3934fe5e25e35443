"""The embedded store: milvus-lite in a folder, one process that owns it, others as guests.

milvus-lite runs inside the owner's process and is served on a loopback port, so another process
(``sediment recall`` beside ``sediment up``) can search the same folder. Who owns it is decided
by a lock that dies with its process, never by what a file says: ``owner.json`` only tells
guests where the owner listens, and the token in it is accepted by that owner alone. So a file
left behind by a killed process leads nobody astray.

What milvus-lite leaves to its caller is done for the owner and all guests by
:mod:`stores.embedded_guard`. The owner itself reads without the server between
(:mod:`stores.embedded_reads`).

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
import secrets
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from stores.embedded_guard import Flusher, FlushPolicy, Gate, Guarded, Space
from stores.errors import ServiceUnavailable, UserError

if TYPE_CHECKING:
    from stores.embedded_reads import OwnReads

__all__ = ["EmbeddedStore", "FlushPolicy", "open_embedded"]

logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 256 * 1024 * 1024
_POLL_S = 0.05
_left_open: list[Any] = []
"""Databases that must not be closed; their files stay open until the process ends."""


class EmbeddedStore:
    """A handle on the embedded store; close it, or use it as a context manager.

    :ivar uri: where the owner listens, for :class:`~stores.milvus.MilvusStore`.
    :ivar token: what it wants to see.
    :ivar owner: True when this process owns the folder.
    :ivar owner_pid: the process that owns it.
    :ivar refuse_writes: why a guest may not write; empty for the owner.
    :ivar reads: how the owner reads without its own server between; ``None`` for a guest.
    """

    def __init__(
        self,
        uri: str,
        token: str,
        owner_pid: int,
        *,
        release: Callable[[], None],
        reads: OwnReads | None = None,
        address: Path | None = None,
    ) -> None:
        self.uri = uri
        self.token = token
        self.reads = reads
        self.owner = reads is not None
        self.owner_pid = owner_pid
        self.refuse_writes = "" if self.owner else _in_use(owner_pid)
        self._release = release
        self._address = address
        self._closing = threading.Lock()
        self._closed = False

    def moved(self) -> bool:
        """Say whether another process owns the folder by now: a guest must open it anew."""
        owner = _read_address(self._address) if self._address is not None else None
        return owner is not None and owner["uri"] != self.uri

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
                owner["uri"], owner["token"], owner["pid"], release=lambda: None, address=address
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
    return EmbeddedStore(server.uri, token, os.getpid(), release=release, reads=server.reads)


def _drop_half_made(collections: Path) -> None:
    """Delete what a process that was killed while it made or dropped a collection has left.

    milvus-lite sees no collection in a folder without a schema, and cannot make one over it.
    """
    from milvus_lite.db import SCHEMA_FILENAME

    for folder in collections.iterdir():
        if not (folder / SCHEMA_FILENAME).exists():
            shutil.rmtree(folder)


def _drop_half_written(collections: Path) -> None:
    """Delete each index file that a process was killed at; it is made anew of the rows.

    milvus-lite writes such a file in place, and refuses a collection with one it cannot read.
    """
    import numpy as np
    from milvus_lite.index.files import VECTOR_INDEX_FILE_EXT

    for index in collections.glob(f"*/partitions/*/indexes/*{VECTOR_INDEX_FILE_EXT}"):
        try:
            np.load(index, mmap_mode="r")  # looks at its head and its length, not at its vectors
        except (EOFError, ValueError):
            logger.warning("an index file was half written and is made anew: %s", index)
            index.unlink()


class _Server:
    """milvus-lite served on a loopback port, behind the token, the gates and the flusher."""

    def __init__(self, folder: Path, token: str, policy: FlushPolicy) -> None:
        import jieba
        from milvus_lite.adapter.grpc.servicer import MilvusServicer
        from milvus_lite.db import COLLECTIONS_DIRNAME, MilvusLite
        from milvus_lite.exceptions import DataDirLockedError
        from pymilvus.grpc_gen import milvus_pb2_grpc

        from stores.embedded_reads import OwnReads

        jieba.setLogLevel(logging.WARNING)
        try:
            self._db = MilvusLite(str(folder))
        except DataDirLockedError as error:
            message = f"another milvus-lite uses {folder}; stop it first"
            raise UserError(message) from error
        _drop_half_made(folder / COLLECTIONS_DIRNAME)
        _drop_half_written(folder / COLLECTIONS_DIRNAME)
        # milvus-lite opens a collection at its first use, and two first uses at once would
        # open it twice. So all are opened now; later ones are created behind their gate.
        names = self._db.list_collections()
        for name in names:
            self._db.get_collection(name)
        # The dictionary takes more than a second to load; nobody's first call shall wait for it.
        self._warming = threading.Thread(target=jieba.initialize, name="jieba-dictionary")
        self._warming.start()
        self._gates: defaultdict[str, Gate] = defaultdict(Gate)
        self._space = Space(folder)
        self.reads = OwnReads(self._db, self._gates, self._space)
        self._flusher = Flusher(self._flush, policy)
        for name in names:
            self._flusher.wrote(name)  # there may be rows in the write-ahead log
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="milvus-lite")
        self._grpc = grpc.server(
            self._pool,
            options=[
                ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
                # pymilvus asks for a sign of life every 10 s, in use or not. A server takes that
                # for an attack unless told: it hangs up, and says too_many_pings.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ],
        )
        service = MilvusServicer(self._db)
        guarded = Guarded(service, token, self._gates, self._flusher, self._space)
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
        self.reads.close()
        self._warming.join()
        if self._space.broken:  # closing would flush
            _left_open.append(self._db)
        else:
            self._db.close()


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

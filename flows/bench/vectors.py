"""Vectors of passages, kept by content: siblings repeat sessions, and runs repeat everything."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType

import numpy as np

from stores.protocols import Embedder, Vectors
from stores.sqlite_wal import use_write_ahead_log

__all__ = ["KeptVectors"]

_BUSY_TIMEOUT_S = 5.0  # as SQLite waits by itself for all else
_AT_ONCE = 500  # SQLite takes 999 parameters in a statement, or more


class KeptVectors:
    """An embedder that asks another one once for each text.

    Questions are always embedded anew, since how long that takes is measured. The file may be
    shared by runs, not by two processes at a time that embed different models: a vector's key
    is the model's name and the text.
    """

    def __init__(self, embedder: Embedder, path: Path) -> None:
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._embedder = embedder
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()  # stages have event loops in threads of their own
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        use_write_ahead_log(self._file, _BUSY_TIMEOUT_S)
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)"
        )

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Embed the texts that are new; shape (len(texts), dimension)."""
        keys = [
            sha256(f"{self.name}\0{text}".encode("utf-8", "replace")).digest() for text in texts
        ]
        known = self._read(keys)
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if new:
            vectors = await self._embedder.embed_passages(list(new.values()))
            rows = [(key, row.tobytes()) for key, row in zip(new, vectors, strict=True)]
            with self._lock:
                self._file.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
            known.update(rows)
        joined = b"".join(known[key] for key in keys)
        shape = (len(texts), self.dimension)
        kept: Vectors = np.frombuffer(joined, np.float32).reshape(shape).copy()
        return kept

    async def embed_query(self, text: str) -> Vectors:
        """Embed a question: shape (dimension,)."""
        return await self._embedder.embed_query(text)

    def _key(self, text: str) -> bytes:
        return sha256(f"{self.name}\0{text}".encode("utf-8", "replace")).digest()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        known: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            places = ",".join("?" * len(some))
            statement = f"SELECT key, vector FROM vectors WHERE key IN ({places})"
            with self._lock:
                known.update(self._file.execute(statement, some).fetchall())
        return known

    def __enter__(self) -> KeptVectors:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

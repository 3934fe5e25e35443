"""Recorded answers: every model answer under the hash of its request, kept before it is used.

Both journals promise the same:

- the first answer written for a hash stays; writing again changes nothing and is no error;
- when ``put`` returns, the answer outlives the process, also one killed with ``kill -9``;
  how it outlives the machine is said at each class;
- safe to share between threads, and between processes on the same file or server;
- a store that does not answer raises :class:`~stores.errors.ServiceUnavailable`, a store that
  holds something else :class:`~stores.errors.StoreMismatch`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import cast

import orjson
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from stores.errors import ServiceUnavailable, StoreMismatch
from stores.protocols import ChatAnswer

__all__ = ["RedisAnswers", "SqliteAnswers"]

_RECORD_VERSION = 1
_SQLITE, _REDIS = "sqlite", "redis"
_BUSY_TIMEOUT_S = 10.0
_REDIS_TIMEOUT_S = 5.0


class SqliteAnswers:
    """Recorded answers in one SQLite file, for one machine.

    Write-ahead log with a sync at every write, so ``put`` also outlives a power cut, as far as
    the disk keeps its word. Do not put the file on a network share.

    :arg path: the file; its folder is made when missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Autocommit: each statement is its own transaction. One connection behind a lock:
            # a statement takes microseconds, and SQLite has one writer anyway.
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise ServiceUnavailable(_SQLITE, f"cannot open {path}: {error}") from error
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._statement() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _RECORD_VERSION):
                message = (
                    f"{self._path} holds answers of version {version}, this program reads "
                    f"version {_RECORD_VERSION}; use the newer program, or another data folder"
                )
                raise StoreMismatch(message)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS answers ("
                "request_hash TEXT PRIMARY KEY, prompt_version TEXT NOT NULL, answer BLOB NOT NULL)"
            )
            connection.execute(f"PRAGMA user_version={_RECORD_VERSION}")

    @contextmanager
    def _statement(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                yield self._connection
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            raise ServiceUnavailable(_SQLITE, f"{self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            message = f"{self._path} is not a readable answers file ({error}); move it away"
            raise StoreMismatch(message) from error

    def get(self, request_hash: str) -> ChatAnswer | None:
        """Give the recorded answer, with ``recorded=True``, or ``None``."""
        with self._statement() as connection:
            row = connection.execute(
                "SELECT answer FROM answers WHERE request_hash = ?", (request_hash,)
            ).fetchone()
        return None if row is None else _decode(request_hash, row[0])

    def put(self, request_hash: str, prompt_version: str, answer: ChatAnswer) -> None:
        """Record an answer unless the hash has one."""
        row = (request_hash, prompt_version, _encode(prompt_version, answer))
        with self._statement() as connection:
            connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", row)

    def close(self) -> None:
        """Close the file; every later call raises ``ServiceUnavailable``."""
        with self._lock:
            self._connection.close()


class RedisAnswers:
    """Recorded answers in Redis, shared by many machines.

    They outlive the Redis server as its own configuration says (``appendonly yes``), and stay
    until somebody deletes them: they carry no expiry, and a server set to evict keys
    (``maxmemory-policy`` other than ``noeviction``) breaks the promise.

    :arg url: ``redis://[user:password@]host:port/database``.
    :arg prefix: what every key begins with; the key is ``<prefix>:<request hash>``.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=_REDIS_TIMEOUT_S,
            socket_connect_timeout=_REDIS_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # retrying is the stage's
        )

    def get(self, request_hash: str) -> ChatAnswer | None:
        """Give the recorded answer, with ``recorded=True``, or ``None``."""
        with _redis_errors():
            value = self._client.get(f"{self._prefix}:{request_hash}")
        return None if value is None else _decode(request_hash, cast(bytes, value))

    def put(self, request_hash: str, prompt_version: str, answer: ChatAnswer) -> None:
        """Record an answer unless the hash has one."""
        with _redis_errors():
            self._client.set(
                f"{self._prefix}:{request_hash}", _encode(prompt_version, answer), nx=True
            )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@contextmanager
def _redis_errors() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        # The class only: texts of connection errors can hold the URL with its password.
        raise ServiceUnavailable(_REDIS, type(error).__name__) from None


def _encode(prompt_version: str, answer: ChatAnswer) -> bytes:
    record = asdict(answer)
    del record["recorded"]
    return orjson.dumps({"v": _RECORD_VERSION, "prompt_version": prompt_version, **record})


def _decode(request_hash: str, value: bytes) -> ChatAnswer:
    try:
        record = orjson.loads(value)
        readable = record.pop("v") == _RECORD_VERSION
        del record["prompt_version"]
        answer = ChatAnswer(**record, recorded=True)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        readable = False
    if not readable:
        message = f"the recorded answer {request_hash} cannot be read; delete it"
        raise StoreMismatch(message)
    return answer

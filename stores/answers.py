"""Recorded answers: every model answer under the hash of its request, kept before it is used.

Both journals promise the same:

- the first answer written for a hash stays; writing again changes nothing and is no error;
- when ``put`` returns, the answer outlives the process, also one killed with ``kill -9``;
  how it outlives the machine is said at each class;
- when ``forget`` returns, the answers are gone from the store, not only hidden; one that was
  recorded without saying what it is about is found by nobody;
- safe to share between threads, and between processes on the same file or server;
- a store that does not answer raises :class:`~stores.errors.ServiceUnavailable`, a store that
  holds something else :class:`~stores.errors.StoreMismatch`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import cast

import orjson

from stores.errors import ServiceUnavailable, StoreMismatch
from stores.protocols import ChatAnswer
from stores.redis_connection import redis_client, redis_errors
from stores.sqlite_wal import use_write_ahead_log

__all__ = ["RedisAnswers", "SqliteAnswers"]

_RECORD_VERSION = 1
_SQLITE = "sqlite"
_BUSY_TIMEOUT_S = 10.0
_KEYS_AT_ONCE = 500  # SQLite takes 999 parameters in a statement, or more


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
            use_write_ahead_log(connection, _BUSY_TIMEOUT_S)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS answers ("
                "request_hash TEXT PRIMARY KEY, prompt_version TEXT NOT NULL, answer BLOB NOT NULL)"
            )
            connection.execute(
                "CREATE TABLE IF NOT EXISTS about ("
                "key TEXT, request_hash TEXT, PRIMARY KEY (key, request_hash)) WITHOUT ROWID"
            )
            connection.execute("PRAGMA secure_delete=ON")  # what is forgotten is overwritten
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
        (found,) = self.get_many((request_hash,))
        return found

    def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
        """Give what :meth:`get` gives for each, in one go to the file."""
        found: dict[str, bytes] = {}
        with self._statement() as connection:
            for chunk in _chunks(request_hashes):
                found.update(
                    connection.execute(
                        "SELECT request_hash, answer FROM answers "
                        f"WHERE request_hash IN ({_places(chunk)})",
                        chunk,
                    ).fetchall()
                )
        return [_decoded(one, found.get(one)) for one in request_hashes]

    def put(
        self,
        request_hash: str,
        prompt_version: str,
        answer: ChatAnswer,
        about: Sequence[str] = (),
    ) -> None:
        """Record an answer unless the hash has one."""
        row = (request_hash, prompt_version, _encode(prompt_version, answer))
        with self._statement() as connection, _transaction(connection):
            # What it is about first: an answer that nobody would find to forget must not be.
            connection.executemany(
                "INSERT OR IGNORE INTO about VALUES (?, ?)", [(key, request_hash) for key in about]
            )
            connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", row)

    def hashes_about(self, about: Sequence[str]) -> list[str]:
        """Give the request hashes of the answers that are about any of these, sorted."""
        with self._statement() as connection:
            return _hashes_about(connection, about)

    def forget(self, about: Sequence[str]) -> int:
        """Delete every answer that is about any of these, and say how many. Idempotent."""
        with self._statement() as connection:
            with _transaction(connection):
                doomed = [(one,) for one in _hashes_about(connection, about)]
                before = connection.total_changes
                connection.executemany("DELETE FROM answers WHERE request_hash = ?", doomed)
                count = connection.total_changes - before
                for chunk in _chunks([one for (one,) in doomed]):
                    connection.execute(
                        f"DELETE FROM about WHERE request_hash IN ({_places(chunk)})", chunk
                    )
            if count:  # the write-ahead log still holds the pages as they were
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return count

    def hashes_of(self, owner: str) -> list[str]:
        """Give the hashes of the answers that are one generation's own, sorted.

        See :class:`stores.generation_answers.GenerationAnswers`.
        """
        with self._statement() as connection:
            rows = connection.execute(
                "SELECT request_hash FROM answers WHERE request_hash >= ? AND request_hash < ? "
                "ORDER BY request_hash",
                _below(owner),
            )
            return [one for (one,) in rows]

    def drop(self, owner: str) -> int:
        """Delete one generation's own answers, and say how many. Idempotent."""
        with self._statement() as connection:
            with _transaction(connection):
                count = connection.execute(
                    "DELETE FROM answers WHERE request_hash >= ? AND request_hash < ?",
                    _below(owner),
                ).rowcount
                connection.execute(
                    "DELETE FROM about WHERE request_hash >= ? AND request_hash < ?", _below(owner)
                )
            if count:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return count

    def close(self) -> None:
        """Close the file; every later call raises ``ServiceUnavailable``."""
        with self._lock:
            self._connection.close()


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _below(owner: str) -> tuple[str, str]:
    """Give the first name that could be ``<owner>:...``, and the first that could be no more."""
    return f"{owner}:", f"{owner};"  # ; comes after :


def _chunks(keys: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        yield list(keys[start : start + _KEYS_AT_ONCE])


def _places(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))


def _hashes_about(connection: sqlite3.Connection, about: Sequence[str]) -> list[str]:
    found: set[str] = set()
    for chunk in _chunks(about):
        found.update(
            one
            for (one,) in connection.execute(
                f"SELECT request_hash FROM about WHERE key IN ({_places(chunk)})", chunk
            )
        )
    return sorted(found)


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
        self._client = redis_client(url)

    def get(self, request_hash: str) -> ChatAnswer | None:
        """Give the recorded answer, with ``recorded=True``, or ``None``."""
        (found,) = self.get_many((request_hash,))
        return found

    def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
        """Give what :meth:`get` gives for each, in one question to the server."""
        names = [f"{self._prefix}:{one}" for one in request_hashes]
        with redis_errors():
            values = cast("list[bytes | None]", self._client.mget(names))
        return [_decoded(*one) for one in zip(request_hashes, values, strict=True)]

    def put(
        self,
        request_hash: str,
        prompt_version: str,
        answer: ChatAnswer,
        about: Sequence[str] = (),
    ) -> None:
        """Record an answer unless the hash has one."""
        with redis_errors(), self._client.pipeline(transaction=True) as together:
            for key in about:
                together.sadd(self._about(key), request_hash)
            together.set(f"{self._prefix}:{request_hash}", _encode(prompt_version, answer), nx=True)
            together.execute()

    def hashes_about(self, about: Sequence[str]) -> list[str]:
        """Give the request hashes of the answers that are about any of these, sorted."""
        found: set[str] = set()
        for chunk in _chunks(about):
            names = [self._about(key) for key in chunk]
            with redis_errors():
                found.update(one.decode() for one in cast("set[bytes]", self._client.sunion(names)))
        return sorted(found)

    def forget(self, about: Sequence[str]) -> int:
        """Delete every answer that is about any of these, and say how many. Idempotent."""
        count = 0
        doomed = [f"{self._prefix}:{one}" for one in self.hashes_about(about)]
        # The answers before the sets that name them: a crash between repeats both.
        for names, counted in ((doomed, True), ([self._about(key) for key in about], False)):
            for chunk in _chunks(names):
                with redis_errors():
                    deleted = self._client.delete(*chunk)
                count += deleted if counted else 0
        return count

    def hashes_of(self, owner: str) -> list[str]:
        """Give the hashes of the answers that are one generation's own, sorted."""
        with redis_errors():
            keys = set(
                self._client.scan_iter(match=f"{self._prefix}:{owner}:*", count=_KEYS_AT_ONCE)
            )
        return sorted(cast(bytes, key).decode().removeprefix(f"{self._prefix}:") for key in keys)

    def drop(self, owner: str) -> int:
        """Delete one generation's own answers, and say how many. Idempotent.

        Their hashes stay in the sets that tell what an answer is about: they name nothing then.
        """
        names = [f"{self._prefix}:{one}" for one in self.hashes_of(owner)]
        count = 0
        for chunk in _chunks(names):
            with redis_errors():
                count += self._client.delete(*chunk)
        return count

    def _about(self, key: str) -> str:
        return f"{self._prefix}/about:{key}"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _encode(prompt_version: str, answer: ChatAnswer) -> bytes:
    record = asdict(answer)
    del record["recorded"]
    return orjson.dumps({"v": _RECORD_VERSION, "prompt_version": prompt_version, **record})


def _decoded(request_hash: str, value: bytes | None) -> ChatAnswer | None:
    if value is None:
        return None
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

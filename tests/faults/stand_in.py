"""A stand-in for Milvus: rows in one SQLite file. Not a vector store and it does not search.

Most runs use it because milvus-lite takes seconds to open. What it shares with the real one is
what the flow rests on: an upsert that returned outlives a kill, the same ids write the same
rows, and a read sees every write before it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import numpy as np
import orjson

from stores.errors import ServiceUnavailable, Terminal, UserError
from stores.protocols import Vectors
from stores.records import Atom, IndexedEvent, Position, Profile, ProfileKind
from stores.sqlite_wal import use_write_ahead_log

__all__ = ["StandInStore"]

_TABLE = "CREATE TABLE IF NOT EXISTS {} (scope TEXT, id TEXT, body BLOB, vector BLOB, PRIMARY KEY (scope, id))"  # noqa: E501
_PATIENCE_S = 60.0


class StandInStore:
    """Rows by scope and id: an ``EventIndex``, an ``AtomStore`` and a ``ProfileStore``."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        use_write_ahead_log(self._connection, _PATIENCE_S)
        self._connection.execute("PRAGMA synchronous=NORMAL")
        for table in ("events", "atoms", "profiles"):
            self._connection.execute(_TABLE.format(table))

    def close(self) -> None:
        self._connection.close()

    # --- events ---

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        rows = [
            (event.scope, event.event_id, _event_body(event), vector.tobytes())
            for event, vector in zip(events, vectors, strict=True)
        ]
        self._write("events", rows)

    def delete_events(self, scope: str, event_ids: Sequence[str]) -> None:
        self._delete("events", scope, event_ids)

    def events_of(self, scope: str, session_id: str | None = None) -> Iterator[IndexedEvent]:
        for body, _ in self._read("events", scope):
            fields = orjson.loads(body)
            fields["occurred_at"] = datetime.fromisoformat(fields["occurred_at"])
            fields["position"] = Position(*fields["position"])
            event = IndexedEvent(**fields)
            if session_id in (None, event.session_id):
                yield event

    # --- atoms ---

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        rows = [
            (atom.scope, atom.atom_id, atom.model_dump_json().encode(), vector.tobytes())
            for atom, vector in zip(atoms, vectors, strict=True)
        ]
        self._write("atoms", rows)

    def delete_atoms(self, scope: str, atom_ids: Sequence[str]) -> None:
        self._delete("atoms", scope, atom_ids)

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        atoms = [Atom.model_validate_json(body) for body, _ in self._read("atoms", scope)]
        atoms.sort(key=lambda atom: (atom.occurred_at, atom.atom_id))
        return [atom for atom in atoms if atom.status == "active" or not only_active]

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        return next((one for one in self.atoms_of(scope) if one.atom_id == atom_id), None)

    def vectors_of(self, scope: str, atom_ids: Sequence[str]) -> Vectors:
        found = {
            Atom.model_validate_json(body).atom_id: np.frombuffer(vector, dtype=np.float32)
            for body, vector in self._read("atoms", scope)
        }
        if missing := [atom_id for atom_id in atom_ids if atom_id not in found]:
            raise Terminal(f"atoms that are not there: {missing}")
        return np.stack([found[atom_id] for atom_id in atom_ids])

    # --- profiles ---

    def upsert_profiles(self, profiles: Sequence[Profile], vectors: Vectors) -> None:
        rows = [
            (one.scope, f"{one.kind}/{one.path}", one.model_dump_json().encode(), vector.tobytes())
            for one, vector in zip(profiles, vectors, strict=True)
            if not one.deleted
        ]
        self._write("profiles", rows)
        for one in profiles:
            if one.deleted:
                self._delete("profiles", one.scope, [f"{one.kind}/{one.path}"])

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        found = [Profile.model_validate_json(body) for body, _ in self._read("profiles", scope)]
        return [one for one in found if kind in (None, one.kind)]

    def get_profile(self, scope: str, kind: ProfileKind, path: str) -> Profile | None:
        return next((one for one in self.profiles_of(scope, kind) if one.path == path), None)

    # --- rows ---

    def _write(self, table: str, rows: Sequence[tuple[str, str, bytes, bytes]]) -> None:
        with self._sqlite() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)", rows)
                connection.execute("COMMIT")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _delete(self, table: str, scope: str, ids: Sequence[str]) -> None:
        with self._sqlite() as connection:
            connection.executemany(
                f"DELETE FROM {table} WHERE scope = ? AND id = ?", [(scope, one) for one in ids]
            )

    def _read(self, table: str, scope: str) -> list[tuple[bytes, bytes]]:
        with self._sqlite() as connection:
            return connection.execute(
                f"SELECT body, vector FROM {table} WHERE scope = ? ORDER BY id", (scope,)
            ).fetchall()

    @contextmanager
    def _sqlite(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                yield self._connection
        except sqlite3.Error as error:
            if "disk" in str(error):  # an I/O error, or full: stops the flow, as of milvus-lite
                message = f"store: {error}"
                raise UserError(message) from error
            raise ServiceUnavailable("store", str(error)) from error


def _event_body(event: IndexedEvent) -> bytes:
    fields = {name: getattr(event, name) for name in event.__slots__}
    return orjson.dumps(fields | {"position": list(event.position)})

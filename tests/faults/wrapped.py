"""The flow's own parts, each wrapped so that it passes the points around its side effects."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

from connectors.answers_topic import PublishedAnswers
from stores.answers import RedisAnswers
from stores.errors import Transient
from stores.protocols import ChatAnswer, Vectors
from stores.records import Atom, IndexedEvent, OutRecord, Profile
from stores.scenes.durable import Durable
from tests.faults.points import Points

__all__ = [
    "RecoveryWatch",
    "WrappedSink",
    "WrappedStore",
    "wrap_journals",
    "wrap_renames",
    "wrapped_work",
]

_WATCH_S = 0.0005


def wrap_journals(points: Points) -> None:
    """Put points into both classes of the answer journal, for as long as this process lives.

    They are made deep inside of the flow, wherever that is. Errors are noted, so that an outage of
    Redis can be proved to have been felt.
    """
    get, put, publish = RedisAnswers.get, RedisAnswers.put, PublishedAnswers.put

    def get_felt(journal: RedisAnswers, request_hash: str) -> ChatAnswer | None:
        with _felt(points):
            return get(journal, request_hash)

    def put_felt(journal: RedisAnswers, *arguments: Any, **more: Any) -> None:
        points.passed("answer.between")
        with _felt(points):
            put(journal, *arguments, **more)

    def published(journal: PublishedAnswers, *arguments: Any, **more: Any) -> None:
        points.passed("answer.before")
        publish(journal, *arguments, **more)
        points.passed("answer.after")

    for of, name, wrapped in (
        (RedisAnswers, "get", get_felt),
        (RedisAnswers, "put", put_felt),
        (PublishedAnswers, "put", published),
    ):
        setattr(of, name, wrapped)


def wrap_renames(points: Points) -> None:
    """Put points around the rename that makes scenes or a persona current."""
    rename = Durable.rename

    def renamed(disk: Durable, new: Path, path: Path) -> None:
        points.passed("rename.before")
        rename(disk, new, path)
        points.passed("rename.after")

    setattr(Durable, "rename", renamed)  # noqa: B010


@contextmanager
def _felt(points: Points) -> Iterator[None]:
    try:
        yield
    except Transient:
        points.note("journal_down")
        raise


class WrappedStore:
    """The store; what is not named here is the store's own."""

    def __init__(self, store: Any, points: Points) -> None:
        self._store = store
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        self._upsert("events", self._store.upsert_events, events, vectors)

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        self._upsert("atoms", self._store.upsert_atoms, atoms, vectors)

    def upsert_profiles(self, profiles: Sequence[Profile], vectors: Vectors) -> None:
        self._upsert("profiles", self._store.upsert_profiles, profiles, vectors)

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        self._points.passed("atoms.read")
        found: list[Atom] = self._store.atoms_of(scope, only_active=only_active)
        return found

    def _upsert(
        self, what: str, upsert: Callable[..., None], rows: Sequence[Any], vectors: Vectors
    ) -> None:
        self._points.passed(f"{what}.before")
        if len(rows) > 1 and self._points.wants(f"{what}.half"):
            half = len(rows) // 2
            upsert(rows[:half], vectors[:half])
            self._points.passed(f"{what}.half")
        upsert(rows, vectors)
        self._points.passed(f"{what}.after")


class WrappedSink(FixedPartitionedSink[Sequence[OutRecord], None]):
    """The sink; its writers pass the points record by record where one of them is wanted."""

    def __init__(
        self, sink: FixedPartitionedSink[Sequence[OutRecord], None], points: Points
    ) -> None:
        self._sink = sink
        self._points = points

    def list_parts(self) -> list[str]:
        return self._sink.list_parts()

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> _Writer:
        return _Writer(self._sink.build_part(step_id, for_part, resume_state), self._points)


class _Writer(StatefulSinkPartition[Sequence[OutRecord], None]):
    def __init__(
        self, writer: StatefulSinkPartition[Sequence[OutRecord], None], points: Points
    ) -> None:
        self._writer = writer
        self._points = points
        self._delivered = points.wants("produce.after") or points.wants("given_up.after")

    def write_batch(self, values: list[Sequence[OutRecord]]) -> None:
        for record in chain.from_iterable(values):
            self._points.passed("produce.before")
            self._writer.write_batch([[record]])
            if self._delivered:
                self._writer.snapshot()  # waits for the delivery, and keeps nothing
                self._points.passed("produce.after")
                if _gives_up(record):
                    self._points.passed("given_up.after")

    def snapshot(self) -> None:
        self._points.passed("snapshot.before")
        self._writer.snapshot()
        self._points.passed("snapshot.flushed")

    def close(self) -> None:
        self._writer.close()


def _gives_up(record: OutRecord) -> bool:
    """Say whether it is the outcome of a window that an outage, and not poison, gave up."""
    value = record.value or b""
    outcome = record.topic.endswith(".outcomes") and b'"result":"dead_lettered"' in value
    return outcome and b'"reason":"unavailable"' in value


def wrapped_work(
    work: Callable[..., Awaitable[Sequence[Any]]], points: Points
) -> Callable[..., Awaitable[Sequence[Any]]]:
    """Pass the point of a failed call that will be tried again."""

    async def call(items: Sequence[Any], previous_error: str | None) -> Sequence[Any]:
        try:
            return await work(items, previous_error)
        except Transient:
            points.passed("retry")
            raise

    return call


class RecoveryWatch:
    """Passes a point whenever the recovery store has changed on disk."""

    def __init__(self, folder: Path, points: Points) -> None:
        self._folder = folder
        self._points = points
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    def __enter__(self) -> RecoveryWatch:
        if self._points.wants("snapshot.written"):
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()

    def _main(self) -> None:
        before = self._look()
        while not self._stop.wait(_WATCH_S):
            now = self._look()
            if now != before and before:
                self._points.passed("snapshot.written")
            before = now

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        try:
            return tuple(
                (entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
                for entry in sorted(self._folder.iterdir())
            )
        except OSError:
            return ()

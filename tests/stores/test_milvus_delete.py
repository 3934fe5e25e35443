"""Deleting from the Milvus store: at once, for good, and in one scope only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from stores.embedded import EmbeddedStore, FlushPolicy, open_embedded
from stores.errors import UserError
from stores.milvus import MilvusStore
from stores.protocols import Span
from tests.stores.test_milvus import ALL, SCOPE, START, atom, connect, event, ids, vectors


@pytest.fixture(scope="module", params=[0.02, 1000.0], ids=["flushed", "in memory"])
def lite(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedStore]:
    policy = FlushPolicy(request.param)
    with open_embedded(tmp_path_factory.mktemp("data"), policy=policy) as handle:
        yield handle


@pytest.fixture
def store(lite: EmbeddedStore) -> Iterator[MilvusStore]:
    opened = connect(lite, "delete")
    opened.drop_collections()
    opened.ensure_collections()
    yield opened
    opened.close()


def flush(lite: EmbeddedStore, store: MilvusStore) -> None:
    store._client().flush("delete_atoms")
    store._client().flush("delete_events")


EVER = Span("s1", START - timedelta(days=999), START + timedelta(days=999))


def found(store: MilvusStore, scope: str = SCOPE) -> list[set[str]]:
    """Look for atoms and events in every way there is."""
    names = [f"x{n}" for n in range(6)]
    return [
        {a.atom_id for a in store.atoms_of(scope)},
        {name for name in names if store.get_atom(scope, name)},
        set(ids(store.search_dense("atoms", scope, vectors(1)[0], 20, ALL))),
        set(ids(store.search_keyword("atoms", scope, "lisbon", 20, ALL))),
        {e.event_id for e in store.events_of(scope)},
        {e.event_id for e in store.get_events(scope, names)},
        {e.event_id for e in store.events_within(scope, [EVER], ALL)},
        set(ids(store.search_dense("events", scope, vectors(1)[0], 20, ALL))),
        set(ids(store.search_keyword("events", scope, "hello", 20, ALL))),
    ]


@pytest.mark.parametrize("flushed", [False, True])
def test_what_is_deleted_is_gone_for_every_read_at_once(
    lite: EmbeddedStore, store: MilvusStore, flushed: bool
) -> None:
    names = [f"x{n}" for n in range(6)]
    for scope in (SCOPE, "other"):
        store.upsert_atoms([atom(name, scope=scope) for name in names], vectors(6))
        store.upsert_events([event(name, scope=scope) for name in names], vectors(6))
    if flushed:
        flush(lite, store)
    store.delete_atoms(SCOPE, ["x0", "x3", "x3", "unknown"])
    store.delete_events(SCOPE, ["x0", "x3", "unknown"])
    left = {"x1", "x2", "x4", "x5"}
    assert found(store) == [left] * 9
    flush(lite, store)
    assert found(store) == [left] * 9
    store.delete_atoms(SCOPE, ["x0"])  # once more: nothing is there, no error
    store.delete_atoms(SCOPE, [])
    store.delete_events(SCOPE, [])
    assert found(store) == [left] * 9
    assert found(store, "other") == [set(names)] * 9


@pytest.mark.parametrize("flushed", [False, True])
def test_an_upsert_after_a_deletion_brings_the_row_back(
    lite: EmbeddedStore, store: MilvusStore, flushed: bool
) -> None:
    for text in ("first", "second", "third"):
        store.upsert_atoms([atom("x0", text=text)], vectors(1))
        store.delete_atoms(SCOPE, ["x0"])
        if flushed:
            flush(lite, store)
        assert store.atoms_of(SCOPE) == []
    store.upsert_atoms([atom("x0", text="fourth")], vectors(1))
    assert [a.text for a in store.atoms_of(SCOPE)] == ["fourth"]
    assert ids(store.search_keyword("atoms", SCOPE, "fourth", 5, ALL)) == ["x0"]
    assert store.search_keyword("atoms", SCOPE, "third", 5, ALL) == []


def test_more_is_deleted_than_one_request_holds(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.milvus_writing._DELETE_KEYS", 7)
    names = [f"x{n:02d}" for n in range(30)]
    store.upsert_events([event(name) for name in names], vectors(30))
    store.delete_events(SCOPE, names[:20])
    assert {e.event_id for e in store.events_of(SCOPE)} == set(names[20:])


def test_a_guest_may_not_delete(lite: EmbeddedStore, store: MilvusStore) -> None:
    guest = connect(lite, "delete", refuse_writes="process 7 owns it")
    for delete in (guest.delete_atoms, guest.delete_events):
        with pytest.raises(UserError, match="process 7 owns it"):
            delete(SCOPE, ["x0"])
    guest.close()


@pytest.mark.parametrize("owner", [False, True], ids=["by the server", "as the owner"])
def test_old_and_new_of_one_call_are_seen_together(
    lite: EmbeddedStore, store: MilvusStore, owner: bool
) -> None:
    pair = vectors(2)
    reader = connect(lite, "delete", reads=lite.reads) if owner else store
    store.upsert_atoms([atom("old", text="v0"), atom("new", text="v0")], pair)
    stop = threading.Event()
    writes = 0

    def write() -> None:
        nonlocal writes
        while not stop.is_set():
            writes += 1
            rows = [atom("old", text=f"v{writes}"), atom("new", text=f"v{writes}")]
            store.upsert_atoms(rows, pair)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        while writes < 60:
            texts = [a.text for a in store.atoms_of(SCOPE)]
            hits = reader.search_dense("atoms", SCOPE, pair[0], 5, ALL)
            for pairs in (texts, [hit.record.text for hit in hits]):
                assert len(pairs) == 2
                assert len(set(pairs)) == 1
                seen.add(pairs[0])
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1


_DELETER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from stores.embedded import FlushPolicy, open_embedded
    from tests.stores.test_milvus import SCOPE, atom, connect, event, vectors

    handle = open_embedded(Path(sys.argv[1]), policy=FlushPolicy(float(sys.argv[2])))
    store = connect(handle, "delete")
    store.ensure_collections()
    for scope in (SCOPE, "other"):
        store.upsert_atoms([atom(f"x{n}", scope=scope) for n in range(40)], vectors(40))
        store.upsert_events([event(f"x{n}", scope=scope) for n in range(40)], vectors(40))
    for n in range(0, 30, 2):
        store.delete_atoms(SCOPE, [f"x{n}", f"x{n + 1}"])
        store.delete_events(SCOPE, [f"x{n}", f"x{n + 1}"])
        print(n, flush=True)
        if n == 10:
            store.upsert_atoms([atom("x0", text="back")], vectors(1))
    sys.stdin.read()
    """
)


@pytest.mark.parametrize("flush_seconds", [0.02, 1000.0])
def test_deletions_survive_kill_9(tmp_path: Path, flush_seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _DELETER, str(tmp_path), str(flush_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        lines = [process.stdout.readline() for _ in range(15)]
        assert lines[-1] == "28\n"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
    kept = {f"x{n}" for n in range(30, 40)}
    for opening in range(3):  # each closes in order but the first
        with open_embedded(tmp_path, policy=FlushPolicy(0.02)) as handle:
            store = connect(handle, "delete")
            store.ensure_collections()
            texts = {a.atom_id: a.text for a in store.atoms_of(SCOPE)}
            assert texts.keys() == kept | {"x0"}
            assert texts["x0"] == "back"
            assert {e.event_id for e in store.events_of(SCOPE)} == kept | (
                {"x1"} if opening else set()
            )
            dense = ids(store.search_dense("atoms", SCOPE, vectors(1)[0], 90, ALL))
            assert set(dense) == kept | {"x0"}
            assert len(store.atoms_of("other")) == 40
            store.upsert_events([event("x1")], vectors(1))  # a new row outlives an old tombstone
            store.close()

"""The Milvus store on a real Milvus server without full-text search."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymilvus import MilvusClient

from stores.errors import StoreMismatch, Terminal
from stores.milvus import MilvusStore
from stores.milvus_schema import PARTITIONS, partition_name
from stores.paging import PageRequest
from stores.protocols import Filter, Span
from stores.records import Position
from tests.rig.milvus_server import milvus_server, waits_its_turn
from tests.stores.test_milvus import ALL, SCOPE, START, atom, event, ids, vectors
from tests.stores.test_milvus_profiles import profile

pytestmark = [pytest.mark.slow, waits_its_turn]


def connect(uri: str, *, embedding_name: str = "test", prefix: str = "real") -> MilvusStore:
    return MilvusStore(
        uri, prefix=prefix, dimension=8, embedding_name=embedding_name, timeout_s=60.0
    )


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with milvus_server(tmp_path_factory.mktemp("milvus")) as address:
        yield address


@pytest.fixture(scope="module")
def store(uri: str) -> Iterator[MilvusStore]:
    opened = connect(uri)
    opened.ensure_collections()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def small(uri: str) -> Iterator[MilvusStore]:
    """Give a store with few rows: among many, this server's searches are approximate."""
    opened = connect(uri, prefix="small")
    opened.ensure_collections()
    yield opened
    opened.close()


def test_it_runs_on_vectors_alone_and_says_so_once(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = connect(uri)
    with caplog.at_level(logging.WARNING, logger="stores.milvus"):
        store.ensure_collections()
        assert store.search_keyword("events", SCOPE, "kafka", 5, ALL) == []
        assert store.search_keyword("atoms", SCOPE, "kafka", 5, ALL) == []
    assert [record.message for record in caplog.records] == [
        "Milvus v2.3.5-lite has no full-text search: recall uses vectors only; "
        "Milvus 2.5 or newer has it"
    ]
    state = store.describe()
    assert (state.embedded, state.full_text, state.wanted.analyzer) == (False, False, "none")
    assert [collection.meta for collection in state.collections] == [state.wanted] * 3
    store.close()


def test_what_was_written_is_read_at_once_and_whole(store: MilvusStore) -> None:
    scope = 'a"\\/😀'
    atoms = [atom(f"id\"'{n:04d}", scope=scope, text="好" * 30_000 * (n == 0)) for n in range(300)]
    store.upsert_atoms([*atoms, atom("other", scope="other")], vectors(301))
    assert store.atoms_of(scope) == atoms
    newer = atoms[0].model_copy(update={"status": "superseded"})
    store.upsert_atoms([atoms[0], newer], vectors(2))
    assert store.get_atom(scope, newer.atom_id) == newer
    assert store.atoms_of(scope, only_active=True) == atoms[1:]
    assert store.get_atom("other", newer.atom_id) is None


def test_atoms_of_reads_more_rows_than_one_answer_holds(store: MilvusStore) -> None:
    for start in range(0, 17_000, 1000):
        store.upsert_atoms(
            [atom(f"a{n:05d}", scope="large") for n in range(start, start + 1000)], vectors(1000)
        )
    found = [a.atom_id for a in store.atoms_of("large")]
    assert found == [f"a{n:05d}" for n in range(17_000)]
    # The times of all are read in two goes, the atoms of the page alone.
    first = store.atoms_page("large", Filter(), PageRequest(1000))
    second = store.atoms_page("large", Filter(), PageRequest(1000, first.next))
    assert (first.total, second.total) == (17_000, 17_000)
    assert len({one.atom_id for one in (*first.records, *second.records)}) == 2000


def test_a_search_stays_in_its_scope(store: MilvusStore) -> None:
    loud = [event(f"l{n}", scope="loud") for n in range(500)]
    quiet = [event(f"q{n}", scope="quiet") for n in range(10)]
    store.upsert_events([*loud, *quiet], vectors(510))
    # A strong read waits until the server's searches have caught up as well.
    store.atoms_of("quiet")
    found = ids(store.search_dense("events", "quiet", vectors(1)[0], 20, Filter()))
    assert set(found) <= {f"q{n}" for n in range(10)}


def test_a_scope_lies_in_one_partition_and_is_found_there(uri: str, small: MilvusStore) -> None:
    names = [f"part{n}" for n in range(40)]
    assert len({partition_name(name) for name in names}) > len(PARTITIONS) // 2
    small.upsert_atoms([atom(f"{name}a", scope=name) for name in names], vectors(40))
    small.upsert_events([event(f"{name}e", scope=name) for name in names], vectors(40))
    small.upsert_profiles([profile("p.md", scope=name) for name in names], vectors(40))
    around = [Span("s1", START, START)]
    for name in names:
        assert [a.atom_id for a in small.atoms_of(name)] == [f"{name}a"]
        assert small.atoms_page(name, ALL, PageRequest(5)).total == 1
        assert [e.event_id for e in small.events_of(name)] == [f"{name}e"]
        assert small.profiles_of(name) == [profile("p.md", scope=name)]
        # The strong reads have waited until these have caught up.
        assert ids(small.search_dense("atoms", name, vectors(1)[0], 5, ALL)) == [f"{name}a"]
        assert [e.event_id for e in small.events_within(name, around, ALL)] == [f"{name}e"]
        assert [one.profile.scope for one in small.profiles_seen(name)] == [name]
    client: Any = MilvusClient(uri)
    for partition in PARTITIONS:
        rows = client.query(
            "small_atoms", filter='id > ""', limit=1000, output_fields=["record"],
            partition_names=[partition], consistency_level="Strong",
        )  # fmt: skip
        there = {name for name in names for row in rows if f'"{name}"' in row["record"][0]}
        assert there == {name for name in names if partition_name(name) == partition}
    client.close()


def test_partitions_that_a_killed_process_did_not_make_are_made(uri: str) -> None:
    first = connect(uri, prefix="killed")
    first.ensure_collections()
    client: Any = MilvusClient(uri)
    client.release_partitions("killed_atoms", [PARTITIONS[3], PARTITIONS[9]])
    for gone in (PARTITIONS[3], PARTITIONS[9]):
        client.drop_partition("killed_atoms", gone)
    first.ensure_collections()
    first.ensure_collections()
    assert set(client.list_partitions("killed_atoms")) == {"_default", *PARTITIONS}
    names = [f"part{n}" for n in range(40)]
    first.upsert_atoms([atom("a", scope=name) for name in names], vectors(40))
    assert [len(first.atoms_of(name)) for name in names] == [1] * 40
    first.drop_collections()
    first.close()
    client.close()


def test_a_collection_whose_scopes_lie_otherwise_is_refused(
    uri: str, store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a release before the partitions made it: a read of a partition would find nothing."""
    older = connect(uri, prefix="older")
    with monkeypatch.context() as before:
        before.setattr("stores.milvus_meta.ServerKind.partitions", False)
        older.ensure_collections()
    with pytest.raises(StoreMismatch, match=r"older release.*without partitions.*--drop-first"):
        older.ensure_collections()
    older.drop_collections()
    older.close()


def test_another_model_is_refused(uri: str, store: MilvusStore) -> None:
    other = connect(uri, embedding_name="e5")
    with pytest.raises(StoreMismatch, match=r"model test.*model e5"):
        other.ensure_collections()
    other.close()


def test_what_was_deleted_is_gone_for_strong_reads_at_once(small: MilvusStore) -> None:
    names = [f"d{n}" for n in range(20)]
    for scope in ("deleting", "other"):
        small.upsert_atoms([atom(name, scope=scope) for name in names], vectors(20))
        small.upsert_events([event(name, scope=scope) for name in names], vectors(20))
    small.delete_atoms("deleting", [*names[:10], "unknown"])
    small.delete_events("deleting", [*names[:10], "unknown"])
    assert {a.atom_id for a in small.atoms_of("deleting")} == set(names[10:])
    assert {e.event_id for e in small.events_of("deleting")} == set(names[10:])
    assert small.get_atom("deleting", "d0") is None
    assert [e.event_id for e in small.get_events("deleting", names)] == names[10:]
    assert len(small.vectors_of("deleting", names[10:])) == 10
    with pytest.raises(Terminal, match="no atoms d0"):
        small.vectors_of("deleting", ["d0"])
    # The strong reads have waited until searches have caught up.
    for layer in ("atoms", "events"):
        hits = small.search_dense(layer, "deleting", vectors(1)[0], 50, ALL)
        assert set(ids(hits)) == set(names[10:])
    assert {a.atom_id for a in small.atoms_of("other")} == set(names)
    assert {e.event_id for e in small.events_of("other", "s1")} == set(names)
    small.upsert_atoms([atom("d0", scope="deleting", text="back")], vectors(1))
    assert small.atoms_of("deleting")[0].text == "back"


def test_profiles_are_kept_searched_and_taken_out(small: MilvusStore) -> None:
    made = [profile("a.md"), profile("p.md", "persona"), profile("a.md", scope="other")]
    small.upsert_profiles(made, vectors(3))
    assert small.profiles_of(SCOPE) == [made[1], made[0]]
    assert small.get_profile(SCOPE, "scene", "a.md") == made[0]
    hits = small.search_dense("profiles", SCOPE, vectors(1)[0], 5, Filter(types=("scene",)))
    assert [hit.record for hit in hits] == [made[0]]
    small.upsert_profiles([profile("a.md", version=2, deleted=True)], vectors(1) * 0)
    assert small.profiles_of(SCOPE) == [made[1]]
    assert small.get_profile(SCOPE, "scene", "a.md") is None
    assert small.profiles_of("other") == [made[2]]


def test_as_of_and_types_narrow_a_search(small: MilvusStore) -> None:
    day = timedelta(days=1)
    small.upsert_atoms(
        [
            atom("old", scope="times", status="superseded", valid_until=START + day),
            atom("new", scope="times", valid_from=START + day, type="instruction"),
            atom("wrong", scope="times", status="rejected"),
        ],
        vectors(3),
    )
    small.atoms_of("times")  # waits, as above

    def found(where: Filter) -> set[str]:
        return set(ids(small.search_dense("atoms", "times", vectors(1)[0], 9, where)))

    assert found(Filter(as_of=START)) == {"old"}
    assert found(Filter(as_of=START + day)) == {"new"}
    assert found(Filter(types=("instruction",))) == {"new"}
    assert found(Filter(types=("persona",))) == set()


def test_events_within_spans_come_in_the_order_of_the_log(small: MilvusStore) -> None:
    rows = [
        event(
            f"n{at}",
            scope="near",
            session_id=f"s{at % 3}",
            position=Position("t", 1, at),
            occurred_at=START + timedelta(minutes=at),
        )
        for at in range(300)
    ]
    small.upsert_events(rows[::-1], vectors(300))
    list(small.events_of("near", "s1"))  # waits, as above
    spans = [Span("s1", START + timedelta(minutes=55), START + timedelta(minutes=62))]
    found = small.events_within("near", spans, ALL)
    assert [e.event_id for e in found] == ["n55", "n58", "n61"]


def test_reads_by_key_miss_no_row_that_is_being_written(small: MilvusStore) -> None:
    stop = threading.Event()
    pair = vectors(2)
    small.upsert_atoms([atom("k1", scope="keys"), atom("k2", scope="keys")], pair)

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            rows = [atom(name, scope="keys", text=f"v{n}") for name in ("k1", "k2")]
            small.upsert_atoms(rows, pair)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(25):
            assert len(small.vectors_of("keys", ["k1", "k2"])) == 2
            texts = [a.text for a in small.atoms_of("keys")]
            assert len(texts) == 2
            assert len(set(texts)) == 1  # both of one call, or both of the one before
    finally:
        stop.set()
        writer.join()

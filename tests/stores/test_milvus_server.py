"""The Milvus store on a real Milvus server without full-text search."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from stores.errors import StoreMismatch
from stores.milvus import MilvusStore
from stores.protocols import Filter
from tests.rig.milvus_server import milvus_server
from tests.stores.test_milvus import ALL, SCOPE, atom, event, ids, vectors

pytestmark = pytest.mark.slow


def connect(uri: str, *, embedding_name: str = "test") -> MilvusStore:
    return MilvusStore(
        uri, prefix="real", dimension=8, embedding_name=embedding_name, timeout_s=60.0
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
    assert [collection.meta for collection in state.collections] == [state.wanted] * 2
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


def test_a_search_stays_in_its_scope(store: MilvusStore) -> None:
    loud = [event(f"l{n}", scope="loud") for n in range(500)]
    quiet = [event(f"q{n}", scope="quiet") for n in range(10)]
    store.upsert_events([*loud, *quiet], vectors(510))
    # A strong read waits until the server's searches have caught up as well.
    store.atoms_of("quiet")
    found = ids(store.search_dense("events", "quiet", vectors(1)[0], 20, Filter()))
    assert set(found) <= {f"q{n}" for n in range(10)}


def test_another_model_is_refused(uri: str, store: MilvusStore) -> None:
    other = connect(uri, embedding_name="e5")
    with pytest.raises(StoreMismatch, match=r"model test.*model e5"):
        other.ensure_collections()
    other.close()

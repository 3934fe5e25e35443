"""What a rebuild asks of the Milvus store: which rows are there, and begin anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stores.embedded import EmbeddedStore, FlushPolicy, open_embedded
from stores.errors import StoreMismatch, UserError
from stores.milvus import MilvusStore
from tests.stores.test_milvus import SCOPE, atom, connect, event, vectors


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with open_embedded(tmp_path_factory.mktemp("data"), policy=FlushPolicy(0.05)) as handle:
        yield handle


@pytest.fixture
def store(lite: EmbeddedStore) -> Iterator[MilvusStore]:
    opened = connect(lite, "rows")
    opened.drop_collections()  # also when there are none
    opened.ensure_collections()
    yield opened
    opened.close()


def test_a_row_is_held_only_when_every_field_is_equal(store: MilvusStore) -> None:
    store.upsert_atoms([atom("a1"), atom("a2")], vectors(2))
    store.upsert_events([event("e1", "x" * 70_000)], vectors(1))
    changed = atom("a2", status="superseded")
    other_scope = atom("a1", scope="acme/helper/bob")
    assert store.holds([atom("a1"), changed, atom("a3"), other_scope]) == [
        True, False, False, False,
    ]  # fmt: skip
    assert store.holds([event("e2"), event("e1", "x" * 70_000), event("e1", "y")]) == [
        False, True, False,
    ]  # fmt: skip
    assert store.holds([]) == []


def test_dropped_collections_are_made_anew_with_other_settings(
    lite: EmbeddedStore, store: MilvusStore
) -> None:
    store.upsert_atoms([atom("a1")], vectors(1))
    other = connect(lite, "rows", embedding_name="newer")
    with pytest.raises(StoreMismatch, match="sediment rebuild --collection-prefix"):
        other.ensure_collections()
    other.drop_collections()
    other.ensure_collections()
    assert other.atoms_of(SCOPE) == []
    other.close()


def test_a_guest_may_not_drop(lite: EmbeddedStore, store: MilvusStore) -> None:
    guest = connect(lite, "rows", refuse_writes="the data folder is in use")
    with pytest.raises(UserError, match="in use"):
        guest.drop_collections()
    guest.close()

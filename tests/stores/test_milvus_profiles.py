"""Scenes and personas in the Milvus store, and collections of other releases."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from pymilvus import MilvusClient

from stores.embedded import EmbeddedStore, FlushPolicy, open_embedded
from stores.errors import StoreMismatch, Terminal, UserError
from stores.milvus import MilvusStore
from stores.milvus_meta import SCHEMA_VERSION, Meta
from stores.protocols import Filter, ProfileStore
from stores.records import Profile, ProfileKind, profile_id
from stores.terms import TERMS_VERSION
from tests.stores.test_milvus import ALL, DIMENSION, SCOPE, START, atom, connect, ids, vectors


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with open_embedded(tmp_path_factory.mktemp("data"), policy=FlushPolicy(0.05)) as handle:
        yield handle


@pytest.fixture
def store(lite: EmbeddedStore) -> Iterator[MilvusStore]:
    opened = connect(lite, "profiles")
    opened.drop_collections()
    opened.ensure_collections()
    yield opened
    opened.close()


def profile(path: str, kind: ProfileKind = "scene", scope: str = SCOPE, **changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "profile_id": profile_id(scope, kind, path),
        "scope": scope,
        "kind": kind,
        "path": path,
        "title": "Moving to Lisbon",
        "text": "She looks for a flat near the river.",
        "version": 1,
        "content_hash": "0",
        "created_at": START,
        "updated_at": START,
        "generator": "rules/1",
        **changes,
    }
    return Profile(**fields)


def test_it_satisfies_the_protocol(store: MilvusStore) -> None:
    profiles: ProfileStore = store
    assert profiles is store


def test_every_field_of_a_profile_comes_back(store: MilvusStore) -> None:
    full = profile(
        'wohnung "1"/中文.md',
        title="搬家",
        summary="kurz",
        text="# Über\n" + "😀" * 20_000,
        heat=7,
        atom_ids=("a", "b"),
        version=3,
        updated_at=START + timedelta(microseconds=1),
    )
    store.upsert_profiles([full], vectors(1))
    assert store.get_profile(SCOPE, "scene", full.path) == full
    assert store.profiles_of(SCOPE) == [full]
    assert store.holds([full, full.model_copy(update={"heat": 8})]) == [True, False]
    (hit,) = store.search_dense("profiles", SCOPE, vectors(1)[0], 5, ALL)
    assert (hit.id, hit.record) == (full.profile_id, full)


def test_profiles_come_by_kind_and_path(store: MilvusStore) -> None:
    made = [
        profile("b.md"),
        profile("persona.md", "persona"),
        profile("a.md"),
        profile("a.md", scope="other", text="theirs"),
    ]
    store.upsert_profiles(made, vectors(4))
    assert [(p.kind, p.path) for p in store.profiles_of(SCOPE)] == [
        ("persona", "persona.md"),
        ("scene", "a.md"),
        ("scene", "b.md"),
    ]
    seen = store.profiles_seen(SCOPE)
    assert [one.profile for one in seen] == store.profiles_of(SCOPE)
    written = {made[row].path: vector for row, vector in enumerate(vectors(4)[:3])}
    for one in seen:
        np.testing.assert_allclose(one.vector, written[one.profile.path], atol=1e-6)
    assert [p.path for p in store.profiles_of(SCOPE, "scene")] == ["a.md", "b.md"]
    assert store.get_profile(SCOPE, "persona", "a.md") is None
    assert store.get_profile("other", "scene", "a.md") == made[3]


def test_both_arms_find_profiles_by_title_summary_and_text(store: MilvusStore) -> None:
    made = vectors(3)
    store.upsert_profiles(
        [
            profile("a.md", summary="sourdough"),
            profile("persona.md", "persona", title="Ana", text="Likes sourdough."),
            profile("a.md", scope="other", text="sourdough"),
        ],
        made,
    )
    for where, expected in (
        (Filter(), {"a.md", "persona.md"}),
        (Filter(types=("persona",)), {"persona.md"}),
        (Filter(types=("scene", "episodic")), {"a.md"}),
        (Filter(types=("episodic",)), set()),
        (Filter(since=START + timedelta(days=1)), set()),
        (Filter(session_id="s1"), set()),  # a profile is of no session
    ):
        for hits in (
            store.search_dense("profiles", SCOPE, made[2], 5, where),
            store.search_keyword("profiles", SCOPE, "sourdough", 5, where),
        ):
            assert {hit.record.path for hit in hits if isinstance(hit.record, Profile)} == expected
            assert {hit.record.scope for hit in hits} <= {SCOPE}
    (best,) = store.search_keyword("profiles", SCOPE, "lisbon", 5, ALL)
    assert best.id == profile_id(SCOPE, "scene", "a.md")


def test_a_deleted_profile_is_taken_out_and_its_vector_not_looked_at(store: MilvusStore) -> None:
    theirs = profile("a.md", scope="other")
    store.upsert_profiles([profile("a.md"), profile("b.md"), theirs], vectors(3))
    gone = profile("a.md", version=2, deleted=True)
    with_zero = np.concatenate([np.zeros((1, DIMENSION), np.float32), vectors(1)])
    store.upsert_profiles([gone, profile("c.md")], with_zero)
    store.upsert_profiles([gone], with_zero[:1])  # again, and there is nothing
    assert [p.path for p in store.profiles_of(SCOPE)] == ["b.md", "c.md"]
    assert store.get_profile(SCOPE, "scene", "a.md") is None
    assert gone.profile_id not in ids(store.search_dense("profiles", SCOPE, vectors(1)[0], 9, ALL))
    assert gone.profile_id not in ids(store.search_keyword("profiles", SCOPE, "river", 9, ALL))
    assert store.profiles_of("other") == [theirs]
    store.upsert_profiles([profile("a.md", version=3)], vectors(1))
    assert store.get_profile(SCOPE, "scene", "a.md") == profile("a.md", version=3)


def test_of_one_profile_twice_in_a_call_the_last_counts(store: MilvusStore) -> None:
    gone = profile("a.md", version=2, deleted=True)
    store.upsert_profiles([profile("a.md"), gone], vectors(2))
    assert store.profiles_of(SCOPE) == []
    store.upsert_profiles([gone, profile("a.md", version=3)], vectors(2))
    assert store.profiles_of(SCOPE) == [profile("a.md", version=3)]


def test_a_bad_vector_writes_and_deletes_nothing(store: MilvusStore) -> None:
    store.upsert_profiles([profile("a.md")], vectors(1))
    gone = profile("a.md", version=2, deleted=True)
    with pytest.raises(Terminal, match="all zero"):
        store.upsert_profiles([gone, profile("b.md")], np.zeros((2, DIMENSION), np.float32))
    with pytest.raises(Terminal, match="as many vectors"):
        store.upsert_profiles([gone], vectors(2))
    assert store.profiles_of(SCOPE) == [profile("a.md")]


# --- collections of other releases -----------------------------------------------------------


def drop(lite: EmbeddedStore, *names: str) -> None:
    client: Any = MilvusClient(lite.uri, token=lite.token)
    for name in names:
        client.drop_collection(name)
    client.close()


def test_a_missing_profiles_collection_is_made_beside_the_others(
    lite: EmbeddedStore, store: MilvusStore
) -> None:
    store.upsert_atoms([atom("a")], vectors(1))
    drop(lite, "profiles_profiles")
    later = connect(lite, "profiles")
    later.ensure_collections()
    assert later.profiles_of(SCOPE) == []
    later.upsert_profiles([profile("a.md")], vectors(1))
    assert later.profiles_of(SCOPE) == [profile("a.md")]
    assert later.atoms_of(SCOPE) == [atom("a")]
    later.close()


def test_a_guest_without_the_profiles_collection_still_recalls_atoms(
    lite: EmbeddedStore, store: MilvusStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.upsert_atoms([atom("a")], vectors(1))
    drop(lite, "profiles_profiles")
    guest = connect(lite, "profiles", refuse_writes="process 7 owns it")
    with caplog.at_level(logging.WARNING):
        guest.ensure_collections()
    assert "profiles_profiles does not exist yet" in caplog.text
    assert ids(guest.search_dense("atoms", SCOPE, vectors(1)[0], 5, Filter())) == ["a"]
    assert guest.search_dense("profiles", SCOPE, vectors(1)[0], 5, Filter()) == []
    assert guest.search_keyword("profiles", SCOPE, "river", 5, Filter()) == []
    assert guest.profiles_of(SCOPE) == []
    assert guest.get_profile(SCOPE, "scene", "a.md") is None
    with pytest.raises(UserError, match="process 7 owns it"):
        guest.upsert_profiles([profile("a.md")], vectors(1))
    store.ensure_collections()
    store.upsert_profiles([profile("a.md")], vectors(1))
    guest.ensure_collections()  # as the next start does
    assert guest.profiles_of(SCOPE) == [profile("a.md")]
    guest.close()


def test_a_guest_without_atoms_is_told(lite: EmbeddedStore, store: MilvusStore) -> None:
    drop(lite, "profiles_profiles", "profiles_atoms")
    guest = connect(lite, "profiles", refuse_writes="process 7 owns it")
    with pytest.raises(UserError, match="profiles_atoms does not exist yet: process 7"):
        guest.ensure_collections()
    guest.close()


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "older release.*schema 1.*needs 2.*sediment rebuild --drop-first"),
        (str(SCHEMA_VERSION + 1), "newer release.*schema 3.*Update Sediment"),
    ],
)
def test_a_collection_of_another_release_is_refused_and_nothing_is_made(
    lite: EmbeddedStore, store: MilvusStore, version: str | None, message: str
) -> None:
    drop(lite, "profiles_atoms", "profiles_profiles")
    client: Any = MilvusClient(lite.uri, token=lite.token)
    properties = Meta("test", DIMENSION, f"jieba/{TERMS_VERSION}").properties()
    del properties["sediment.schema"]  # as the first release left it
    if version is not None:
        properties["sediment.schema"] = version
    client.create_collection("profiles_atoms", dimension=DIMENSION, properties=properties)
    other = connect(lite, "profiles")
    with pytest.raises(StoreMismatch, match=f"profiles_atoms was made by an? {message}"):
        other.ensure_collections()
    assert [c.exists for c in other.describe().collections] == [True, True, False]
    other.drop_collections()  # what the message says mends it
    other.ensure_collections()
    assert other.atoms_of(SCOPE) == []
    other.close()
    client.close()

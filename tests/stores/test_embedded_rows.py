"""Reads a column at a time give what milvus-lite's own reads give, row for row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from stores.embedded import EmbeddedStore, FlushPolicy, open_embedded
from stores.embedded_rows import matching, nearest
from stores.milvus import MilvusStore
from stores.milvus_schema import filter_expression
from stores.protocols import Filter
from stores.terms import query_terms
from tests.stores.test_milvus import SCOPE, atom, connect, vectors

SCOPES = (SCOPE, "acme/helper/ben")
WORDS = "river bridge lamp orange train violin harbour candle".split()
FIELDS = ["record", "dense", "occurred_ms"]
FILTERS = {"all": Filter(only_active=False), "active": Filter(only_active=True)}
ROUNDS = 40


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    # Flushed by the tests alone, so that they know what is in files.
    with open_embedded(tmp_path_factory.mktemp("data"), policy=FlushPolicy(3600)) as opened:
        yield opened


@pytest.fixture(params=range(6), ids="seed {}".format)
def seed(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def store(handle: EmbeddedStore, seed: int) -> Iterator[MilvusStore]:
    opened = connect(handle, f"rows{seed}")
    opened.ensure_collections()
    yield opened
    opened.close()


def test_rows_and_scores_are_those_of_milvus_lite(
    handle: EmbeddedStore, store: MilvusStore, seed: int
) -> None:
    assert handle.reads is not None
    rows = handle.reads._db.get_collection(f"rows{seed}_atoms")
    draw = random.Random(seed)
    compared = 0
    for number in range(ROUNDS):
        change(store, draw)
        if draw.random() < 0.4:
            rows.flush()
        rows._wait_for_bg()  # files are joined behind our back, and scores with them
        # A file that was joined from older ones may stand behind a newer one.
        files = list(rows._segment_cache.items())
        rows._segment_cache = dict(draw.sample(files, len(files)))
        scope, vector = draw.choice(SCOPES), vectors(1, seed=number)[0]
        terms, limit = query_terms(" ".join(draw.sample(WORDS, 3))), draw.choice((2, 50))
        for where in FILTERS.values():
            within = filter_expression("atoms", scope, where)
            whole = rows.query(within, output_fields=FIELDS, limit=limit)
            assert matching(rows, within, FIELDS, limit) == whole
            for field, asked in (("dense", vector), ("sparse", terms)):
                (found,) = rows.search(
                    [asked], top_k=limit, anns_field=field, expr=within, output_fields=FIELDS
                )
                assert nearest(rows, asked, field, within, FIELDS, limit) == found
                compared += len(found)
    assert compared > ROUNDS


def change(store: MilvusStore, draw: random.Random) -> None:
    """Write, write anew or delete some atoms of one scope."""
    scope = draw.choice(SCOPES)
    numbers = draw.sample(range(12), draw.randint(1, 5))
    if draw.random() < 0.25:
        store.delete_atoms(scope, [f"a{number}" for number in numbers])
        return
    written = [atom(f"a{number}", scope, **_said(draw)) for number in numbers]
    # Vectors of their own: which of two equal ones comes first is nobody's promise.
    store.upsert_atoms(written, vectors(len(written), seed=draw.randrange(10**9)))


def _said(draw: random.Random) -> dict[str, Any]:
    return {
        "text": " ".join(draw.choices(WORDS, k=4)),
        "status": draw.choice(("active", "superseded", "rejected")),
    }

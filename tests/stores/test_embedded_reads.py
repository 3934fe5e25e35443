"""What the owner of the embedded store reads directly is what its server would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from stores.embedded import EmbeddedStore, FlushPolicy, open_embedded
from stores.errors import ServiceUnavailable, Terminal, UserError
from stores.milvus import MilvusStore
from stores.protocols import Filter, Span
from tests.stores.test_milvus import SCOPE, START, atom, connect, event, vectors
from tests.stores.test_milvus_profiles import profile

READS: dict[str, Callable[[MilvusStore], Any]] = {
    "dense": lambda store: store.search_dense("atoms", SCOPE, vectors(8)[3], 5, Filter()),
    "keyword": lambda store: store.search_keyword("events", SCOPE, "river", 5, Filter()),
    "nothing": lambda store: store.search_keyword("events", SCOPE, "harbour", 5, Filter()),
    "within": lambda store: store.events_within(
        SCOPE, [Span("s1", START, START + timedelta(hours=1))], Filter()
    ),
    "profiles": lambda store: [
        (one.profile, one.vector.tolist()) for one in store.profiles_seen(SCOPE)
    ],
}


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with open_embedded(tmp_path_factory.mktemp("data"), policy=FlushPolicy(0.05)) as opened:
        store = connect(opened, "own")
        store.ensure_collections()
        # Some rows in a file, some in memory, some in both.
        for first in (0, 4):
            numbers = range(first, first + 8)
            store.upsert_atoms([atom(f"a{n}") for n in numbers], vectors(8))
            store.upsert_events(
                [event(f"e{n}", text=f"by the river {n}") for n in numbers], vectors(8)
            )
            store.upsert_profiles([profile(f"{n}.md") for n in numbers], vectors(8))
            store.delete_events(SCOPE, [f"e{first}"])
        store.close()
        yield opened


@pytest.mark.parametrize("name", READS)
def test_both_ways_give_the_same(handle: EmbeddedStore, name: str) -> None:
    by_server, directly = connect(handle, "own"), connect(handle, "own", reads=handle.reads)
    found = READS[name](directly)
    assert found == READS[name](by_server)
    assert bool(found) == (name != "nothing")


def test_a_write_that_returned_is_read(handle: EmbeddedStore) -> None:
    store = connect(handle, "own", reads=handle.reads)
    store.upsert_events([event("late", text="a lighthouse at dawn")], vectors(1))
    assert [hit.id for hit in store.search_keyword("events", SCOPE, "lighthouse", 3, Filter())] == [
        "late"
    ]
    store.delete_events(SCOPE, ["late"])
    assert store.search_keyword("events", SCOPE, "lighthouse", 3, Filter()) == []


def test_what_it_refuses_is_refused_alike(handle: EmbeddedStore) -> None:
    for reads in (None, handle.reads):
        with pytest.raises(Terminal):
            READS["dense"](connect(handle, "missing", reads=reads))


def test_a_store_that_cannot_be_used_reads_nothing(handle: EmbeddedStore) -> None:
    store = connect(handle, "own", reads=handle.reads)
    space = handle.reads._space  # type: ignore[union-attr]
    space.failed("torn")
    try:
        with pytest.raises(UserError, match="torn"):
            READS["dense"](store)
    finally:
        space.broken = ""


def test_after_the_end_it_is_not_there(tmp_path: Any) -> None:
    opened = open_embedded(tmp_path)
    store = connect(opened, "gone", reads=opened.reads)
    store.ensure_collections()
    opened.close()
    with pytest.raises(ServiceUnavailable, match="closed"):
        READS["dense"](store)

"""What else is read from the Milvus store: vectors, all events, neighbours, as of a time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from unittest.mock import Mock

import numpy as np
import pytest

from stores.embedded import EmbeddedStore, FlushPolicy, open_embedded
from stores.errors import ServiceUnavailable, Terminal
from stores.milvus import MilvusStore
from stores.paging import PageRequest
from stores.protocols import Filter, Neighbours, Span
from stores.records import IndexedEvent, Position
from tests.stores.test_milvus import (
    ALL,
    DIMENSION,
    SCOPE,
    START,
    atom,
    connect,
    event,
    ids,
    vectors,
)


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with open_embedded(tmp_path_factory.mktemp("data"), policy=FlushPolicy(0.05)) as handle:
        yield handle


@pytest.fixture
def store(lite: EmbeddedStore) -> Iterator[MilvusStore]:
    opened = connect(lite, "reads")
    opened.drop_collections()
    opened.ensure_collections()
    yield opened
    opened.close()


# --- vectors and all events ------------------------------------------------------------------


def test_vectors_come_in_the_order_asked_for(store: MilvusStore) -> None:
    made = vectors(4)
    store.upsert_atoms([atom(f"a{n}") for n in range(3)], made[:3] * np.float32(5))
    store.upsert_atoms([atom("a0", scope="other")], made[3:])
    read = store.vectors_of(SCOPE, ["a2", "a0", "a2"])
    assert read.dtype == np.float32
    np.testing.assert_allclose(read, made[[2, 0, 2]], atol=1e-6)
    np.testing.assert_allclose(store.vectors_of("other", ["a0"]), made[3:], atol=1e-6)
    assert store.vectors_of(SCOPE, []).shape == (0, DIMENSION)
    store.upsert_atoms([atom("a0")], read[1:2])  # what was read can be written
    with pytest.raises(Terminal, match="no atoms gone, a1x"):
        store.vectors_of(SCOPE, ["a0", "gone", "a1x"])
    with pytest.raises(Terminal, match="no atoms a1"):
        store.vectors_of("other", ["a0", "a1"])


def test_more_keys_are_read_than_one_request_holds(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.milvus_base._KEYS", 3)
    made = vectors(10)
    store.upsert_atoms([atom(f"a{n}") for n in range(10)], made)
    names = [f"a{n}" for n in range(10)]
    np.testing.assert_allclose(store.vectors_of(SCOPE, names), made, atol=1e-6)
    assert store.holds([atom(name) for name in [*names, "b"]]) == [True] * 10 + [False]


def test_all_events_of_a_scope_or_session_come_once(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.milvus_base._PAGE_ROWS", 7)
    mine = [event(f"e{n}", session_id=f"s{n % 2}") for n in range(30)]
    store.upsert_events([*mine, event("e0", scope="other", session_id="s0")], vectors(31))
    assert sorted(e.event_id for e in store.events_of(SCOPE)) == sorted(e.event_id for e in mine)
    assert {e.event_id for e in store.events_of(SCOPE, "s1")} == {f"e{n}" for n in range(1, 30, 2)}
    assert [e.scope for e in store.events_of("other")] == ["other"]
    assert list(store.events_of(SCOPE, "none")) == []


def test_events_are_read_page_by_page(store: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.milvus_base._PAGE_ROWS", 5)
    store.upsert_events([event(f"e{n}") for n in range(20)], vectors(20))
    store._observe = lambda operation, _: calls.append(operation)
    calls: list[str] = []
    reading = store.events_of(SCOPE)
    assert calls == []
    assert len(list(islice(reading, 5))) == 5
    assert calls == ["events_of"]
    assert len(list(reading)) == 15
    assert calls.count("events_of") >= 5


@pytest.mark.parametrize(("rows", "queries"), [(1, 1), (2, 2), (5, 2), (7, 3)])
def test_a_page_that_is_half_empty_is_the_last(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch, rows: int, queries: int
) -> None:
    """To ask once more and get nothing was a third of each strong read."""
    monkeypatch.setattr("stores.milvus_base._PAGE_ROWS", 4)
    store.upsert_atoms([atom(f"a{n}") for n in range(rows)], vectors(rows))
    query = Mock(wraps=store._query)
    monkeypatch.setattr(store, "_query", query)
    assert len(store.atoms_of(SCOPE)) == rows
    assert query.call_count == queries


def test_all_events_can_be_deleted_while_they_are_read(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.milvus_base._PAGE_ROWS", 4)
    store.upsert_events([event(f"e{n}") for n in range(19)], vectors(19))
    read = []
    for one in store.events_of(SCOPE):
        store.delete_events(SCOPE, [one.event_id])
        read.append(one.event_id)
    assert sorted(read) == sorted(f"e{n}" for n in range(19))
    assert list(store.events_of(SCOPE)) == []


def test_a_store_that_goes_away_while_events_are_read_is_transient(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.milvus_base._PAGE_ROWS", 4)
    handle = open_embedded(tmp_path_factory.mktemp("gone"))
    store = connect(handle, "gone", timeout_s=0.5)
    store.ensure_collections()
    store.upsert_events([event(f"e{n}") for n in range(9)], vectors(9))
    reading = store.events_of(SCOPE)
    next(reading)
    handle.close()
    with pytest.raises(ServiceUnavailable, match="milvus: events_of"):
        list(reading)
    store.close()


# --- neighbours ------------------------------------------------------------------------------


def said(minute: int, session: str = "s1", scope: str = SCOPE) -> IndexedEvent:
    return event(
        f"{session}-{minute}",
        scope=scope,
        session_id=session,
        position=Position("l0.events", 3, minute),
        occurred_at=START + timedelta(minutes=minute),
    )


def span(session: str, first: int, last: int) -> Span:
    return Span(session, START + timedelta(minutes=first), START + timedelta(minutes=last))


def test_events_within_spans_come_in_the_order_of_the_log(store: MilvusStore) -> None:
    neighbours: Neighbours = store
    rows = [said(minute) for minute in (2, 5, 9, 11, 20)]
    rows += [said(minute, "s2") for minute in (3, 8, 10)]
    rows += [said(minute, scope="other") for minute in (7, 10)]
    store.upsert_events(rows[::-1], vectors(len(rows)))

    def within(*spans: Span, where: Filter = ALL, scope: str = SCOPE) -> list[str]:
        return [one.event_id for one in neighbours.events_within(scope, spans, where)]

    assert within(span("s1", 5, 11)) == ["s1-5", "s1-9", "s1-11"]  # both ends are inside
    assert within(span("s1", 0, 3), span("s2", 8, 20)) == ["s1-2", "s2-8", "s2-10"]
    assert within(span("s1", 0, 6), span("s1", 4, 9)) == ["s1-2", "s1-5", "s1-9"]
    assert within(span("s1", 9, 9), span("s1", 0, 20)) == [f"s1-{n}" for n in (2, 5, 9, 11, 20)]
    assert within(span("none", 0, 99)) == within() == []
    assert within(span("s1", 0, 99), scope="nobody") == []
    narrow = Filter(until=START + timedelta(minutes=9))
    assert within(span("s1", 5, 11), where=narrow) == ["s1-5"]


# --- filters ---------------------------------------------------------------------------------


def found(store: MilvusStore, where: Filter, layer: str = "atoms") -> set[str]:
    dense = set(ids(store.search_dense(layer, SCOPE, vectors(1)[0], 20, where)))
    assert dense == set(ids(store.search_keyword(layer, SCOPE, "lisbon", 20, where)))
    return dense


def test_as_of_gives_what_held_at_that_time(store: MilvusStore) -> None:
    day = timedelta(days=1)
    rows = [
        atom("old", status="superseded", valid_until=START + 10 * day),
        atom("new", valid_from=START + 10 * day, occurred_at=START + 12 * day),
        atom("stale", status="stale", valid_until=START + 2 * day),
        atom("wrong", status="rejected"),
        atom("trip", valid_until=START + 30 * day),
        atom("theirs", scope="other"),
    ]
    store.upsert_atoms(rows, vectors(6))
    assert found(store, Filter()) == {"new", "trip"}
    assert found(store, Filter(as_of=START)) == {"old", "stale", "trip"}
    assert found(store, Filter(as_of=START + 5 * day)) == {"old", "trip"}
    ms = timedelta(milliseconds=1)
    assert found(store, Filter(as_of=START + 10 * day - ms)) == {"old", "trip"}
    assert found(store, Filter(as_of=START + 10 * day)) == {"new", "trip"}  # not both, not none
    assert found(store, Filter(as_of=START + 40 * day, only_active=False)) == {"new"}
    assert found(store, Filter(as_of=START - ms)) == set()
    assert found(store, Filter(as_of=START + 11 * day, until=START + 11 * day)) == {"trip"}
    # An end that lies in the future takes nothing from what is active now.
    assert {a.atom_id for a in store.atoms_of(SCOPE, only_active=True)} == {"new", "trip"}


def test_types_narrow_atoms_and_are_ignored_for_events(store: MilvusStore) -> None:
    store.upsert_atoms(
        [
            atom("p"),
            atom("i", type="instruction"),
            atom("w", type="work_task", status="superseded"),
            atom("x", type="work_task", scope="other"),
        ],
        vectors(4),
    )
    store.upsert_events([event("e", "lisbon")], vectors(1))
    assert found(store, Filter(types=("persona",))) == {"p"}
    assert found(store, Filter(types=("persona", "instruction"))) == {"p", "i"}
    assert found(store, Filter(types=("work_task",))) == set()
    assert found(store, Filter(types=("work_task",), only_active=False)) == {"w"}
    assert found(store, Filter(types=("scene",))) == set()
    assert found(store, Filter(types=("scene",)), "events") == {"e"}


@pytest.mark.parametrize("attack", ['persona"] or id != "', "\\", '"', "", "persona "])
def test_a_type_cannot_change_what_a_filter_means(store: MilvusStore, attack: str) -> None:
    store.upsert_atoms([atom("p"), atom("x", scope="other")], vectors(2))
    assert found(store, Filter(types=(attack,))) == set()
    assert found(store, Filter(types=(attack, "persona"), only_active=False)) == {"p"}
    assert ALL.types == ()


# --- pages -----------------------------------------------------------------------------------


def test_pages_of_events_by_time(store: MilvusStore) -> None:
    """One query gives times and keys; only the records of a page are read whole."""
    said = [event(f"e{n}", occurred_at=START + timedelta(hours=n // 2)) for n in range(7)]
    said.append(event("other", scope="acme/helper/bob"))
    store.upsert_events(said, vectors(len(said)))
    for newest_first in (False, True):
        found: list[str] = []
        after = None
        while True:
            asked = PageRequest(3, after, newest_first=newest_first)
            page = store.events_page(SCOPE, ALL, asked)
            assert page.total == 7
            assert len(page.records) <= 3
            found += [one.event_id for one in page.records]
            after = page.next
            if after is None:
                break
        times = [said[int(name[1:])].occurred_at for name in found]
        assert times == sorted(times, reverse=newest_first)
        assert sorted(found) == [f"e{n}" for n in range(7)]
    part = store.events_page(SCOPE, Filter(since=START + timedelta(hours=3)), PageRequest(10))
    assert [one.event_id for one in part.records] == ["e6"]
    assert store.events_page("acme/helper/new", ALL, PageRequest(10)).records == []


def test_pages_of_atoms_as_they_are_after_the_last_write(store: MilvusStore) -> None:
    made = [atom(f"a{n}", occurred_at=START + timedelta(hours=n)) for n in range(3)]
    store.upsert_atoms(made, vectors(3))
    store.upsert_atoms([made[1].model_copy(update={"status": "superseded"})], vectors(1))
    store.delete_atoms(SCOPE, ["a2"])
    page = store.atoms_page(SCOPE, Filter(only_active=False), PageRequest(10))
    assert [(one.atom_id, one.status) for one in page.records] == [
        ("a0", "active"),
        ("a1", "superseded"),
    ]
    active = store.atoms_page(SCOPE, Filter(), PageRequest(10, skip=0))
    assert ([one.atom_id for one in active.records], active.total) == (["a0"], 1)

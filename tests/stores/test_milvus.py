"""The Milvus store on real milvus-lite."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymilvus.exceptions import (
    ConnectError,
    DataNotMatchException,
    MilvusException,
    ParamError,
)

from stores.embedded import EmbeddedStore, FlushPolicy, open_embedded
from stores.errors import ServiceUnavailable, StoreMismatch, Terminal, UserError
from stores.milvus import MilvusStore
from stores.milvus_errors import translated
from stores.milvus_meta import Meta, ServerKind
from stores.milvus_schema import MAX_TEXT_BYTES, cut_text
from stores.protocols import AtomStore, EventIndex, Filter, Searcher, Vectors
from stores.records import Atom, AtomStatus, IndexedEvent, Position
from stores.terms import TERMS_VERSION

DIMENSION = 8
SCOPE = "acme/helper/ana"
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ALL = Filter(only_active=False)
_PREFIXES = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    folder = tmp_path_factory.mktemp("data")
    with open_embedded(folder, policy=FlushPolicy(seconds=0.05)) as handle:
        yield handle


def connect(lite: EmbeddedStore, prefix: str, **changes: Any) -> MilvusStore:
    # The first write waits for a dictionary, which takes its time where the cores are shared.
    arguments: dict[str, Any] = {
        "dimension": DIMENSION, "embedding_name": "test", "timeout_s": 60.0, **changes
    }  # fmt: skip
    return MilvusStore(lite.uri, token=lite.token, prefix=prefix, **arguments)


@pytest.fixture
def prefix() -> str:
    return next(_PREFIXES)


@pytest.fixture
def store(lite: EmbeddedStore, prefix: str) -> Iterator[MilvusStore]:
    opened = connect(lite, prefix)
    opened.ensure_collections()
    yield opened
    opened.close()


def vectors(count: int, seed: int = 0) -> Vectors:
    made = np.random.default_rng(seed).normal(size=(count, DIMENSION)).astype(np.float32)
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), dtype=np.float32)


def event(event_id: str, text: str = "hello", scope: str = SCOPE, **changes: Any) -> IndexedEvent:
    fields: dict[str, Any] = {
        "scope": scope,
        "event_id": event_id,
        "session_id": "s1",
        "role": "user",
        "text": text,
        "occurred_at": START,
        "position": Position("l0.events", 3, 7),
        **changes,
    }
    return IndexedEvent(**fields)


def atom(atom_id: str, scope: str = SCOPE, **changes: Any) -> Atom:
    fields: dict[str, Any] = {
        "atom_id": atom_id,
        "scope": scope,
        "session_id": "s1",
        "type": "persona",
        "text": "Ana lives in Lisbon",
        "priority": 50,
        "source_event_ids": ("e1",),
        "window_id": "w1",
        "extractor": "rules/1",
        "occurred_at": START,
        "valid_from": START,
        **changes,
    }
    return Atom(**fields)


def ids(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


def test_it_satisfies_the_protocols(store: MilvusStore) -> None:
    index: EventIndex = store
    atoms: AtomStore = store
    searcher: Searcher = store
    assert all(part is store for part in (index, atoms, searcher))


def test_every_field_of_an_atom_comes_back(store: MilvusStore) -> None:
    beijing = timezone(timedelta(hours=8))
    full = atom(
        'a"\\/😀',
        session_id="会话/1",
        type="instruction",
        text='说 "好"\\ \n\t' + "😀" * 40_000,
        priority=-1,
        slot="home.city",
        source_event_ids=tuple(f"e{n}/'\"" for n in range(300)),
        occurred_at=datetime(2026, 3, 1, 8, 0, 0, 123_456, tzinfo=beijing),
        activity_start=START,
        activity_end=START + timedelta(days=1),
        status="superseded",
        valid_until=START + timedelta(microseconds=1),
        superseded_by="b",
    )
    store.upsert_atoms([full], vectors(1))
    assert store.get_atom(SCOPE, full.atom_id) == full
    assert store.atoms_of(SCOPE) == [full]
    assert store.get_atom(SCOPE, "another") is None
    assert store.get_atom("other/helper/ana", full.atom_id) is None
    assert store.search_dense("atoms", SCOPE, vectors(1)[0], 1, ALL)[0].record == full


def test_a_repeated_write_changes_nothing_and_the_last_of_equal_ids_stays(
    store: MilvusStore,
) -> None:
    first, second = atom("a", text="old"), atom("a", text="new")
    store.upsert_atoms([first, atom("b"), second], vectors(3))
    store.upsert_atoms([second], vectors(1))
    assert [(a.atom_id, a.text) for a in store.atoms_of(SCOPE)] == [
        ("a", "new"),
        ("b", "Ana lives in Lisbon"),
    ]
    store.upsert_events([event("e"), event("e", "later")], vectors(2))
    store.upsert_events([event("e", "later")], vectors(1))
    hits = store.search_dense("events", SCOPE, vectors(1)[0], 10, ALL)
    assert [hit.record for hit in hits] == [event("e", "later")]


def test_the_same_atom_id_in_two_scopes_is_two_atoms(store: MilvusStore) -> None:
    store.upsert_atoms([atom("a"), atom("a", scope="other", text="theirs")], vectors(2))
    assert store.get_atom(SCOPE, "a") == atom("a")
    assert store.get_atom("other", "a") == atom("a", scope="other", text="theirs")


@pytest.mark.parametrize("query", ["Kafka", "kafka", "KAFKA", "流处理", "流处理 kafka"])
def test_one_analyzer_finds_chinese_and_english(store: MilvusStore, query: str) -> None:
    store.upsert_events(
        [
            event("zh", "我们用Kafka做流处理，效果很好"),
            event("en", "The weather in Lisbon is fine today."),
            event("zh2", "今天天气不错"),
        ],
        vectors(3),
    )
    assert ids(store.search_keyword("events", SCOPE, query, 5, ALL)) == ["zh"]
    assert ids(store.search_keyword("events", SCOPE, "天气", 5, ALL)) == ["zh2"]
    assert ids(store.search_keyword("events", SCOPE, "WEATHER lisbon", 5, ALL)) == ["en"]


def test_marks_and_empty_text_find_nothing(store: MilvusStore) -> None:
    store.upsert_events([event("a", "really? yes!"), event("b", "")], vectors(2))
    for query in ("?", "，。", "", "  ", "absent"):
        assert store.search_keyword("events", SCOPE, query, 5, ALL) == []


def test_the_standard_analyzer_finds_english(lite: EmbeddedStore, prefix: str) -> None:
    store = connect(lite, prefix, analyzer="standard")
    store.ensure_collections()
    store.upsert_events([event("en", "Kafka rocks"), event("zh", "我们用流处理")], vectors(2))
    assert ids(store.search_keyword("events", SCOPE, "kafka", 5, ALL)) == ["en"]
    assert store.search_keyword("events", SCOPE, "处理", 5, ALL) == []
    store.close()


def test_hits_are_best_first_and_never_more_than_asked(store: MilvusStore) -> None:
    made = vectors(40, seed=3)
    store.upsert_events([event(f"e{n}", "kafka " * (n + 1)) for n in range(40)], made)
    dense = store.search_dense("events", SCOPE, made[5], 7, ALL)
    assert len(dense) == 7
    assert dense[0].id == "e5"
    assert dense[0].score == pytest.approx(1.0, abs=1e-5)
    keyword = store.search_keyword("events", SCOPE, "kafka", 7, ALL)
    assert len(keyword) == 7
    for hits in (dense, keyword):
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.score > 0 for hit in keyword)
    assert store.search_dense("events", SCOPE, made[5], 0, ALL) == []


def test_vectors_of_another_length_give_cosines(store: MilvusStore) -> None:
    made = vectors(2)
    store.upsert_events([event("a"), event("b")], made * np.float32(7.0))
    hit = store.search_dense("events", SCOPE, made[0] * np.float32(0.1), 1, ALL)[0]
    assert hit.id == "a"
    assert hit.score == pytest.approx(1.0, abs=1e-5)


def test_filters_narrow_a_search(store: MilvusStore) -> None:
    statuses: list[AtomStatus] = ["active", "superseded", "active", "active"]
    atoms = [
        atom(
            f"a{n}",
            session_id="s1" if n < 3 else 's"2',
            status=status,
            occurred_at=START + timedelta(hours=n),
        )
        for n, status in enumerate(statuses)
    ]
    store.upsert_atoms(atoms, vectors(4))

    def found(where: Filter) -> set[str]:
        dense = ids(store.search_dense("atoms", SCOPE, vectors(1)[0], 10, where))
        assert sorted(dense) == sorted(
            ids(store.search_keyword("atoms", SCOPE, "lisbon", 10, where))
        )
        return set(dense)

    assert found(ALL) == {"a0", "a1", "a2", "a3"}
    assert found(Filter()) == {"a0", "a2", "a3"}
    assert found(Filter(session_id='s"2')) == {"a3"}
    hour = timedelta(hours=1)
    assert found(Filter(since=START + hour, until=START + 3 * hour, only_active=False)) == {
        "a1",
        "a2",
    }
    assert [a.atom_id for a in store.atoms_of(SCOPE, only_active=True)] == ["a0", "a2", "a3"]


def test_the_best_match_of_another_scope_is_never_seen(store: MilvusStore) -> None:
    made = vectors(3)
    store.upsert_events(
        [event("theirs", "kafka secret", scope="A"), event("mine", "tea", scope="B")], made[:2]
    )
    assert ids(store.search_dense("events", "B", made[0], 10, ALL)) == ["mine"]
    assert store.search_keyword("events", "B", "kafka secret", 10, ALL) == []
    assert store.search_dense("events", "", made[0], 10, ALL) == []


def test_a_small_scope_beside_a_large_one_keeps_its_hits(store: MilvusStore) -> None:
    loud = [event(f"l{n}", "kafka kafka", scope="loud") for n in range(500)]
    quiet = [event(f"q{n}", "kafka", scope="quiet") for n in range(10)]
    store.upsert_events(loud, np.repeat(vectors(1), 500, axis=0))
    store.upsert_events(quiet, vectors(10, seed=1))
    expected = sorted(f"q{n}" for n in range(10))
    assert sorted(ids(store.search_dense("events", "quiet", vectors(1)[0], 20, ALL))) == expected
    assert sorted(ids(store.search_keyword("events", "quiet", "kafka", 20, ALL))) == expected


def test_atoms_of_one_time_come_in_the_order_of_their_ids(store: MilvusStore) -> None:
    names = [f"a{n:03d}" for n in range(200)]
    shuffled = random.Random(4).sample(names, len(names))
    store.upsert_atoms([atom(name) for name in shuffled], vectors(200))
    first, second = store.atoms_of(SCOPE), store.atoms_of(SCOPE)
    assert [a.atom_id for a in first] == names
    assert [a.model_dump_json() for a in first] == [a.model_dump_json() for a in second]


def test_atoms_of_reads_more_rows_than_one_answer_holds(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.milvus_base._PAGE_ROWS", 7)
    atoms = [atom(f"a{n:03d}") for n in range(50)]
    store.upsert_atoms(atoms, vectors(50))
    store.upsert_atoms([atom("x", scope="other")], vectors(1))
    assert store.atoms_of(SCOPE) == atoms


@pytest.mark.slow
def test_atoms_of_reads_a_scope_of_17000(store: MilvusStore) -> None:
    for start in range(0, 17_000, 1000):
        store.upsert_atoms([atom(f"a{n:05d}") for n in range(start, start + 1000)], vectors(1000))
    assert [a.atom_id for a in store.atoms_of(SCOPE)] == [f"a{n:05d}" for n in range(17_000)]


def test_a_long_text_is_found_by_its_beginning_and_kept_whole(store: MilvusStore) -> None:
    long = event("long", "needle " + "好" * 350_000)
    store.upsert_events([long], vectors(1))
    assert store.search_keyword("events", SCOPE, "needle", 1, ALL)[0].record == long


@given(st.text(max_size=70_000))
def test_a_cut_text_is_a_beginning_that_fits(text: str) -> None:
    text = text.encode(errors="ignore").decode()
    cut = cut_text(text)
    assert text.startswith(cut)
    assert len(cut.encode()) <= MAX_TEXT_BYTES
    assert cut == text or len(cut.encode()) > MAX_TEXT_BYTES - 4


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([0.0] * DIMENSION, "all zero"),
        ([float("nan")] + [1.0] * (DIMENSION - 1), "not finite"),
        ([float("inf")] + [1.0] * (DIMENSION - 1), "not finite"),
    ],
)
def test_a_bad_vector_names_its_row_and_writes_nothing(
    store: MilvusStore, row: list[float], problem: str
) -> None:
    made = vectors(3)
    made[1] = row
    with pytest.raises(Terminal, match=rf"row 1 \(b\) .*{problem}"):
        store.upsert_atoms([atom("a"), atom("b"), atom("c")], made)
    assert store.atoms_of(SCOPE) == []
    with pytest.raises(Terminal, match="8"):
        store.upsert_atoms([atom("a")], np.ones((1, 5), dtype=np.float32))
    with pytest.raises(Terminal, match="as many vectors"):
        store.upsert_atoms([atom("a")], made)
    store.upsert_atoms([], np.zeros((0, DIMENSION), dtype=np.float32))


_ids = st.text(
    st.one_of(
        st.sampled_from("\"'\\/%{}[]()=&|!;$ \t\n"), st.characters(exclude_categories=["Cs"])
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def crowded(lite: EmbeddedStore) -> Iterator[MilvusStore]:
    opened = connect(lite, "crowded")
    opened.ensure_collections()
    opened.upsert_atoms([atom("victim", scope="victim", session_id="victim")], vectors(1))
    yield opened
    opened.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(scope=_ids, session=_ids, atom_id=_ids)
def test_no_id_can_change_what_a_filter_means(
    crowded: MilvusStore, scope: str, session: str, atom_id: str
) -> None:
    scope = "mine/" + scope
    mine = atom(atom_id, scope=scope, session_id=session)
    crowded.upsert_atoms([mine], vectors(1))
    assert crowded.get_atom(scope, atom_id) == mine
    where = Filter(session_id=session)
    hits = crowded.search_dense("atoms", scope, vectors(1)[0], 100, where)
    assert mine in [hit.record for hit in hits]
    found = [hit.record for hit in hits if isinstance(hit.record, Atom)]
    assert {(one.scope, one.session_id) for one in found} == {(scope, session)}
    assert {a.scope for a in crowded.atoms_of(scope)} == {scope}


@pytest.mark.parametrize("scope", ['x" or "1" == "1', "x\\", '" or scope_id != "', "%", "victim'"])
def test_an_attack_reads_nothing(crowded: MilvusStore, scope: str) -> None:
    assert crowded.atoms_of(scope) == []
    assert crowded.get_atom(scope, "victim") is None
    assert crowded.get_atom("victim", scope) is None
    assert crowded.search_dense("atoms", scope, vectors(1)[0], 10, Filter()) == []
    assert crowded.search_dense("atoms", "victim", vectors(1)[0], 9, Filter(session_id=scope)) == []


def test_many_threads_write_and_search_at_once(store: MilvusStore) -> None:
    stop = threading.Event()
    made = vectors(20)

    def write(writer: int) -> None:
        for start in range(0, 200, 20):
            batch = [atom(f"w{writer}-{n:03d}") for n in range(start, start + 20)]
            store.upsert_atoms(batch, made)
            # What was written is there, whatever is being flushed at this moment.
            found = {a.atom_id for a in store.atoms_of(SCOPE)}
            assert {a.atom_id for a in batch} <= found

    def search() -> int:
        searches = 0
        while not stop.is_set():
            store.search_dense("atoms", SCOPE, made[0], 5, Filter())
            store.search_keyword("atoms", SCOPE, "lisbon", 5, Filter())
            searches += 1
        return searches

    with ThreadPoolExecutor(6) as pool:
        searchers = [pool.submit(search) for _ in range(2)]
        writers = [pool.submit(write, writer) for writer in range(4)]
        try:
            for writer in writers:
                writer.result()
        finally:
            stop.set()
        assert all(searcher.result() > 0 for searcher in searchers)
    assert len(store.atoms_of(SCOPE)) == 800


def test_an_upsert_is_found_by_the_next_search(store: MilvusStore) -> None:
    made = vectors(100, seed=7)
    for n in range(100):
        store.upsert_events([event(f"e{n}", f"word{n}")], made[n : n + 1])
        assert ids(store.search_dense("events", SCOPE, made[n], 1, ALL)) == [f"e{n}"]
        assert ids(store.search_keyword("events", SCOPE, f"word{n}", 1, ALL)) == [f"e{n}"]


@pytest.mark.parametrize(
    ("change", "ours", "theirs"),
    [
        ({"dimension": 9}, "dimension 9", "dimension 8"),
        ({"embedding_name": "e5"}, "model e5", "model test"),
        ({"analyzer": "standard"}, "analyzer standard", "analyzer jieba"),
    ],
)
def test_other_settings_are_refused_and_both_sides_named(
    lite: EmbeddedStore,
    store: MilvusStore,
    prefix: str,
    change: dict[str, Any],
    ours: str,
    theirs: str,
) -> None:
    other = connect(lite, prefix, **change)
    with pytest.raises(StoreMismatch, match=f"{theirs}.*{ours}.*another collection prefix"):
        other.ensure_collections()
    state = other.describe()
    assert state.collections[0].meta == Meta("test", DIMENSION, f"jieba/{TERMS_VERSION}")
    assert state.wanted != state.collections[0].meta
    other.close()


def test_describe_changes_nothing(lite: EmbeddedStore, prefix: str) -> None:
    store = connect(lite, prefix)
    for _ in range(2):
        state = store.describe()
        assert [(c.name, c.exists, c.meta) for c in state.collections] == [
            (f"{prefix}_events", False, None),
            (f"{prefix}_atoms", False, None),
            (f"{prefix}_profiles", False, None),
        ]
    assert state.server_version.startswith("milvus_lite")
    assert (state.embedded, state.full_text) == (True, True)
    store.close()


def test_a_store_that_may_not_write_says_why(
    lite: EmbeddedStore, store: MilvusStore, prefix: str
) -> None:
    store.upsert_atoms([atom("a")], vectors(1))
    reader = connect(lite, prefix, refuse_writes="process 7 owns it")
    reader.ensure_collections()
    assert reader.atoms_of(SCOPE) == [atom("a")]
    with pytest.raises(UserError, match="process 7 owns it"):
        reader.upsert_atoms([atom("b")], vectors(1))
    reader.close()
    missing = connect(lite, "missing", refuse_writes="process 7 owns it")
    with pytest.raises(UserError, match="missing_events does not exist yet"):
        missing.ensure_collections()
    missing.close()


def test_a_store_that_is_down_is_transient() -> None:
    store = MilvusStore(
        "http://127.0.0.1:1", prefix="p", dimension=8, embedding_name="m", timeout_s=0.3
    )
    with pytest.raises(ServiceUnavailable, match="milvus: connect"):
        store.ensure_collections()
    store.close()


def test_a_store_that_goes_away_is_transient(tmp_path_factory: pytest.TempPathFactory) -> None:
    handle = open_embedded(tmp_path_factory.mktemp("gone"))
    store = connect(handle, "gone", timeout_s=0.5)
    store.ensure_collections()
    handle.close()
    with pytest.raises(ServiceUnavailable, match="milvus: atoms_of"):
        store.atoms_of(SCOPE)
    with pytest.raises(ServiceUnavailable, match="milvus: upsert_atoms"):
        store.upsert_atoms([atom("a")], vectors(1))
    store.close()


def test_a_call_the_server_refuses_is_terminal(store: MilvusStore) -> None:
    with pytest.raises(Terminal, match="no layer 'scenes'"):
        store.search_dense("scenes", SCOPE, vectors(1)[0], 1, ALL)


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (MilvusException(1100, "invalid parameter"), False),
        (ParamError(message="wrong type"), False),
        (DataNotMatchException(message="a field is missing"), False),
        (MilvusException(8, "rate limit exceeded"), True),
        (MilvusException(106, "collection not fully loaded"), True),
        (MilvusException(grpc.StatusCode.UNAVAILABLE, "retry run out"), True),
        (MilvusException(1100, "replica moved", retriable=True), True),
        (ConnectError(message="no route"), True),
        (ConnectionResetError("reset"), True),
    ],
)
def test_an_error_is_transient_or_terminal(error: Exception, transient: bool) -> None:
    ours = translated("upsert_atoms", error)
    assert isinstance(ours, ServiceUnavailable if transient else Terminal)
    assert str(ours).startswith("milvus: upsert_atoms: ")


def test_calls_are_observed(lite: EmbeddedStore, prefix: str) -> None:
    seen: list[str] = []
    store = connect(lite, prefix, observe=lambda operation, seconds: seen.append(operation))
    store.ensure_collections()
    seen.clear()
    store.upsert_atoms([atom("a")], vectors(1))
    store.upsert_events([event("e")], vectors(1))
    store.atoms_of(SCOPE)
    store.get_atom(SCOPE, "a")
    store.search_dense("atoms", SCOPE, vectors(1)[0], 1, ALL)
    store.search_keyword("atoms", SCOPE, "x", 1, ALL)
    assert seen == [
        "upsert_atoms",
        "upsert_events",
        "atoms_of",
        "get_atom",
        "search_dense",
        "search_keyword",
    ]
    store.close()


@pytest.mark.parametrize(
    ("version", "full_text", "partition_key", "partitions"),
    [
        ("milvus_lite-3.2.2", True, False, False),
        ("v2.3.5-lite", False, False, True),
        ("v2.4.17", False, False, True),
        ("2.5.0", True, True, False),
        ("v2.10.1", True, True, False),
        ("strange", False, False, True),
    ],
)
def test_what_a_server_can_do(
    version: str, full_text: bool, partition_key: bool, partitions: bool
) -> None:
    kind = ServerKind(version)
    found = (kind.full_text, kind.partition_key, kind.partitions)
    assert found == (full_text, partition_key, partitions)

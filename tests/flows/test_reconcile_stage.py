"""The reconcile stage: killed at any point, down store or model, the end is the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flows.reconcile import Reconciler, ScopeAtoms, WarmScope, WarmScopes
from flows.reconcile.whole import to_finish
from stores.errors import ServiceUnavailable, Transient
from stores.protocols import UnfinishedWrites, Vectors
from stores.records import Atom
from stores.unfinished import UnfinishedInRedis
from stores.unfinished_files import UnfinishedInFiles
from tests.flows.reconcile_rig import (
    Answering,
    Journal,
    MemoryStore,
    Shown,
    Words,
    decide,
    down,
    item,
    readable,
    run,
)
from tests.rig.events import at, atom
from tests.rig.still import StillClock

OSLO = item(atom("oslo", "User lives in Oslo by the harbour"))
ROME = item(
    atom("rome", "User moved from Oslo to Rome", seconds=60, session_id="s2"),
    atom("tea", "User likes green tea", seconds=60, sources=("event-of-rome",)),
)
AGAIN = item(atom("again", "User lives in Rome now", seconds=120))
CAT = item(atom("cat", "User has a cat called Tom", seconds=180))
TRIP = item(atom("trip", "User is in Kyiv for a week", seconds=200, valid_until=at(220)))
LATER = item(seconds=300)
WINDOWS = (OSLO, ROME, AGAIN, CAT, TRIP, LATER)


def _moves(lines: Shown) -> object:
    """Let "moved" take the place of what is known, and "now" repeat the last of it."""
    decisions = []
    known = [line[0] for line in lines["known"]]
    for label, _, text in lines["new"]:
        if "moved" in text:
            text_ = "User lives in Rome, moved from Oslo"
            decisions.append(decide("update", *known, text=text_, memory=label))
        elif "now" in text:
            decisions.append(decide("skip", known[-1], memory=label))
        else:
            decisions.append(decide("store", memory=label))
    return decisions


def _work(store: MemoryStore, chat: Journal | None) -> Reconciler:
    return Reconciler(store, Words(), StillClock(), chat=chat)


def _undisturbed(model: bool) -> tuple[dict[str, Atom], list[set[str]]]:
    store = MemoryStore()
    results = run(_work(store, Journal(Answering(_moves)) if model else None), *WINDOWS)
    return store.atoms, [{one.atom_id for one in result.touched} for result in results]


@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize("killed_in", range(len(WINDOWS)))
@pytest.mark.parametrize("point", ["fail_before", "fail_after"])
def test_a_kill_around_the_write_changes_nothing(model: bool, killed_in: int, point: str) -> None:
    store, chat = MemoryStore(), Answering(_moves)
    journal = Journal(chat) if model else None
    run(_work(store, journal), *WINDOWS[:killed_in])
    setattr(store, point, down())
    try:
        (result,) = run(_work(store, journal), WINDOWS[killed_in])
    except Transient:
        asked = len(chat.requests)
        # A new process: nothing is in memory.
        (result,) = run(_work(store, journal), WINDOWS[killed_in])
        assert len(chat.requests) == asked, "a recorded answer was asked for again"
    run(_work(store, journal), *WINDOWS[killed_in + 1 :])
    atoms, named = _undisturbed(model)
    assert store.atoms == atoms
    if WINDOWS[killed_in].atoms:
        assert {one.atom_id for one in result.touched} == named[killed_in]


@pytest.mark.parametrize("model", [True, False])
def test_windows_applied_again_later_change_nothing_and_ask_nothing(model: bool) -> None:
    store, chat = MemoryStore(), Answering(_moves)
    journal = Journal(chat) if model else None
    work = _work(store, journal)
    first = [{one.atom_id for one in result.touched} for result in run(work, *WINDOWS)]
    before, asked, writes = dict(store.atoms), len(chat.requests), store.writes
    for cold in (False, True):
        again = run(_work(store, journal) if cold else work, *WINDOWS[:5])
        assert store.atoms == before
        assert [bool(result.touched) for result in again] == [True] * 5
    assert (len(chat.requests), store.writes) == (asked, writes)
    if model:
        assert asked == 2
        assert {"rome", "tea", "oslo"} < first[1]
        assert first[2] == {one.atom_id for one in again[2].touched}


def test_a_warm_and_a_cold_scope_end_the_same() -> None:
    store = MemoryStore()
    journal = Journal(Answering(_moves))
    for window in WINDOWS:
        run(_work(store, journal), window)
    assert store.atoms == _undisturbed(model=True)[0]


def test_a_model_that_is_down_stores_nothing() -> None:
    store = MemoryStore()
    chat = Answering(lambda _: ServiceUnavailable("llm", "down"))
    work = _work(store, Journal(chat))
    run(work, OSLO)
    before = dict(store.atoms)
    with pytest.raises(ServiceUnavailable):
        run(work, ROME)
    assert store.atoms == before
    chat.answer = _moves
    run(work, ROME)
    assert readable(store) == ["User likes green tea", "User lives in Rome, moved from Oslo"]


def test_new_and_superseded_go_in_one_write() -> None:
    store = MemoryStore()
    run(_work(store, Journal(Answering(_moves))), OSLO, ROME)
    assert store.writes == 2


def test_a_failed_write_leaves_memory_no_further_than_the_store() -> None:
    store = MemoryStore()
    work = _work(store, None)
    lisbon = item(atom("a", "User lives in Lisbon", slot="home.city"))
    porto = item(atom("b", "User lives in Porto", slot="home.city", seconds=60))
    run(work, lisbon)
    store.fail_before = down()
    with pytest.raises(ServiceUnavailable):
        run(work, porto)
    assert store.atoms["a"].status == "active"
    run(work, porto)
    assert store.atoms["a"].superseded_by == "b"
    assert store.atoms["b"].status == "active"


def test_a_warm_scope_is_not_read_again_and_the_coldest_makes_room() -> None:
    store = MemoryStore()
    work = _work(store, None)
    run(work, *(item(atom(f"a{n}", f"fact {n}")) for n in range(3)))
    assert store.reads == 1
    warm = WarmScopes(capacity=2)
    for scope in "abc":
        warm.put(scope, WarmScope(ScopeAtoms()))
        warm.get("a")
    assert [scope for scope in "abc" if warm.get(scope) is not None] == ["a", "c"]


def test_large_scopes_make_room_by_their_size() -> None:
    warm = WarmScopes(max_bytes=20_000)
    for scope in "ab":
        kept = WarmScope(ScopeAtoms([atom(f"{scope}{n}", f"fact {n}") for n in range(2)]))
        warm.put(scope, kept)
    assert [scope for scope in "ab" if warm.get(scope) is not None] == ["b"]


def test_a_skipped_atom_is_known_when_its_target_has_changed_since() -> None:
    store, chat = MemoryStore(), Answering(lambda _: [decide("skip", "m1")])
    work = _work(store, Journal(chat))
    home = item(atom("home", "User lives in Oslo", slot="home.city"))
    again = item(atom("again", "User still lives in Oslo", seconds=60))
    moved = item(atom("moved", "Now it is Rome", slot="home.city", seconds=120))
    other = item(atom("other", "User works in Oslo and lives well", seconds=180))
    run(work, home, again, moved)
    chat.answer = lambda _: [decide("store")]
    run(work, other)
    before, asked = dict(store.atoms), len(chat.requests)
    run(work, again)
    assert store.atoms == before
    assert len(chat.requests) == asked


class HalfStore(MemoryStore):
    """Takes the first half of one write, then is down."""

    half = False

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        if self.half:
            self.half = False
            some = len(atoms) // 2
            super().upsert_atoms(atoms[:some], vectors[:some])
            raise down()
        super().upsert_atoms(atoms, vectors)


@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize("killed_in", range(len(WINDOWS) - 1))
@pytest.mark.parametrize("keeper", ["files", "redis"])
def test_killed_with_half_of_a_write_in_the_store_the_rest_of_it_follows(
    model: bool, killed_in: int, keeper: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def notes() -> UnfinishedWrites:
        if keeper == "files":
            return UnfinishedInFiles(tmp_path / "unfinished")
        return UnfinishedInRedis(request.getfixturevalue("redis_server").url, tmp_path.name)

    def work() -> Reconciler:
        """Be a new process: nothing is in memory but what the notes say."""
        return Reconciler(
            store, Words(), StillClock(), chat=journal if model else None, unfinished=notes()
        )

    store, chat = HalfStore(), Answering(_moves)
    journal = Journal(chat)
    run(work(), *WINDOWS[:killed_in])
    store.half = True
    (result,) = (None,)
    try:
        run(work(), WINDOWS[killed_in])
    except ServiceUnavailable:
        asked = len(chat.requests)
        # Older windows come again first, as after an older snapshot.
        run(work(), *WINDOWS[:killed_in])
        (result,) = run(work(), WINDOWS[killed_in])
        assert len(chat.requests) == asked
        assert notes().get(WINDOWS[0].window.scope) is None, (
            "text of memories is kept no longer than needed"
        )
    run(work(), *WINDOWS[killed_in + 1 :])
    assert notes().get(WINDOWS[0].window.scope) is None
    atoms, named = _undisturbed(model)
    assert store.atoms == atoms
    if result is not None:
        assert {one.atom_id for one in result.touched} == named[killed_in]


def test_a_note_of_another_time_is_not_followed() -> None:
    row = atom("rome", "User lives in Rome")
    again = row.model_copy(update={"version": 2, "text": "User lives in Rome now"})
    other, changed = atom("tea", "User likes tea"), atom("oslo", "User lives in Oslo")
    moved = changed.model_copy(update={"version": 2, "status": "superseded"})
    assert to_finish([changed, row], [row, moved, other]) == [moved, other]
    assert to_finish([changed], [row, moved, other]) == [], "nothing of it was written"
    assert to_finish([], [row, moved]) == [], "the store was emptied since"
    assert to_finish([moved, row, other], [row, moved, other]) == [], "all of it was written"
    assert to_finish([moved, again], [row, moved, other]) == [], "something came after it"


@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize("failed_in", range(len(WINDOWS) - 1))
def test_a_store_that_took_half_of_a_write_is_written_again(model: bool, failed_in: int) -> None:
    store, chat = HalfStore(), Answering(_moves)
    work = _work(store, Journal(chat) if model else None)
    run(work, *WINDOWS[:failed_in])
    store.half = True
    try:
        run(work, WINDOWS[failed_in])
    except ServiceUnavailable:
        asked = len(chat.requests)
        run(work, WINDOWS[failed_in])
        assert len(chat.requests) == asked
    run(work, *WINDOWS[failed_in + 1 :])
    assert store.atoms == _undisturbed(model)[0]

"""Reconcile: the same fact once, the newest value readable, and twice changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.reconcile import NewAtoms, Reconciler, ScopeAtoms, WarmScopes
from flows.window import ScopeWindows, WindowPolicy
from stores.errors import ServiceUnavailable
from stores.protocols import Vectors
from stores.records import Atom, Window
from tests.rig.events import at, atom, sourced
from tests.rig.still import OnesEmbedder, StillClock


def _final(*batches: Sequence[Atom]) -> dict[str, Atom]:
    scope = ScopeAtoms()
    stored: dict[str, Atom] = {}
    for batch in batches:
        stored |= {written.atom_id: written for written in scope.apply(batch).changed}
    return stored


def test_the_same_fact_nine_times_is_one_atom_with_all_its_sources() -> None:
    said = [atom(f"a{n}", "User likes tea." if n % 2 else "user  LIKES tea") for n in range(9)]
    final = _final(*([one] for one in said))
    assert list(final) == ["a0"]
    assert final["a0"].source_event_ids == tuple(f"event-of-a{n}" for n in range(9))


def test_a_newer_value_supersedes_and_keeps_the_older_one() -> None:
    final = _final(
        [atom("a", "User lives in Lisbon", slot="home.city")],
        [atom("b", "User lives in Porto", slot="home.city", seconds=60)],
    )
    assert (final["a"].status, final["a"].superseded_by) == ("superseded", "b")
    assert final["a"].valid_until == at(60)
    assert (final["b"].status, final["b"].superseded_by) == ("active", None)


def test_an_older_value_that_is_imported_late_does_not_win() -> None:
    final = _final(
        [atom("b", "User lives in Porto", slot="home.city", seconds=60)],
        [atom("a", "User lives in Lisbon", slot="home.city")],
    )
    assert final["a"].status == "superseded"
    assert final["b"].status == "active"


def test_a_value_that_comes_back_is_a_new_atom() -> None:
    final = _final(
        [atom("a", "User lives in Lisbon", slot="home.city")],
        [atom("b", "User lives in Porto", slot="home.city", seconds=60)],
        [atom("c", "User lives in Lisbon", slot="home.city", seconds=120)],
    )
    assert [one.atom_id for one in final.values() if one.status == "active"] == ["c"]


def test_other_slots_and_no_slot_stand_side_by_side() -> None:
    final = _final(
        [atom("a", "User lives in Lisbon", slot="home.city"), atom("b", "User has a cat")],
        [atom("c", "User is called Ana", slot="name"), atom("d", "User has a dog")],
    )
    assert all(one.status == "active" for one in final.values())


def test_values_in_any_order_end_the_same() -> None:
    values = [
        atom(name, f"User lives in {name}", slot="home.city", seconds=n * 60)
        for n, name in enumerate(["Lisbon", "Porto", "Faro", "Braga"])
    ]
    ends = [_final(*([one] for one in order)) for order in permutations(values)]
    assert all(end == ends[0] for end in ends)
    assert [end.superseded_by for end in ends[0].values()].count(None) == 1


texts = st.sampled_from(["lives in A", "lives in B", "lives in C", "likes tea"])
slots = st.sampled_from(["home", None])


@given(
    st.lists(st.tuples(texts, slots, st.integers(0, 5)), min_size=1, max_size=12),
    st.data(),
)
def test_a_crash_that_repeats_windows_changes_nothing(
    said: list[tuple[str, str | None, int]], data: st.DataObject
) -> None:
    batches = [
        [atom(f"a{n}", text, slot=slot, seconds=minute * 60)]
        for n, (text, slot, minute) in enumerate(said)
    ]
    undisturbed = _final(*batches)
    killed_after = data.draw(st.integers(1, len(batches)))
    resumed_from = data.draw(st.integers(0, killed_after))
    assert _final(*batches[:killed_after], *batches[resumed_from:]) == undisturbed


@given(st.lists(st.tuples(texts, slots, st.integers(0, 5)), min_size=1, max_size=8))
def test_a_window_applied_again_names_the_same_atoms(
    said: list[tuple[str, str | None, int]],
) -> None:
    """Killed after storing and before producing, the next run must produce all of them."""
    scope = ScopeAtoms()
    batches = [
        [atom(f"a{n}", text, slot=slot, seconds=minute * 60)]
        for n, (text, slot, minute) in enumerate(said)
    ]
    for batch in batches:
        first = {one.atom_id for one in scope.apply(batch).touched}
        again = scope.apply(batch)
        assert first
        assert {one.atom_id for one in again.touched} == first
        assert again.changed == ()


class _Store:
    def __init__(self) -> None:
        self.atoms: dict[str, Atom] = {}
        self.fail = False
        self.reads = 0

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        if self.fail:
            service, message = "milvus", "down"
            raise ServiceUnavailable(service, message)
        self.atoms |= {one.atom_id: one for one in atoms}

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        self.reads += 1
        return list(self.atoms.values())

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        return self.atoms.get(atom_id)


def _item(*atoms: Atom) -> NewAtoms:
    windows = ScopeWindows(WindowPolicy(user_turns=1)).on_event(sourced())
    assert isinstance(windows[0], Window)
    return NewAtoms(windows[0], atoms, (), 1)


def test_a_failed_write_leaves_memory_no_further_than_the_store() -> None:
    store = _Store()
    work = Reconciler(store, OnesEmbedder(), StillClock())
    lisbon = atom("a", "User lives in Lisbon", slot="home.city")
    porto = atom("b", "User lives in Porto", slot="home.city", seconds=60)
    asyncio.run(work([_item(lisbon)], None))
    store.fail = True
    with pytest.raises(ServiceUnavailable):
        asyncio.run(work([_item(porto)], None))
    assert store.atoms["a"].status == "active"
    store.fail = False
    asyncio.run(work([_item(porto)], None))
    assert store.atoms["a"].superseded_by == "b"
    assert store.atoms["b"].status == "active"


def test_a_warm_scope_is_not_read_again_and_the_coldest_makes_room() -> None:
    store = _Store()
    work = Reconciler(store, OnesEmbedder(), StillClock())
    for n in range(3):
        asyncio.run(work([_item(atom(f"a{n}", f"fact {n}"))], None))
    assert store.reads == 1
    warm = WarmScopes(capacity=2)
    for scope in "abc":
        warm.put(scope, ScopeAtoms())
        warm.get("a")
    assert [scope for scope in "abc" if warm.get(scope)] == ["a", "c"]

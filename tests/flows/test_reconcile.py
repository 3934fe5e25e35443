"""Reconcile: the same fact once, the newest value readable, and twice changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.reconcile import ScopeAtoms, normalised
from stores.records import Atom
from tests.rig.events import at, atom


def _final(*batches: Sequence[Atom]) -> dict[str, Atom]:
    scope = ScopeAtoms()
    stored: dict[str, Atom] = {}
    for batch in batches:
        stored |= {written.atom_id: written for written in scope.apply(batch).changed}
    return stored


def _as_of_now(final: dict[str, Atom]) -> dict[str, Atom]:
    return {
        atom_id: one.model_copy(update={"version": 1, "supersedes": ()})
        for atom_id, one in final.items()
    }


def test_the_same_fact_nine_times_is_one_atom_with_all_its_sources() -> None:
    said = [atom(f"a{n}", "User likes tea." if n % 2 else "user  LIKES tea") for n in range(9)]
    final = _final(*([one] for one in said))
    assert list(final) == ["a0"]
    assert final["a0"].source_event_ids == tuple(f"event-of-a{n}" for n in range(9))
    assert final["a0"].statements == tuple((f"event-of-a{n}",) for n in range(9))
    assert final["a0"].version == 9


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
    for end in ends:
        # How it came about differs: how often each was changed, and what was told beside it.
        assert _as_of_now(end) == _as_of_now(ends[0])
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


@given(st.lists(texts, min_size=1, max_size=8))
def test_a_window_applied_again_later_tells_the_scenes_the_same(said: list[str]) -> None:
    """Killed after later windows were stored too: what came in their place is not this one's."""
    scope = ScopeAtoms()
    windows = [
        [atom(f"a{n}", text, slot="home", seconds=60 * n).model_copy(update={"window_id": f"w{n}"})]
        for n, text in enumerate(said)
    ]

    def told(window: Sequence[Atom]) -> set[str]:
        applied = scope.apply(window)
        return {one.atom_id for one in applied.touched} - applied.newer

    assert [told(one) for one in windows] == [told(one) for one in windows]


def _active(final: dict[str, Atom]) -> set[str]:
    return {normalised(one.text) for one in final.values() if one.status == "active"}


@given(st.lists(st.tuples(texts, slots, st.integers(0, 5)), min_size=1, max_size=8), st.randoms())
def test_what_holds_does_not_depend_on_the_order(
    said: list[tuple[str, str | None, int]], random: Random
) -> None:
    batches = [
        [atom(f"a{n}", text, slot=slot, seconds=minute * 60)]
        for n, (text, slot, minute) in enumerate(said)
    ]
    shuffled = list(batches)
    random.shuffle(shuffled)
    assert _active(_final(*shuffled)) == _active(_final(*batches))


denials = st.sampled_from(["User has a cat", "User has no cat", "User doesn't have a cat"])


@given(st.lists(st.tuples(denials, st.integers(0, 5)), min_size=1, max_size=8), st.randoms())
def test_a_fact_and_its_denial_never_hold_together(
    said: list[tuple[str, int]], random: Random
) -> None:
    batches = [[atom(f"a{n}", text, seconds=minute * 60)] for n, (text, minute) in enumerate(said)]
    final = _final(*batches)
    held = {text.split()[2:3] == ["a"] for text in _active(final)}
    assert len(held) == 1
    random.shuffle(batches)
    shuffled = {text.split()[2:3] == ["a"] for text in _active(_final(*batches))}
    newest = max(minute for _, minute in said)
    if len({text == "User has a cat" for text, minute in said if minute == newest}) == 1:
        assert shuffled == held  # said at the same time, either may stand


@given(st.lists(st.tuples(texts, slots, st.integers(0, 5)), min_size=1, max_size=10))
def test_a_slot_never_has_two_values(said: list[tuple[str, str | None, int]]) -> None:
    scope = ScopeAtoms()
    for n, (text, slot, minute) in enumerate(said):
        scope.apply([atom(f"a{n}", text, slot=slot, seconds=minute * 60)])
        active = [one.slot for one in scope if one.status == "active" and one.slot]
        assert len(active) == len(set(active))


def _ends(text: str, denial: str, *, slot: str | None = None) -> list[str]:
    final = _final([atom("a", text, slot=slot)], [atom("b", denial, slot=slot, seconds=60)])
    return [one.text for one in final.values() if one.status == "active"]


@pytest.mark.parametrize(
    ("text", "denial"),
    [
        ("User has a sister", "User has no sister"),
        ("User eats meat", "User no longer eats meat"),
        ("User likes coffee", "User doesn't like coffee anymore"),
        ("User is a vegetarian", "User is not a vegetarian"),
        ("User does not drive", "User drives"),
        ("用户有姐姐", "用户没有姐姐"),
        ("用户喜欢咖啡", "用户不喜欢咖啡"),
    ],
)
def test_a_denial_retires_what_it_denies(text: str, denial: str) -> None:
    assert _ends(text, denial) == [denial]


def test_in_a_slot_a_denial_retires_whatever_the_value_was() -> None:
    assert _ends("User's sister is called Ana", "User has no sister", slot="family.sister") == [
        "User has no sister"
    ]
    assert _ends("User has no sister", "User's sister is called Ana", slot="family.sister") == [
        "User's sister is called Ana"
    ]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("User worked at Acme", "User does not work at Acme"),
        ("User likes tea but does not like coffee", "User likes coffee"),
        ("User did not go to Oslo", "User goes to Rome"),
        ("User has no cat and no dog", "User has a cat and a dog"),
    ],
)
def test_what_is_no_plain_denial_retires_nothing(text: str, other: str) -> None:
    assert _ends(text, other) == [text, other]


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("User likes tea", "The user likes  tea."),
        ("User does not eat meat", "User doesn't eat meat"),
        ("User really likes the sea", "user likes the sea"),
        ("用户喜欢喝茶。", "用户 喜欢喝茶"),
        ("User lives in Ｏslo", "User lives in Oslo"),
    ],
)
def test_near_exact_repeats_are_one(text: str, again: str) -> None:
    assert list(_final([atom("a", text)], [atom("b", again, seconds=60)])) == ["a"]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("User has 2 cats", "User has 3 cats"),
        ("User likes Ana's dog", "User likes Eva's dog"),
        ("Ana told Ben about it", "Ben told Ana about it"),
        ("User moved from Oslo to Rome", "User moved from Rome to Oslo"),
        ("User works in C", "User works in C++"),
        ("User takes vitamin A", "User takes vitamin"),
        ("User lived in Oslo", "User lives in Oslo"),
        ("用户有两只猫", "用户有三只猫"),
    ],
)
def test_what_differs_in_a_number_a_name_or_an_order_is_not_the_same(text: str, other: str) -> None:
    final = _final([atom("a", text)], [atom("b", other, seconds=60)])
    assert [one.status for one in final.values()] == ["active", "active"]


def test_another_type_is_not_the_same() -> None:
    final = _final([atom("a", "User runs")], [atom("b", "User runs", type="episodic")])
    assert len(final) == 2


def test_what_has_come_to_its_end_is_stale_when_a_later_window_comes() -> None:
    scope = ScopeAtoms()
    scope.apply([atom("trip", "User is in Rome", valid_until=at(100))])
    assert scope.apply([], at=at(99)).touched == ()
    ended = scope.apply([], at=at(100))
    assert [(one.atom_id, one.status, one.valid_until) for one in ended.changed] == [
        ("trip", "stale", at(100))
    ]
    assert scope.apply([], at=at(200)).touched == ()


def test_what_ended_before_it_came_is_stale_from_the_start() -> None:
    scope = ScopeAtoms()
    scope.apply([atom("now", "User likes tea", seconds=500)])
    scope.apply([atom("trip", "User is in Rome", valid_until=at(100))])
    assert [one.status for one in scope] == ["active", "stale"]


def test_an_end_that_a_killed_run_did_not_produce_is_named_again() -> None:
    scope = ScopeAtoms()
    scope.apply([atom("trip", "User is in Rome", valid_until=at(100))])
    first = scope.apply([atom("b", "User likes tea", seconds=200)])
    assert {one.atom_id for one in first.touched} == {"trip", "b"}
    again = scope.apply([atom("b", "User likes tea", seconds=200)])
    assert {one.atom_id for one in again.touched} == {"trip", "b"}
    assert again.changed == ()


def test_a_restated_end_is_moved_and_one_said_after_the_end_is_new() -> None:
    scope = ScopeAtoms()
    scope.apply([atom("a", "User is on holiday", valid_until=at(100))])
    scope.apply([atom("b", "User is on holiday", seconds=50, valid_until=at(300))])
    assert [(one.atom_id, one.valid_until) for one in scope] == [("a", at(300))]
    scope.apply([atom("c", "User is on holiday", seconds=400, valid_until=at(500))])
    assert [(one.atom_id, one.status) for one in scope] == [("a", "stale"), ("c", "active")]


def test_history_that_is_said_again_lands_on_history() -> None:
    scope = ScopeAtoms()
    scope.apply([atom("a", "User lives in Oslo", slot="home.city")])
    scope.apply([atom("b", "User lives in Rome", slot="home.city", seconds=100)])
    scope.apply([atom("c", "User lives in Oslo", slot="home.city", seconds=50)])
    assert [(one.atom_id, one.status) for one in scope] == [("a", "superseded"), ("b", "active")]
    assert len(next(iter(scope)).statements) == 2


def test_a_reader_who_sees_new_and_old_finds_the_old_one_listed() -> None:
    scope = ScopeAtoms()
    scope.apply([atom("a", "User lives in Oslo", slot="home.city")])
    changed = scope.apply(
        [
            atom("b", "User lives in Rome", slot="home.city", seconds=60),
            atom("c", "User lives in Kyiv", slot="home.city", seconds=90),
        ]
    ).changed
    newest = next(one for one in changed if one.status == "active")
    assert set(newest.supersedes) == {"a", "b"}

"""Forgetting and rejecting: what goes, what comes back, what never does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.reconcile import Reconciler, StoredAtoms
from stores.errors import ServiceUnavailable
from stores.records import Atom
from tests.flows.reconcile_rig import (
    Answering,
    KeptOutOf,
    MemoryStore,
    Shown,
    Words,
    decide,
    down,
    forget_request,
    item,
    readable,
    reject_request,
    run,
)
from tests.rig.events import at, atom
from tests.rig.still import StillClock

OSLO = atom("oslo", "User lives in Oslo", slot="home.city")
ROME = atom("rome", "User lives in Rome", slot="home.city", seconds=60)
KYIV = atom("kyiv", "User lives in Kyiv", slot="home.city", seconds=120)


def _work(store: MemoryStore, **given: Any) -> Reconciler:
    return Reconciler(store, Words(), StillClock(), **given)


def _told(*items: Any, **given: Any) -> tuple[MemoryStore, list[StoredAtoms]]:
    store = MemoryStore()
    done = run(_work(store, **given), *(item(i) if isinstance(i, Atom) else i for i in items))
    return store, done


def _always(answer: object) -> Callable[[Shown], object]:
    return lambda _: answer


# --- forgetting --------------------------------------------------------------------------------


def test_an_atom_goes_with_its_only_source_and_the_value_before_holds_again() -> None:
    store, done = _told(OSLO, ROME, forget_request("event-of-rome"))
    assert list(store.atoms) == ["oslo"]
    assert store.atoms["oslo"].status == "active"
    assert (store.atoms["oslo"].superseded_by, store.atoms["oslo"].valid_until) == (None, None)
    assert done[-1].removed == ("rome",)
    assert [one.atom_id for one in done[-1].touched] == ["oslo"]
    assert done[-1].tombstone is not None
    assert done[-1].tombstone.atom_ids == ("rome",)
    assert "rome" not in store.vectors


def test_a_value_in_the_middle_leaves_no_gap() -> None:
    store, _ = _told(OSLO, ROME, KYIV, forget_request("event-of-rome"))
    assert readable(store) == [KYIV.text]
    assert store.atoms["oslo"].superseded_by == "kyiv"
    assert store.atoms["oslo"].valid_until == at(120)
    assert "rome" not in str(store.atoms.values())


def test_one_of_two_statements_is_taken_off() -> None:
    again = atom("again", OSLO.text, slot="home.city", seconds=60)
    store, done = _told(OSLO, again, forget_request("event-of-oslo"))
    assert done[-1].removed == ()
    kept = store.atoms["oslo"]
    assert (kept.source_event_ids, kept.statements) == (("event-of-again",), ())
    assert kept.version == 3


def test_a_statement_needs_every_one_of_its_events() -> None:
    both = atom("both", "User likes tea", sources=("e1", "e2"))
    store, _ = _told(both, forget_request("e2"))
    assert store.atoms == {}


def test_what_had_an_end_of_its_own_does_not_come_back_after_it() -> None:
    trip = OSLO.model_copy(update={"valid_until": at(30)})
    store, _ = _told(trip, ROME, forget_request("event-of-rome"))
    kept = store.atoms["oslo"]
    assert (kept.status, kept.valid_until, kept.superseded_by) == ("stale", at(30), None)


def test_what_was_made_out_of_others_goes_with_each_of_them_and_the_rest_comes_back() -> None:
    dog, cat = atom("dog", "User has a dog Rex"), atom("cat", "User has a cat Tom", seconds=60)
    text = "User has a dog Rex and a cat Tom"

    def merges(_: Shown) -> object:
        return [decide("merge", "m1", text=text)]

    for forgotten, left in (("event-of-dog", cat), ("event-of-cat", dog)):
        store, _ = _told(dog, cat, forget_request(forgotten), chat=Answering(merges))
        assert readable(store) == [left.text]
        assert len(store.atoms) == 1


def test_a_forgotten_retraction_gives_back_what_it_took() -> None:
    def retracts(_: Shown) -> object:
        return [decide("retract", "m1")]

    back = atom("back", "User misspoke: not in Oslo", seconds=60)
    store, _ = _told(OSLO, back, forget_request("event-of-back"), chat=Answering(retracts))
    assert readable(store) == [OSLO.text]


def test_sessions_and_users_are_forgotten_without_a_list_of_events() -> None:
    other = atom("other", "User likes tea", session_id="s2")
    later = atom("later", "User likes figs", seconds=900)
    asked = forget_request(target="session", session_id="s1", seconds=500)
    store, _ = _told(OSLO, other, later, asked)
    assert readable(store) == [later.text, other.text]
    store, _ = _told(OSLO, other, later, forget_request(target="user", user_id="ana", seconds=500))
    assert readable(store) == [later.text]


def test_what_was_forgotten_on_its_way_is_not_stored() -> None:
    asked = forget_request("event-of-oslo")
    store, done = _told(OSLO, ROME, kept_out=KeptOutOf(asked.tombstone))
    assert readable(store) == [ROME.text]
    assert [one.reason for one in done[0].refused] == ["forgotten"]


@pytest.mark.parametrize("point", ["fail_before", "fail_after"])
def test_a_killed_forgetting_is_announced_before_anything_is_gone(point: str) -> None:
    store, told = MemoryStore(), list[StoredAtoms]()
    work = _work(store, announce=told.append)
    run(work, item(OSLO), item(ROME))
    setattr(store, point, down())
    asked = forget_request("event-of-rome")
    with pytest.raises(ServiceUnavailable):
        run(work, asked)
    assert told[0].removed == ("rome",)
    run(_work(store, announce=told.append), asked)
    assert readable(store) == [OSLO.text]
    assert list(store.atoms) == ["oslo"]


def test_forgetting_twice_is_forgetting_once() -> None:
    asked = forget_request("event-of-rome")
    once, _ = _told(OSLO, ROME, asked)
    twice, _ = _told(OSLO, ROME, asked, asked)
    assert once.atoms == twice.atoms


# --- rejecting ---------------------------------------------------------------------------------


def test_a_rejected_value_gives_back_the_one_before() -> None:
    store, done = _told(OSLO, ROME, reject_request("rome"))
    assert readable(store) == [OSLO.text]
    assert store.atoms["rome"].status == "rejected"
    assert {one.atom_id for one in done[-1].touched} == {"rome", "oslo"}
    assert done[-1].tombstone is not None
    assert done[-1].tombstone.text_keys


def test_a_rejection_in_the_middle_and_all_with_the_same_value() -> None:
    twin = atom("twin", "user lives in ROME!", seconds=70, type="episodic")
    store, _ = _told(OSLO, ROME, KYIV, twin, reject_request("rome"))
    assert store.atoms["twin"].status == "rejected"
    assert store.atoms["oslo"].superseded_by == "kyiv"
    assert readable(store) == [KYIV.text]


def test_rejecting_twice_names_the_same_atoms() -> None:
    asked = reject_request("rome")
    _, done = _told(OSLO, ROME, asked, asked)
    first, again = ({one.atom_id for one in result.touched} for result in done[-2:])
    assert first == again


_DISGUISES = [
    "User lives in Rome",
    "user LIVES  in rome.",
    "User lives in R\u043eme",
    "User lives\u200b in Rome",
    "The user lives in Rome",
]


@pytest.mark.parametrize("text", _DISGUISES)
@pytest.mark.parametrize("registry", [True, False])
def test_a_rejected_value_lands_on_what_was_rejected(text: str, registry: bool) -> None:
    store = MemoryStore()
    run(_work(store), item(OSLO), item(ROME))
    (done,) = run(_work(store), reject_request("rome"))
    assert done.tombstone is not None
    kept_out = KeptOutOf(done.tombstone) if registry else None
    again = item(atom("again", text, slot="home.city", seconds=500))
    (refused,) = run(_work(store, kept_out=kept_out), again)
    assert [one.reason for one in refused.refused] == ["rejected_value"]
    assert set(store.atoms) == {"oslo", "rome"}
    assert store.atoms["rome"].status == "rejected"
    assert readable(store) == [OSLO.text]
    before = dict(store.atoms)
    (refused,) = run(_work(store, kept_out=kept_out), again)
    assert [one.reason for one in refused.refused] == ["rejected_value"]
    assert store.atoms == before


def test_without_a_unit_a_rejected_value_is_stored_as_rejected() -> None:
    asked = reject_request("rome")
    _, done = _told(ROME, asked)
    assert done[-1].tombstone is not None
    kept_out = KeptOutOf(done[-1].tombstone)
    store, again = _told(ROME, OSLO, kept_out=kept_out)  # as after a rebuild of the stores
    assert store.atoms["rome"].status == "rejected"
    assert readable(store) == [OSLO.text]
    assert [one.reason for one in again[0].refused] == ["rejected_value"]
    _, twice = _told(ROME, ROME, kept_out=kept_out)
    assert [one.reason for one in twice[1].refused] == ["rejected_value"]


def test_a_model_cannot_bring_a_rejected_value_back() -> None:
    plans = {
        "skip": [decide("skip", "m1")],
        "update": [decide("update", "m1", text="User lives in Rome")],
        "merge": [decide("merge", "m1", text="User lives in Rome.")],
    }
    for name, plan in plans.items():
        store = MemoryStore()
        run(_work(store), item(OSLO), item(ROME), reject_request("rome"))
        new = atom("new", "User moved house in Rome, not Oslo", seconds=500)
        run(_work(store, chat=Answering(_always(plan))), item(new))
        assert store.atoms["rome"].status == "rejected", name
        assert ROME.text not in readable(store), name


def test_what_a_decision_retired_comes_back_when_its_successor_is_rejected() -> None:
    def updates(_: Shown) -> object:
        return [decide("update", "m1")]

    old = atom("old", "User has a dog called Rex")
    new = atom("new", "User gave away the dog called Rex", seconds=60)
    store, _ = _told(old, new, chat=Answering(updates))
    assert readable(store) == [new.text]
    run(_work(store), reject_request("new"))
    assert readable(store) == [old.text]


def test_a_rejected_whole_takes_the_new_part_along_and_gives_back_the_value_before() -> None:
    new = atom("new", "User moved from Oslo to Rome", seconds=60)
    text = "User lives in Rome, moved there from Oslo"

    def updates(_: Shown) -> object:
        return [decide("update", "m1", text=text)]

    store, _ = _told(OSLO, new, chat=Answering(updates))
    (whole,) = [one for one in store.atoms.values() if one.status == "active"]
    run(_work(store), reject_request(whole.atom_id))
    assert store.atoms["new"].status == "rejected"
    assert readable(store) == [OSLO.text]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from([OSLO.text, ROME.text, KYIV.text])),
        st.tuples(st.just("reject"), st.just(ROME.text)),
        st.tuples(st.just("forget"), st.sampled_from([OSLO.text, KYIV.text])),
        st.tuples(st.just("trip"), st.sampled_from([OSLO.text, ROME.text])),
    ),
    max_size=10,
)


@given(steps, st.sampled_from(["store", "skip", "update", "retract"]))
def test_no_sequence_launders_a_rejected_value(said: list[tuple[str, str]], action: str) -> None:
    store = MemoryStore()

    def all_near(lines: Shown) -> object:
        known = [line[0] for line in lines["known"]]
        return [decide(action, *known, memory=line[0]) for line in lines["new"]]

    work = _work(store, chat=Answering(all_near))
    numbers = itertools.count()
    rejected = False
    for what, text in [("say", ROME.text), *said]:
        seconds = 60.0 * next(numbers)
        if what in {"say", "trip"}:
            end = at(seconds + 30) if what == "trip" else None
            one = atom(f"a{seconds:.0f}", text, slot="home.city", seconds=seconds, valid_until=end)
            run(work, item(one))
        elif what == "reject":
            named = [one.atom_id for one in store.atoms.values() if one.text == text]
            run(work, reject_request(*(named or ["none"])))
            rejected = rejected or bool(named)
        else:
            events = [
                event
                for one in store.atoms.values()
                if one.text == text
                for event in one.source_event_ids
            ]
            run(work, forget_request(*(events or ["none"])))
        active = [one for one in store.atoms.values() if one.status == "active"]
        assert len(active) <= 1, "a slot with two values"
        wrong = [one for one in store.atoms.values() if one.text == ROME.text]
        if rejected:
            assert {one.status for one in wrong} <= {"rejected"}
            assert len(wrong) <= len({one.atom_id for one in wrong})

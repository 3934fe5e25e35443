"""A request carried out: what goes, what stays, and that dying on the way loses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flows import outputs
from flows.forget.request import Forgetting
from flows.forget.work import ForgettingWork
from flows.outputs import Topics
from flows.reconcile import Reconciler, StoredAtoms
from stores.ids import event_key
from stores.records import Atom, IndexedEvent, Outcome, OutRecord, SceneJob, SourcedEvent
from stores.tombstones import tombstone_of
from tests.rig.events import at, atom, sourced
from tests.rig.memory_world import Killed, MemoryWorld
from tests.rig.still import OnesEmbedder, StillClock

SCOPE = "acme/helper/ana"
TOPICS = Topics("sediment")


def asked(target: str = "user", *, kind: str = "forget", **request: Any) -> SourcedEvent:
    return sourced(
        "r", seconds=100, offset=10, type=kind, role=None, content=None,
        request={"target": target, **request},
    )  # fmt: skip


def world(*, indexed: bool = True) -> MemoryWorld:
    """Two sessions; one atom stands on both, one was superseded by another session's."""
    made = MemoryWorld()
    said = [("e1", "s1"), ("e2", "s1"), ("e3", "s2"), ("e4", "s2")]
    for place, (name, session) in enumerate(said):
        event = sourced(name, session_id=session, seconds=place, offset=place)
        if indexed:
            made.events[name] = IndexedEvent.of(event)
        made.answers[f"answer about {name}"] = (SCOPE, event_key(SCOPE, name))
    home: dict[str, Any] = {"slot": "home.city"}
    atoms = [
        atom("once", "User works as a nurse.", sources=["e1"]),
        atom(
            "twice", "User likes tea.", seconds=3, sources=["e2", "e3"],
            statements=(("e2",), ("e3",)),
        ),
        atom("old", "User lives in Lisbon.", sources=["e2"], status="superseded",
             superseded_by="new", valid_until=at(3), **home),
        atom("new", "User lives in Porto.", seconds=3, sources=["e4"], session_id="s2",
             supersedes=("old",), **home),
    ]  # fmt: skip
    made.atoms = {one.atom_id: one for one in atoms}
    made.answers["answer about no event"] = (SCOPE, "another atom")
    return made


def carry_out(made: MemoryWorld, request: SourcedEvent) -> list[OutRecord]:
    """Do what the reconcile stage does with a request, and what is produced behind it."""
    announced: list[StoredAtoms] = []
    work = ForgettingWork(
        Reconciler(
            made, OnesEmbedder(), StillClock(), kept_out=made.known, announce=announced.append
        ),
        atoms=made,
        index=made,
        journal=made,
        log=made,
    )
    item = Forgetting(request, made.known.add(tombstone_of(request)))
    (result,) = asyncio.run(work([item], None))
    told = [one for done in announced for one in outputs.atom_records(done, TOPICS)]
    return [*told, *outputs.applied(item, result, TOPICS)]


def outcome(records: list[OutRecord]) -> Outcome:
    (found,) = [one for one in records if one.topic == TOPICS.outcomes]
    return Outcome.model_validate_json(found.value or b"")


def topic_after(records: list[OutRecord]) -> dict[str, Atom | None]:
    """Give the atoms topic's last record of each key that was written."""
    return {
        (one.key or b"").decode(): Atom.model_validate_json(one.value) if one.value else None
        for one in records
        if one.topic == TOPICS.atoms
    }


REQUESTS = {
    "user": asked(),
    "session": asked("session"),
    "event": asked("event", event_ids=["e2"]),
    "atom": asked("atom", atom_ids=["new"]),
    "reject": asked("atom", kind="reject", atom_ids=["once"]),
}
LEFT = {
    "user": (set(), set(), {"no event"}),
    "session": ({"twice", "new"}, {"e3", "e4"}, {"e3", "e4", "no event"}),
    "event": ({"once", "twice", "new"}, {"e1", "e3", "e4"}, {"e1", "e3", "e4", "no event"}),
    "atom": ({"once", "twice", "old"}, {"e1", "e2", "e3"}, {"e1", "e2", "e3", "no event"}),
    "reject": (
        {"once", "twice", "old", "new"},
        {"e1", "e2", "e3", "e4"},
        {"e1", "e2", "e3", "e4", "no event"},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_stands_on_nothing_else_goes(name: str) -> None:
    made = world()
    records = carry_out(made, REQUESTS[name])
    atoms, events, answers = LEFT[name]
    assert (set(made.atoms), set(made.events)) == (atoms, events)
    assert {one.removeprefix("answer about ") for one in made.answers} == answers
    assert outcome(records).result == "applied"
    gone = {"once", "twice", "old", "new"} - atoms
    assert {one for one, value in topic_after(records).items() if value is None} == gone
    for one, value in topic_after(records).items():
        assert made.atoms.get(one) == value, "the topic says what the store holds"
    jobs = [SceneJob.model_validate_json(r.value or b"") for r in records
            if r.topic == TOPICS.scene_jobs]  # fmt: skip
    assert [set(job.removed_atom_ids) for job in jobs] == [gone]


def test_a_user_without_atoms_may_have_texts_that_must_go() -> None:
    made = world()
    made.atoms = {}
    records = carry_out(made, REQUESTS["user"])
    assert [one.topic for one in records].count(TOPICS.scene_jobs) == 1


def test_an_atom_loses_the_statement_and_keeps_the_rest() -> None:
    made = world()
    carry_out(made, REQUESTS["session"])
    assert made.atoms["twice"].source_event_ids == ("e3",)


def test_what_a_forgotten_atom_had_superseded_holds_again() -> None:
    made = world()
    carry_out(made, REQUESTS["atom"])
    assert made.atoms["old"].status == "active"


def test_a_rejected_atom_stays_and_is_active_no_more() -> None:
    made = world()
    records = carry_out(made, REQUESTS["reject"])
    assert made.atoms["once"].status == "rejected"
    assert made.known.rejects(SCOPE, "user works as a NURSE")
    written = topic_after(records)["once"]
    assert written is not None
    assert written.status == "rejected"


def test_a_rejection_of_nothing_is_skipped_with_a_reason() -> None:
    end = outcome(carry_out(world(), asked("atom", kind="reject", atom_ids=["nobody"])))
    assert (end.result, end.reason) == ("skipped", "unknown_atom")


def test_forgetting_what_is_not_there_is_carried_out() -> None:
    assert outcome(carry_out(world(), asked("atom", atom_ids=["nobody"]))).result == "applied"


def test_a_session_whose_events_were_never_indexed_goes_as_well() -> None:
    made = world(indexed=False)
    carry_out(made, REQUESTS["session"])
    assert "once" not in made.atoms
    assert made.atoms["new"].source_event_ids == ("e4",)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_process_that_dies_before_any_effect_ends_in_the_same_state(name: str) -> None:
    undisturbed = world()
    records = carry_out(undisturbed, REQUESTS[name])
    effects = len(undisturbed.effects)
    assert effects >= 2
    for kill_at in range(effects):
        made = world()
        made.kill_at = kill_at
        with pytest.raises(Killed):
            carry_out(made, REQUESTS[name])
        made.restart()
        again = carry_out(made, REQUESTS[name])
        assert made.atoms == undisturbed.atoms, kill_at
        assert made.events == undisturbed.events, kill_at
        assert made.answers == undisturbed.answers, kill_at
        assert outcome(again) == outcome(records), kill_at
        gone = {one for one, value in topic_after(records).items() if value is None}
        assert {one for one, value in topic_after(again).items() if value is None} == gone
        assert set(made.known.of_request(SCOPE, "r").event_keys) == set(
            undisturbed.known.of_request(SCOPE, "r").event_keys
        )


@pytest.mark.parametrize("name", REQUESTS)
def test_carried_out_again_it_changes_nothing(name: str) -> None:
    made = world()
    records = carry_out(made, REQUESTS[name])
    atoms, events = dict(made.atoms), dict(made.events)
    made.restart()
    again = carry_out(made, REQUESTS[name])
    assert (made.atoms, made.events) == (atoms, events)
    assert outcome(again) == outcome(records)


def test_after_a_replay_another_memory_may_have_the_id_of_one_that_went() -> None:
    """Of window e1, e2 the first atom went with e1; extracted again, e2's memory is the first."""
    made = world()
    request = asked("atom", atom_ids=["once"])
    carry_out(made, request)
    made.restart()
    again = atom("once", "User owns a boat.", sources=["e2"])
    made.atoms["once"] = again
    records = carry_out(made, request)
    assert made.atoms["once"] == again
    assert "e2" in made.events
    assert "once" not in topic_after(records)


def test_a_store_that_is_ahead_of_a_replay_keeps_what_came_after_the_request() -> None:
    made = world()
    made.events["e9"] = IndexedEvent.of(sourced("e9", seconds=200, offset=20))
    made.atoms["later"] = atom("later", "User owns a boat.", seconds=200, sources=["e9"])
    for name in ("user", "session"):
        carry_out(made, REQUESTS[name])
    assert set(made.atoms) == {"later"}
    assert set(made.events) == {"e9"}

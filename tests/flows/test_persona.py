"""Personas: when one is due, what a model may write, what a failed run keeps, and the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow, Stream
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, run_main
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.persona import QueuedPersonaJob, hold_jobs
from flows.persona.draft import LIMITS, Draft, faults, read_draft, render_draft
from flows.persona.triggers import due
from flows.persona.writer import persona_by_rules
from flows.scenes.errors import RunRefused
from flows.scenes.writer import RULES
from stores.errors import MalformedAnswer, ServiceUnavailable
from stores.records import Atom, LogRecord, PersonaJob, Position, Profile, Tombstone
from stores.scenes import ProfileFile
from stores.tombstones import Tombstones
from stores.value_keys import value_keys
from tests.rig.events import at
from tests.rig.layers import SCOPE, LayerWorld, fact, joined, shown, superseded

World = Callable[..., LayerWorld]
A = fact(1, "User's name is Ana.", slot="name")
B = fact(2, "User lives in Porto.", slot="home.city")
C = fact(3, "User works as a baker.", slot="job.title")
GOOD = {
    "name": "Ana",
    "archetype": "A baker in Porto.",
    "basics": ["Lives in Porto.", "Works as a baker."],
    "preferences": [],
    "interests": ["Swimming."],
    "speak": ["Briefly."],
    "decide": [],
    "traits": ["Takes things as they come."],
    "tags": ["calm", "early riser", "baker"],
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made: list[LayerWorld] = []

    def make(**fields: Any) -> LayerWorld:
        made.append(LayerWorld(tmp_path / str(len(made)), **fields))
        return made[-1]

    yield make
    for one in made:
        one.close()


def asked(reason: str, job: str = "asked", **fields: Any) -> PersonaJob:
    given = {"job_id": job, "scope": SCOPE, "reason": reason, "occurred_at": at(3600)}
    return PersonaJob(**{**given, **fields})


# --- triggers --------------------------------------------------------------------------------


def scene(*atoms: str, version: int = 1) -> Profile:
    return Profile(
        profile_id="p", scope=SCOPE, kind="scene", path=f"s{version}.md", title="t", text="x",
        atom_ids=atoms, version=version, content_hash="h", created_at=at(0), updated_at=at(0),
        generator="g",
    )  # fmt: skip


def persona(body: str = "Body.", *atoms: str) -> ProfileFile:
    return ProfileFile("persona", "t", body, at(0), at(0), atoms=atoms)


def trigger(
    known: ProfileFile | None,
    scenes: Sequence[Profile],
    atoms: Sequence[Atom] = (),
    requests: Sequence[str] = (),
    every: int = 50,
) -> str:
    by_id = {atom.atom_id: atom for atom in atoms}
    found = due(known, scenes, by_id, requests, at(100), every)
    return found.trigger if found else ""


def test_triggers_in_their_order() -> None:
    two = [scene("a"), scene("b", version=2)]
    assert trigger(None, []) == ""
    assert trigger(None, [], requests=["please"]) == ""
    assert trigger(None, two, requests=["please"]) == "request"
    assert trigger(None, two) == "cold_start"
    assert trigger(persona("", "a", "b"), two) == "recovery"
    assert trigger(persona("Body.", "a", "b"), two) == ""
    assert trigger(persona("Body."), [scene("a")]) == "first_scene"
    assert trigger(persona("Body."), two) == ""
    assert trigger(persona("Body."), two, every=2) == "new_atoms"
    assert trigger(persona("Body."), [scene(*map(str, range(50))), scene()]) == "new_atoms"
    assert trigger(persona("Body."), [scene(*map(str, range(49))), scene()]) == ""


def test_what_it_tells_and_no_longer_holds_is_put_right_once() -> None:
    old, new = superseded(B, fact(1, "User moved to Braga."))
    told = [scene(old.atom_id, new.atom_id), scene()]
    assert trigger(persona("Body.", old.atom_id), told, [old, new]) == "correction"
    assert trigger(persona("Body.", old.atom_id, new.atom_id), told, [old, new]) == ""
    over = C.model_copy(update={"status": "stale", "valid_until": at(50)})
    assert trigger(persona("Body.", C.atom_id), told, [over]) == "correction"


# --- drafts ----------------------------------------------------------------------------------


def draft(**fields: Any) -> Draft:
    import orjson

    return read_draft(orjson.dumps({**GOOD, **fields}).decode(), "chat")


def wrong(found: Draft, body: str = "", kept_out: Any = None) -> list[str]:
    text = body or render_draft(found, "chat", "en")
    sources = ["User lives in Porto and works as a baker, and is learning to swim there."]
    return [one.reason for one in faults(SCOPE, found, text, "chat", sources, kept_out)]


def test_a_good_draft_has_its_sections_and_is_read_back() -> None:
    text = render_draft(draft(), "chat", "en")
    assert text.startswith("# Ana\n\n> A baker in Porto.\n\n## Basic facts\n\n- Lives in Porto.")
    assert "## Interaction protocol\n\n### How to speak\n\n- Briefly." in text
    assert text.endswith("`calm` `early riser` `baker`")
    assert wrong(draft()) == []


def test_what_is_wrong_with_a_draft_is_named() -> None:
    assert wrong(draft(basics=["x" * 2001])) == ["too_long"]
    assert wrong(draft(archetype="")) == ["section_missing"]
    assert wrong(draft(basics=[])) == ["section_missing"]
    assert wrong(draft(tags=["one", "two"])) == ["section_missing"]
    assert wrong(draft(tags=list("abcdefgh"))) == ["section_missing"]
    assert wrong(draft(basics=["Card 4111 1111 1111 1111."])) == ["secret"]
    german = ["Die Person wohnt in einer Stadt am Fluss und arbeitet in einer Bäckerei."]
    assert wrong(draft(archetype=german[0], basics=german, traits=german)) == ["other_language"]
    with pytest.raises(MalformedAnswer):
        read_draft('{"basics": [1]}', "chat")
    with pytest.raises(MalformedAnswer):
        read_draft("I cannot", "chat")


def test_a_doctrine_for_work() -> None:
    found = read_draft('{"archetype": "We ship.", "principles": ["Test first."]}', "work")
    text = render_draft(found, "work", "en")
    assert text == "# The team\n\n> We ship.\n\n## Principles\n\n- Test first."
    assert faults(SCOPE, found, text, "work", [], None) == []
    assert faults(SCOPE, found, "x" * 1201, "work", [], None)[0].reason == "too_long"


# --- runs with a model -----------------------------------------------------------------------


def test_the_first_one_is_written_from_all_scenes_and_navigation_comes_from_the_system(
    world: World,
) -> None:
    layers = world(persona_script=lambda number, request: GOOD)
    result = layers.run_with(A, B, C)
    ended = layers.write_persona(result.personas[0])
    assert (ended.result, ended.reason) == ("applied", "cold_start")
    file = layers.persona()
    assert file.generator == "persona-chat/1 scripted"
    assert "`Who-they-are.md` (heat 0" in file.body
    (row,) = layers.profiles.profiles_of(SCOPE, "persona")
    assert row.text == render_draft(draft(), "chat", "en")
    assert set(row.atom_ids) == {A.atom_id, B.atom_id, C.atom_id}
    assert layers.persona_chat is not None
    request = layers.persona_chat.requests[0]
    assert len(shown(request, "scenes")) == 2
    assert {SCOPE, A.atom_id, C.atom_id} <= set(request.about)


def test_the_next_one_is_shown_the_old_one_and_only_changed_scenes(world: World) -> None:
    layers = world(persona_script=lambda number, request: GOOD, every=1)
    layers.write_persona(layers.run_with(A, B, C).personas[0])
    new = fact(4, "User's sister Rita is a nurse.")
    layers.write_persona(layers.run_with(new).personas[0])
    assert layers.persona_chat is not None
    request = layers.persona_chat.requests[1]
    assert [line[0] for line in shown(request, "scenes")] == ["Family-and-pets.md"]
    text = request.messages[1][1]
    assert "A baker in Porto." in text
    assert "Scene navigation" not in text
    assert [one.number for one in layers.personas.history(SCOPE)] == [2, 1]


def test_three_are_kept_and_a_job_applied_twice_changes_nothing(world: World) -> None:
    names = iter("ABCDEFG")
    layers = world(persona_script=lambda number, request: {**GOOD, "name": next(names)})
    layers.run_with(A, B)
    for number in range(5):
        layers.write_persona(asked(f"reason {number}", f"job {number}"))
    assert [one.number for one in layers.personas.history(SCOPE)] == [5, 4, 3]
    before = (layers.personas.current(SCOPE), len(layers.topic))
    assert layers.write_persona(asked("reason 4", "job 4")).reason == "repeated"
    assert (layers.personas.current(SCOPE), len(layers.topic)) == before


def test_a_refused_answer_is_told_and_a_failed_run_keeps_its_request(world: World) -> None:
    answers = [{**GOOD, "tags": []}]
    layers = world(persona_script=lambda number, request: answers[0])
    layers.run_with(A, B)
    with pytest.raises(RunRefused) as caught:
        layers.write_persona(asked("moved to Porto"))
    assert caught.value.reason == "section_missing"
    with pytest.raises(RunRefused):
        layers.write_persona(asked("moved to Porto"), caught.value.message)
    assert layers.persona_chat and layers.persona_chat.asked_anew == 2
    assert "tags: give 3 to 7" in layers.persona_chat.requests[1].messages[1][1]
    assert layers.personas.files(SCOPE) == {}
    answers[0] = GOOD
    ended = layers.write_persona(asked("scenes_changed", "another"))
    assert (ended.reason, layers.requests.of(SCOPE)) == ("request", {})
    change = layers.personas.current(SCOPE).change
    assert change and change.reason == "request: moved to Porto"


def test_a_rejected_value_in_it_is_refused(world: World) -> None:
    tombstone = Tombstone(
        tombstone_id="t", kind="reject", target="atom", scope=SCOPE, request_id="r",
        text_keys=value_keys(SCOPE, "Lives in Porto."), requested_at=at(0), topic="t",
        partition=0, offset=0,
    )  # fmt: skip
    layers = world(persona_script=lambda number, request: GOOD, kept_out=Tombstones([tombstone]))
    layers.run_with(A, C)
    with pytest.raises(RunRefused) as caught:
        layers.write_persona(asked("please"))
    assert caught.value.reason == "rejected_value"


def test_dying_behind_the_commit_is_made_good(world: World) -> None:
    layers = world(persona_script=lambda number, request: GOOD)
    layers.run_with(A, B)
    layers.profiles.fail_next = ServiceUnavailable("milvus", "down")
    with pytest.raises(ServiceUnavailable):
        layers.write_persona(asked("please"))
    assert layers.profiles.profiles_of(SCOPE, "persona") == []
    layers.write_persona(asked("please"))
    assert len(layers.profiles.profiles_of(SCOPE, "persona")) == 1
    assert layers.persona_chat and layers.persona_chat.asked_anew == 1


def test_a_person_edits_it_and_it_is_kept_until_one_is_due(world: World) -> None:
    layers = world(persona_script=lambda number, request: GOOD)
    layers.write_persona(layers.run_with(A, B).personas[0])
    layers.personas.edit(SCOPE, "persona.md", "My own words.", at(5000))
    ended = layers.write_persona(asked("scenes_changed", "later"))
    assert ended.reason == "not_due"
    (row,) = layers.profiles.profiles_of(SCOPE, "persona")
    assert (row.text, row.generator) == ("My own words.", "person")


def test_what_is_forgotten_goes_by_code_and_no_model_sees_it_again(
    world: World, tmp_path: Path
) -> None:
    secret = fact(9, "User hid the ring in the piano.")
    answers = [{**GOOD, "basics": ["The ring is in the piano."]}]
    layers = world(persona_script=lambda number, request: answers[0])
    layers.write_persona(layers.run_with(A, B, secret).personas[0])
    assert "piano" in layers.persona().body
    answers[0] = GOOD
    del layers.atoms.by_id[secret.atom_id]
    result = layers.run(joined(job="forget", removed=[secret.atom_id], seconds=9000))
    assert [one.removed_atom_ids for one in result.personas] == [(secret.atom_id,)]
    layers.write_persona(result.personas[0])
    assert "piano" not in layers.everything_on_disk(tmp_path).lower()
    (row,) = layers.profiles.profiles_of(SCOPE, "persona")
    assert (row.generator, "piano" in row.text.lower()) == (RULES, False)
    layers.write_persona(asked("again", "again"))
    assert layers.persona_chat is not None
    assert "piano" not in str(layers.persona_chat.requests[-1].messages).lower()


def test_when_all_is_forgotten_there_is_no_persona(world: World, tmp_path: Path) -> None:
    layers = world()
    layers.write_persona(layers.run_with(A).personas[0])
    layers.atoms.by_id.clear()
    result = layers.run(joined(job="forget", removed=[A.atom_id], seconds=9000))
    layers.write_persona(result.personas[0])
    assert layers.personas.files(SCOPE) == {}
    assert layers.profiles.rows == {}
    assert "Ana" not in layers.everything_on_disk(tmp_path)


# --- by rules --------------------------------------------------------------------------------


def test_rules_write_one_each_time_something_is_new(world: World) -> None:
    layers = world()
    layers.write_persona(layers.run_with(A, C).personas[0])
    layers.write_persona(layers.run_with(B).personas[0])
    body = layers.persona().body
    assert body.startswith("# Ana\n\n> User works as a baker. User lives in Porto.")
    assert layers.persona().generator == RULES
    assert len(layers.personas.history(SCOPE)) == 2
    assert layers.write_persona(asked("scenes_changed", "x")).reason == "not_due"


@settings(max_examples=30)
@given(st.integers(0, 200), st.sampled_from(["chat", "work"]))
def test_rules_never_write_too_much(count: int, mode: Any) -> None:
    kind = "work_fact" if mode == "work" else "persona"
    atoms = [fact(n, f"User has said a thing of number {n}.", type=kind) for n in range(count)]
    assert len(persona_by_rules(atoms, mode, at(0))) <= LIMITS[mode]


def test_rules_tell_a_plan_that_is_neither_over_nor_tomorrow() -> None:
    def plan(number: int, days: int) -> Atom:
        when = at(days * 86_400)
        return fact(number, f"User has plan {number}.", type="episodic", activity_start=when)

    body = persona_by_rules([plan(1, -3), plan(2, 1), plan(3, 20), plan(4, 300)], "chat", at(0))
    assert "- User has plan 3. (2026-03-01)" in body
    assert body.count("User has plan") == 1


def test_rules_tell_a_request_as_a_sentence() -> None:
    asked = fact(1, 'User\'s standing request: "never suggest seafood."', type="instruction")
    assert "\n- Never suggest seafood. (" in persona_by_rules([asked], "chat", at(0))


# --- when its jobs go to the stage -------------------------------------------------------------


def _ran(root: Path, *, live: bool, stopping: bool = False) -> list[str]:
    """Run jobs of a scope through the step; the last of them shows what came before the end."""
    came: list[str] = []
    flow = Dataflow("test")
    jobs = [PersonaJob(job_id=f"j{n}", scope=SCOPE, reason="r", occurred_at=at(n)) for n in (1, 2)]
    record = LogRecord(Position("l3.jobs", 0, 0), 0, b"k", b"")
    items: list[Any] = [*(QueuedPersonaJob(one, record) for one in jobs), TestingSource.ABORT()]
    read: Stream[QueuedPersonaJob] = op.input("in", flow, TestingSource(items))
    keyed = op.key_on("key", read, lambda one: one.job.scope)
    due = hold_jobs("hold", keyed, live=live, stopping=lambda: stopping)
    seen = op.map("seen", due, lambda item: came.append(item[1].job.job_id))
    op.output("out", seen, TestingSink([]))
    recovery = RecoveryConfig(str(root))
    run_main(flow, epoch_interval=timedelta(), recovery_config=recovery)
    before_the_end = list(came)
    run_main(flow, epoch_interval=timedelta(), recovery_config=recovery)
    return [*before_the_end, "|", *came[len(before_the_end) :]]


@pytest.mark.parametrize(
    ("live", "stopping", "came"),
    [
        (True, False, ["j1", "j2", "|"]),
        (False, False, ["|", "j1", "j2"]),
        (False, True, ["|"]),
    ],
)
def test_jobs_wait_for_the_end_of_the_input_and_over_a_crash_where_the_flow_is_not_live(
    tmp_path: Path, live: bool, stopping: bool, came: list[str]
) -> None:
    init_db_dir(tmp_path, 1)
    assert _ran(tmp_path, live=live, stopping=stopping) == came

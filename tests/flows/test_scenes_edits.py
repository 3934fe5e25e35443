"""A person's own text for a scene or persona, asked for as a job: applied, once, or too late."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.scenes.debounce import Pace, ScopeJobs
from flows.scenes.job import JoinedJob
from stores.records import LogRecord, OutRecord, PersonaJob, Position, ProfileEdit, SceneJob
from stores.requests import ASKED_HEADER, profile_edit_record
from stores.scenes import PERSON
from tests.rig.events import at
from tests.rig.layers import SCOPE, LayerWorld, fact, queued

ANA = [
    fact(1, "User's name is Ana.", slot="name"),
    fact(2, "User lives in Porto.", slot="home.city"),
    fact(3, "User works as a baker.", slot="job.title"),
]
WHO, WORK = "Who-they-are.md", "Work-and-study.md"
MINE = "# Ana\n\nShe lives in **Porto**, near the river."


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LayerWorld]:
    made = LayerWorld(tmp_path)
    result = made.run_with(*ANA)
    made.write_persona(result.personas[0])
    yield made
    made.close()


def scene_edit(path: str, text: str | None, *, seconds: float = 900, **fields: Any) -> JoinedJob:
    edit = ProfileEdit(path=path, text=text, **fields)
    record = profile_edit_record("scene", SCOPE, edit, at(seconds), "sediment.l2.jobs")
    return JoinedJob((queued(SceneJob.model_validate_json(record.value or b"")),))


def persona_edit(text: str, **fields: Any) -> PersonaJob:
    edit = ProfileEdit(path="persona.md", text=text, **fields)
    record = profile_edit_record("persona", SCOPE, edit, at(900), "sediment.l3.jobs")
    return PersonaJob.model_validate_json(record.value or b"")


def told(world: LayerWorld, path: str) -> str:
    return next(one.text for one in world.profiles.profiles_of(SCOPE) if one.path == path)


def test_the_record_is_known_as_a_persons_and_lies_with_its_scope() -> None:
    record = profile_edit_record(
        "scene", SCOPE, ProfileEdit(path=WHO, text=MINE), at(900), "sediment.l2.jobs"
    )
    assert record == OutRecord(
        "sediment.l2.jobs", SCOPE.encode(), record.value, ((ASKED_HEADER, b"person"),)
    )
    read = LogRecord(Position(record.topic, 0, 0), 0, record.key, record.value, record.headers)
    assert SceneJob.model_validate_json(read.value or b"").edit is not None


def test_a_persons_text_takes_the_place_of_a_scene(world: LayerWorld) -> None:
    before = world.files()[WHO]
    job = scene_edit(WHO, MINE, summary="Ana, of Porto", atom_ids=before.atoms)
    result = world.run(job)
    now = world.files()[WHO]
    assert (now.body, now.summary, now.generator) == (MINE, "Ana, of Porto", PERSON)
    assert (now.atoms, now.title, now.created) == (before.atoms, before.title, before.created)
    assert now.updated == at(900)
    assert told(world, WHO) == MINE
    assert world.topic[-1].value is not None and b"near the river" in world.topic[-1].value
    assert result.result == "applied"
    (asked,) = result.personas
    assert asked.scene_paths == (WHO,)
    # Again, as after a crash; and the same text once more, as a person who is not sure sends it.
    number, records = world.folder.current(SCOPE).number, len(world.topic)
    world.run(job)
    world.run(scene_edit(WHO, MINE, summary="Ana, of Porto", atom_ids=before.atoms, seconds=950))
    assert (world.folder.current(SCOPE).number, len(world.topic)) == (number, records)


def test_an_older_edit_that_comes_again_does_not_undo_a_newer_one(world: LayerWorld) -> None:
    first, second = scene_edit(WHO, "First."), scene_edit(WHO, "Second.", seconds=950)
    for job in (first, second, first):
        world.run(job)
    assert told(world, WHO) == "Second."


def test_null_takes_a_scene_away(world: LayerWorld) -> None:
    assert world.run(scene_edit(WORK, None)).result == "applied"
    assert WORK not in world.files()
    assert WORK not in [one.path for one in world.profiles.profiles_of(SCOPE)]


def test_an_edit_makes_no_file(world: LayerWorld) -> None:
    number = world.folder.current(SCOPE).number
    for path in ("Boats.md", "../../etc/passwd", "persona.md"):
        result = world.run(scene_edit(path, MINE))
        assert (result.result, result.reason) == ("skipped", "nothing_to_edit")
        assert result.personas == ()
    assert world.folder.current(SCOPE).number == number


@pytest.mark.parametrize("how", ["removed", "rejected"])
def test_an_edit_of_what_was_forgotten_comes_too_late(world: LayerWorld, how: str) -> None:
    """Somebody wrote over a text; before it was applied, what that told was forgotten."""
    resting = tuple(one.atom_id for one in ANA[:2])
    if how == "removed":
        del world.atoms.by_id[resting[1]]
    else:
        world.atoms.put(ANA[1].model_copy(update={"status": "rejected"}))
    before = world.files()
    result = world.run(scene_edit(WHO, MINE, atom_ids=resting))
    assert (result.result, result.reason) == ("skipped", "forgotten_since")
    assert world.files() == before
    late = world.write_persona(persona_edit("# Ana\n\nOf Porto.", atom_ids=resting))
    assert (late.result, late.reason) == ("skipped", "forgotten_since")
    assert "Of Porto" not in world.persona().body


def test_a_persons_text_takes_the_place_of_the_persona(world: LayerWorld) -> None:
    job = persona_edit("# Ana B.\n> A baker.\n\nSpeak plainly.", atom_ids=world.persona().atoms)
    assert world.write_persona(job).result == "applied"
    file = world.persona()
    assert (file.title, file.summary, file.generator) == ("Ana B.", "A baker.", PERSON)
    assert told(world, "persona.md") == "# Ana B.\n> A baker.\n\nSpeak plainly."
    number = world.personas.current(SCOPE).number
    assert world.write_persona(job).reason == "repeated"
    assert world.personas.current(SCOPE).number == number


def test_an_edit_waits_for_nothing_and_hurries_nothing() -> None:
    jobs = ScopeJobs(Pace(quiet=timedelta(seconds=10)))
    waiting = SceneJob(job_id="j1", scope=SCOPE, window_id="w", atom_ids=("a",), occurred_at=at(0))
    assert jobs.add(queued(waiting), at(0)) == []
    edit = scene_edit(WHO, MINE, seconds=1).jobs[0]
    assert jobs.add(edit, at(1)) == [JoinedJob((edit,))]
    assert jobs.add(edit, at(2)) == []  # comes again
    (run,) = jobs.due(at(10))
    assert run.job_ids == ("j1",)

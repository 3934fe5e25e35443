"""Between a forget and the next scene run nothing is told that rests on what is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.forget.request import Forgetting
from flows.forget.work import ForgettingWork
from flows.reconcile import Reconciler
from flows.scenes.profiles import file_of
from flows.scenes.resting import Resting
from stores.ids import event_key
from stores.records import PersonaJob, Tombstone
from stores.scenes import changed_profiles
from stores.tombstones import Tombstones, tombstone_of
from stores.value_keys import value_keys
from tests.rig.events import at, sourced
from tests.rig.layers import SCOPE, LayerWorld, fact, joined
from tests.rig.memory_world import MemoryWorld
from tests.rig.still import OnesEmbedder, StillClock

SECRET = fact(1, "User lives in Brixham.", slot="home.city")
TEA = fact(2, "User works as a baker.", slot="job.title")


def forget_of(*atom_ids: str, request: str = "f") -> Tombstone:
    return Tombstone(
        tombstone_id=f"t-{request}", kind="forget", target="atom", scope=SCOPE,
        atom_ids=atom_ids, request_id=request, requested_at=at(100),
        topic="t", partition=0, offset=9,
    )  # fmt: skip


def reject_of(text: str) -> Tombstone:
    return forget_of().model_copy(
        update={"kind": "reject", "text_keys": tuple(value_keys(SCOPE, text)), "request_id": "r"}
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LayerWorld]:
    """Two scenes and a persona, in the index and in the topic."""
    made = LayerWorld(tmp_path, kept_out=Tombstones())
    made.run_with(SECRET)
    made.write_persona(made.run_with(TEA, seconds=2000).personas[0])
    assert len(told(made)) == 3, "the world has two scenes and a persona"
    yield made
    made.close()


def buried(world: LayerWorld) -> Tombstones:
    kept_out = world.parts.kept_out
    assert isinstance(kept_out, Tombstones)
    return kept_out


def told(world: LayerWorld) -> str | list[str]:
    return [f"{one.path}\n{one.text}" for one in world.profiles.profiles_of(SCOPE)]


def in_topic(world: LayerWorld) -> str:
    """Read what a compacted topic would still hold."""
    last = {one.key: one.value for one in world.topic}
    return "\n".join(one.decode() for one in last.values() if one is not None)


def test_a_forgotten_atom_takes_its_scene_and_the_persona_out_at_once(world: LayerWorld) -> None:
    buried(world).add(forget_of(SECRET.atom_id))
    del world.atoms.by_id[SECRET.atom_id]
    world.sync.hide(SCOPE)
    assert "Brixham" not in str(told(world))
    assert "Brixham" not in in_topic(world), "a rebuild would bring it back"
    assert "baker" in str(told(world)), "what rests on something else is still told"


def test_a_rejected_value_takes_them_out_before_its_atom_says_so(world: LayerWorld) -> None:
    buried(world).add(reject_of(SECRET.text))
    world.sync.hide(SCOPE)
    assert "Brixham" not in str(told(world))


def test_what_was_rewritten_is_told_again(world: LayerWorld) -> None:
    buried(world).add(forget_of(SECRET.atom_id))
    del world.atoms.by_id[SECRET.atom_id]
    world.sync.hide(SCOPE)
    job = joined(job="forget", removed=[SECRET.atom_id], seconds=9000)
    world.write_persona(world.run(job).personas[0])
    kinds = {one.kind for one in world.profiles.profiles_of(SCOPE)}
    assert kinds == {"scene", "persona"}
    assert "Brixham" not in str(told(world)) + in_topic(world)


def test_a_run_that_was_under_way_does_not_bring_it_back(world: LayerWorld) -> None:
    """It began before the request, so its files still rest on the atom."""
    files, now = world.folder.files(SCOPE), world.folder.current(SCOPE)
    files = {name: replace(one, summary="Put into better words.") for name, one in files.items()}
    buried(world).add(forget_of(SECRET.atom_id))
    del world.atoms.by_id[SECRET.atom_id]
    world.sync.hide(SCOPE)
    asyncio.run(world.sync.bring(SCOPE, "scene", files, now))
    assert "Brixham" not in str(told(world)) + in_topic(world)
    assert "better words" in in_topic(world), "the other scene was written"


def test_a_request_between_look_and_write_is_noticed(world: LayerWorld) -> None:
    files, now = world.folder.files(SCOPE), world.folder.current(SCOPE)
    files = {name: replace(one, summary="Put into better words.") for name, one in files.items()}
    write = world.profiles.upsert_profiles

    def forgotten_meanwhile(*given: object) -> None:
        buried(world).add(forget_of(SECRET.atom_id))
        world.atoms.by_id.pop(SECRET.atom_id, None)
        write(*given)  # type: ignore[arg-type]

    world.profiles.upsert_profiles = forgotten_meanwhile  # type: ignore[assignment, method-assign]
    asyncio.run(world.sync.bring(SCOPE, "scene", files, now))
    assert "Brixham" not in str(told(world)) + in_topic(world)


def test_an_id_that_never_was_hides_nothing(world: LayerWorld) -> None:
    """A person may write any id into their file; and another atom may have a forgotten one's."""
    files, now = world.folder.files(SCOPE), world.folder.current(SCOPE)
    files = {name: replace(one, atoms=(*one.atoms, "made-up")) for name, one in files.items()}
    buried(world).add(forget_of("somebody-else", SECRET.atom_id))
    asyncio.run(world.sync.bring(SCOPE, "scene", files, now))
    world.sync.hide(SCOPE)
    assert "Brixham" in str(told(world))


def test_nothing_is_asked_of_the_store_where_nothing_was_forgotten(world: LayerWorld) -> None:
    def never(*_: object, **__: object) -> list[object]:
        message = "the store was asked"
        raise AssertionError(message)

    world.atoms.atoms_of = never  # type: ignore[assignment, method-assign]
    assert Resting(world.atoms, Tombstones()).gone(SCOPE) == frozenset()


def test_a_persona_rests_on_what_the_one_before_it_told(tmp_path: Path) -> None:
    """A model writes it from the one before: an atom that left its scene may still be told."""
    answers = {"name": "Ana", "archetype": "Somebody.", "basics": ["Lives by the sea."],
               "preferences": [], "interests": [], "speak": [], "decide": [],
               "traits": ["Calm."], "tags": ["calm", "early", "baker"]}  # fmt: skip
    world = LayerWorld(
        tmp_path, persona_script=lambda number, request: answers, kept_out=Tombstones(), every=1
    )
    world.write_persona(world.run_with(SECRET).personas[0])
    assert SECRET.atom_id in world.persona().atoms
    world.atoms.put(TEA)
    (row,) = world.profiles.profiles_of(SCOPE, "scene")  # as if a person had taken it out there
    world.profiles.rows[row.profile_id] = row.model_copy(update={"atom_ids": (TEA.atom_id,)})
    asked = PersonaJob(job_id="asked", scope=SCOPE, reason="a new job", occurred_at=at(4000))
    assert world.write_persona(asked).result == "applied"
    assert set(world.persona().atoms) == {SECRET.atom_id, TEA.atom_id}
    world.close()


@pytest.mark.parametrize("kind", ["forget", "reject"])
def test_a_request_hides_before_it_takes_the_atoms_away(kind: str) -> None:
    """So that whoever is killed in between leaves less to be read, and never more."""
    made = MemoryWorld()
    event = sourced(
        "r", seconds=100, offset=10, type=kind, role=None, content=None,
        request={"target": "atom", "atom_ids": [SECRET.atom_id]},
    )  # fmt: skip
    made.atoms = {SECRET.atom_id: SECRET}
    seen: list[tuple[bool, frozenset[str]]] = []
    work = ForgettingWork(
        Reconciler(made, OnesEmbedder(), StillClock(), kept_out=made.known),
        atoms=made, index=made, journal=None, log=made,
        hide=lambda scope: seen.append(
            (SECRET.atom_id in made.atoms, Resting(made, made.known).gone(scope))
        ),
    )  # fmt: skip
    asyncio.run(work([Forgetting(event, made.known.add(tombstone_of(event)))], None))
    assert seen == [(True, frozenset({SECRET.atom_id}))]


def test_a_profile_tells_its_file_whole(world: LayerWorld) -> None:
    """So an export, or an index that outlived the folder, gives the same file back."""
    (name, file), *_ = world.folder.files(SCOPE).items()
    file = replace(file, archived=("older",), extra=(("mood", "calm"), ("tags", ("a", "b"))))
    (made,) = changed_profiles(SCOPE, "scene", {}, {name: file}, world.folder.current(SCOPE))
    assert file_of(type(made).model_validate_json(made.model_dump_json())) == file


def test_events_of_forgotten_atoms_are_named_by_key() -> None:
    """The set of forgotten atoms is that of one scope."""
    known = Tombstones([forget_of("a1")])
    assert known.forgotten_atoms(SCOPE) == {"a1"}
    assert known.forgotten_atoms("acme/helper/bob") == frozenset()
    assert event_key(SCOPE, "a1") not in known.forgotten_atoms(SCOPE)


# --- what rests on no atom, and jobs that were lost ----------------------------------------------


def forget_user(seconds: float) -> Tombstone:
    return forget_of(request="u").model_copy(
        update={"target": "user", "user_id": "ana", "requested_at": at(seconds)}
    )


def test_a_text_without_atoms_goes_with_its_user_and_one_written_later_stays(
    tmp_path: Path,
) -> None:
    world = LayerWorld(tmp_path, kept_out=Tombstones())
    world.folder.edit(SCOPE, "mine.md", "The key is under the stone.", at(50))
    files, now = world.folder.files(SCOPE), world.folder.current(SCOPE)
    asyncio.run(world.sync.bring(SCOPE, "scene", files, now))
    assert "stone" in str(told(world))
    buried(world).add(forget_user(100))
    world.sync.hide(SCOPE)
    assert told(world) == []
    world.run(joined(job="forget", removed=["some-atom"], seconds=100))
    assert world.files() == {}
    assert "stone" not in world.everything_on_disk(tmp_path) + in_topic(world)
    world.folder.edit(SCOPE, "mine.md", "I like tea.", at(200))
    world.run(joined(job="later", seconds=300))
    assert [one.body for one in world.files().values()] == ["I like tea."]
    assert "tea" in str(told(world))
    world.close()


def test_what_a_lost_job_should_have_taken_out_the_next_one_does_with_its_history(
    world: LayerWorld, tmp_path: Path
) -> None:
    """The job that named the atom ended as a dead letter."""
    world.run_with(fact(3, "User swims every day."), seconds=2500)
    assert len(world.folder.history(SCOPE)) > 2
    buried(world).add(forget_of(SECRET.atom_id))
    del world.atoms.by_id[SECRET.atom_id]
    later = world.run_with(fact(4, "User reads every day."), seconds=9000)
    assert "Brixham" not in world.everything_on_disk(tmp_path / "scenes")
    world.write_persona(later.personas[0])
    assert "Brixham" not in world.everything_on_disk(tmp_path)
    assert "baker" in str(told(world))

"""What is remembered stands on what was said: it leads back there, goes with it, comes of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import orjson
import pytest

from stores.records import Atom, IndexedEvent, Profile
from tests.acceptance.world import ANA, WIDE, World, holds
from tests.rig import extraction_script
from tests.rig.scripted_llm import scripted_llm

SISTER, BOAT, TREE = "Zanzibarine", "Quillonette", "Marabelisk"  # words that nothing else holds
QUESTION = f"what about {SISTER}, {BOAT} and {TREE}?"


@pytest.fixture
def world(made: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A copy of the prepared world, for one test to change."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(made.folder, folder, dirs_exist_ok=True)
    return World(folder, made.env)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Facts from a model's extraction, one replaced, one said twice; scenes and a persona."""
    with scripted_llm(answer=extraction_script.answer) as llm:
        env = {
            **WIDE,
            "SEDIMENT_LLM_BASE_URL": llm.url,
            "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
            "SEDIMENT_SCENE_WRITER": "rules",
        }
        world = World(tmp_path_factory.mktemp("evidence"), env)
        world.say(
            f"FACT[family.sister]: User's sister is called {SISTER}.",
            f"FACT[boat]: User owns a boat called {BOAT}.",
            f"FACT: User planted the tree {TREE}.",
            session="s1",
        )
        world.say(
            "FACT[boat]: User owns a boat called Bessie now.",
            f"FACT: User planted the tree {TREE}.",
            session="s2",
            start=5000,
        )
        yield world


def test_evidence_claim_resolves_to_source(made: World) -> None:
    assert_no_orphans(made, {SISTER, BOAT, TREE, "Bessie"})


def assert_no_orphans(world: World, words: set[str]) -> None:
    """Follow every claim of a prompt, and of all that a prompt is made of, to what was said."""
    answer = world.recall(QUESTION + " Bessie?")
    said = {
        orjson.loads(record.value or b"")["event_id"]: (record.value or b"").decode()
        for record in world.cli.logged()
    }
    with world.store() as store:
        events: dict[str, IndexedEvent] = {one.event_id: one for one in store.events_of(ANA.scope)}
        atoms: dict[str, Atom] = {one.atom_id: one for one in store.atoms_of(ANA.scope)}
        profiles: dict[str, Profile] = {one.profile_id: one for one in store.profiles_of(ANA.scope)}
    prompt = f"{answer['system_context']}{answer['user_context']}"
    assert {word for word in words if word in prompt} >= words - {BOAT}, "the prompt is not empty"
    assert {item["layer"] for item in answer["items"]} >= {"atom", "event"}
    told = [one for one in profiles.values() if f"{one.path}: " in answer["system_context"]]
    assert told, "the system context tells of no scene"
    claims = {item["id"]: item["source_event_ids"] for item in answer["items"]}
    for one in (*told, *(profiles[claim] for claim in claims.keys() & profiles.keys())):
        claims[one.profile_id] = [s for a in one.atom_ids for s in sources_of(atoms, a)]
    for claim, sources in claims.items():
        assert sources, claim
        assert events.keys() >= set(sources), ("an orphan", claim)
    for word in words:
        for where, record, sources in (
            *(("atom", one.text, one.source_event_ids) for one in atoms.values()),
            *(
                (
                    one.kind,
                    one.search_text(),
                    [s for a in one.atom_ids for s in sources_of(atoms, a)],
                )
                for one in profiles.values()
            ),
        ):
            if word in record:
                assert any(word in said[one] and one in events for one in sources), (word, where)
    assert {one.kind for one in profiles.values()} == {"scene", "persona"}


def sources_of(atoms: dict[str, Atom], atom_id: str) -> tuple[str, ...]:
    return atoms[atom_id].source_event_ids  # a KeyError is an orphan


def test_evidence_source_delete_reaches_derived(world: World) -> None:
    (source,) = world.about(SISTER)["source_event_ids"]
    before = world.told(QUESTION)
    assert holds(SISTER, before) == before.keys(), "the control: everything was made of it"
    assert holds(TREE, before) == before.keys()

    world.cli.run("forget", *ANA.options, "--event", source, "--yes")
    world.run()
    after = world.told(QUESTION)
    assert after.keys() == before.keys()
    for kind, text in after.items():
        assert SISTER not in text, kind
    assert holds(TREE, after) == before.keys(), "what was not asked for stays, of every kind"
    assert_no_orphans(world, {TREE, "Bessie"})


def test_evidence_of_a_fact_said_twice_goes_with_its_last_source(world: World) -> None:
    """Deleting one of two sources leaves the fact, standing on the other; then it goes as well."""
    first, second = world.about(TREE)["source_event_ids"]
    world.cli.run("forget", *ANA.options, "--event", first, "--yes")
    world.run()
    assert world.about(TREE)["source_event_ids"] == [second]
    assert_no_orphans(world, {SISTER, TREE})
    world.cli.run("forget", *ANA.options, "--event", second, "--yes")
    world.run()
    assert holds(TREE, world.told(QUESTION)) == set()
    assert_no_orphans(world, {SISTER})


def test_evidence_rebuild_from_retained(world: World) -> None:
    questions = (f"who is {SISTER}?", f"which tree is {TREE}?", "what is the boat called, Bessie?")
    before = [world.recall(one) for one in questions]
    for word, answer in zip((SISTER, TREE, "Bessie"), before, strict=True):
        assert word in answer["user_context"]
        assert word in answer["system_context"]
    rows = world.told(QUESTION)

    # The topics, and nothing else: no index, no recorded answers, no folders, and no model.
    world.wipe(*(one.name for one in world.cli.data_dir.iterdir() if one.name != "log"))
    (world.cli.data_dir / "answers.sqlite").unlink()
    world.env = {**world.env, "SEDIMENT_LLM_BASE_URL": "http://127.0.0.1:9/v1"}
    world.cli.run("rebuild")
    after = [world.recall(one) for one in questions]
    for one in (*before, *after):
        del one["timings_ms"]
    assert after == before
    rebuilt = world.told(QUESTION)
    for where in rows.keys() - {"scenes folder", "persona folder", "answers"}:
        assert holds(SISTER, {where: rebuilt[where]}), where

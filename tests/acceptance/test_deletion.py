"""What was forgotten stays absent, on every path that could bring it back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.world import ANA, BOB, WIDE, Owner, World, holds
from tests.e2e.cli import Sediment
from tests.rig import extraction_script
from tests.rig.scripted_llm import scripted_llm

GONE, STAYS = "Zanzibarine", "Marabelisk"  # words that nothing else holds
QUESTION = f"the lighthouse {GONE} and the tree {STAYS}"


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two memories, extracted by a model, settled into scenes and a persona; told in a prompt."""
    with scripted_llm(answer=extraction_script.answer) as llm:
        env = {
            **WIDE,
            "SEDIMENT_LLM_BASE_URL": llm.url,
            "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
            "SEDIMENT_SCENE_WRITER": "rules",
        }
        world = World(tmp_path_factory.mktemp("deletion"), env)
        world.say(f"FACT[light]: User restores the lighthouse {GONE}.", session="s1")
        world.say(f"FACT: User planted the tree {STAYS}.", session="s2", start=5000)
        yield world


def test_deletion_absent_after_reindex_and_restart(world: World) -> None:
    prefix = world.recall(QUESTION)
    assert GONE in prefix["system_context"]
    assert GONE in prefix["user_context"]
    before = world.told(QUESTION)
    assert holds(GONE, before) == before.keys()

    atom = world.about(GONE)["atom_id"]
    world.cli.run("forget", *ANA.options, "--atom", atom, "--reason", "asked for it", "--yes")

    def assert_absent(when: str) -> None:
        told = world.told(QUESTION)
        assert holds(GONE, told) == set(), when
        assert holds(STAYS, told) == before.keys(), when

    world.run()
    assert_absent("after the jobs behind it")
    world.run()
    assert_absent("after the jobs once more")
    world.wipe("milvus")
    world.cli.run("rebuild")
    assert_absent("after the index was made anew")
    restarted = Sediment(world.cli.data_dir, world.env)
    answer = restarted.run("recall", QUESTION, *ANA.options, "--json")
    assert STAYS in answer
    assert GONE not in answer, "in a process of its own"
    world.wipe()
    world.run()
    assert_absent("after everything was read again from the first offset")

    audit = world.cli.json("audit")
    assert audit["clean"]
    assert audit["ends"]["forgotten"] == audit["ends"]["applied"] == 1
    forgotten = [one for one in world.outcomes() if one["result"] == "forgotten"]
    assert {tuple(one["event_ids"]) for one in forgotten} == {("s1-0",)}


def test_deletion_absent_before_scenes_and_persona_are_rewritten(world: World) -> None:
    """No run that rewrites them comes: what rests on it is told to nobody all the same."""
    before = world.told(QUESTION)
    assert {"recall", "scene rows", "persona rows"} <= holds(GONE, before), "the control"
    nobody_writes = World(world.folder, {**world.env, "SEDIMENT_SCENE_WRITER": "off"})
    atom = world.about(GONE)["atom_id"]
    world.cli.run("forget", *ANA.options, "--atom", atom, "--yes")
    nobody_writes.run()
    told = world.told(QUESTION)
    by_hand = {"scenes folder", "persona folder"}  # files for a person, until a run rewrites them
    assert holds(GONE, told) - by_hand == set()
    assert STAYS in told["recall"], "what else was in the same scene is still remembered"
    world.wipe("milvus")
    world.cli.run("rebuild")
    assert holds(GONE, world.told(QUESTION)) - by_hand == set(), "nor does the topic bring it back"


def test_deletion_absent_from_shared_copies(world: World) -> None:
    """Copies: an export, a generation, and the same memory kept under another agent."""
    coach = Owner(agent="coach")
    world.say(f"FACT[light]: User restores the lighthouse {GONE}.", session="c1", who=coach)
    world.say(f"FACT: Bob knows the lighthouse {GONE}.", session="b1", who=BOB)
    export = world.export()
    world.cli.run("replay", "--into", "copy")
    copy = World(world.folder, {**world.env, "SEDIMENT_GENERATION": "copy"})
    for of, who in ((world, ANA), (world, coach), (copy, ANA), (copy, coach)):
        assert GONE in of.prompt(QUESTION, who), "the control: every copy tells it"

    world.cli.run("forget", "--tenant", "acme", "--user", "ana", "--yes")
    world.run()
    for who in (ANA, coach):
        told = world.told(QUESTION, who)
        del told["answers"]  # of all scopes, and Bob's own is there
        assert holds(GONE, told) == set(), who
    refused = world.cli.json("import", str(export))
    assert (refused["events"]["forgotten"], refused["atoms"]["forgotten"]) == (3, 3)
    assert refused["events"]["written"] == refused["atoms"]["written"] == 0
    world.run()
    # It has not heard of the request.
    world.cli.run("generations", "promote", "copy", "--timeout", "0", code=2)
    world.cli.run("replay", "--into", "copy")
    world.cli.run("generations", "promote", "copy")
    for of in (world, copy):
        for who in (ANA, coach):
            assert GONE not in of.prompt(QUESTION, who), (of.env, who)
    assert GONE in copy.prompt(QUESTION, BOB), "another user's own memory is no copy"

    elsewhere = World(world.folder / "elsewhere", WIDE)
    elsewhere.folder.mkdir()
    elsewhere.cli.run("import", str(world.export()))
    elsewhere.cli.run("import", str(export))
    elsewhere.run()
    assert GONE not in elsewhere.prompt(QUESTION)
    assert GONE in elsewhere.prompt(QUESTION, BOB)


def test_deletion_outlives_a_lost_topic_of_tombstones(world: World) -> None:
    """Lost with everything that was made, it comes again from the requests in the log."""
    world.cli.run("forget", *ANA.options, "--session", "s1", "--yes")
    world.run()
    world.wipe()
    world.wipe("log/sediment.tombstones")
    world.run()
    told = world.told(QUESTION)
    assert holds(GONE, told) == set()
    assert holds(STAYS, told) == told.keys()
    assert world.cli.logged("sediment.tombstones")

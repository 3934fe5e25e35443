"""A value that a person rejected stays rejected, whichever way it is said again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.topics import TOPICS
from tests.acceptance.world import ANA, WIDE, World
from tests.cli.in_process import InProcess
from tests.e2e.on_kafka import OnKafka
from tests.rig.events import at, body
from tests.rig.kafka import KafkaBroker

WRONG = "Zanzibarine"  # a word that nothing else holds
VALUE = f"My sister is called {WRONG}."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A value that was told, and rejected; another that holds."""
    world = World(tmp_path_factory.mktemp("tombstones"))
    world.say(VALUE, "My brother is called Quillon.", session="s1")
    assert_active(world, WRONG)
    assert WRONG in world.prompt("sister")
    world.cli.run("reject", world.about(WRONG)["atom_id"], *ANA.options, "--yes")
    world.run()
    return world


@pytest.fixture
def world(made: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A copy for one test to change."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(made.folder, folder, dirs_exist_ok=True)
    return World(folder, made.env)


def active(world: World) -> dict[str | None, str]:
    return {item["slot"]: item["text"] for item in world.memories()}


def assert_active(world: World, word: str) -> None:
    assert word in active(world)["family.sister"]


def assert_rejected(world: World) -> None:
    """See that the value is told nowhere as a memory, and that the brother is."""
    found = active(world)
    assert "Quillon" in found["family.brother"], "the control: the store is not empty"
    assert not [text for text in found.values() if WRONG.casefold() in text.casefold()]
    (unit,) = units(world)
    assert unit["status"] == "rejected"
    answer = world.recall("what is the sister called?")
    told = [item["text"] for item in answer["items"] if item["layer"] != "event"]
    assert told
    assert not [text for text in (*told, answer["system_context"]) if WRONG in text]


def units(world: World) -> list[dict[str, Any]]:
    """Give every memory with the value, as typed by anybody who looks like typing it."""
    return [
        one for one in world.memories(active=False) if WRONG.casefold() in one["text"].casefold()
    ]


def restated(world: World, start: float = 1000) -> None:
    """Supersede the value, then restate it twice from sessions of their own."""
    world.say("My sister is called Rosalind.", session=f"r{start}", start=start)
    assert_active(world, "Rosalind")
    world.say(VALUE, session=f"again{start}", start=start + 1000)
    world.say(
        f"As I said: my sister is called {WRONG}.",
        VALUE,
        session=f"twice{start}",
        start=start + 2000,
    )


def test_tombstone_laundering_sequence(world: World) -> None:
    assert_rejected(world)
    restated(world)
    assert_rejected(world)
    assert_active(world, "Rosalind")
    kept = world.cli.logged("sediment.tombstones")
    assert b'"text_keys":["' in b"".join(one.value or b"" for one in kept), "it is intact"


def test_tombstone_key_normalization_attack(world: World) -> None:
    look_alikes = [
        f"MY SISTER IS CALLED {WRONG.upper()}!",
        f"My   sister\tis  called {WRONG} .",
        "My sister is called Z\u200banz\u00adiba\u2060rine.",
        "My sister is called Zаnzibаrinе.",  # Cyrillic
        "My sister is called Ｚａｎｚｉｂａｒｉｎｅ.",
        "My sister is called Zanzibari\ufe0fne\u202c.",
    ]
    for n, text in enumerate(look_alikes):
        world.hear(text, session=f"look-{n}", start=1000 * (n + 1))
    world.run()
    assert "family.sister" not in active(world)
    ends = [one for one in world.outcomes() if one["kind"] == "window"]
    refused = {one["session_id"] for one in ends if "rejected_value" in one["refused"]}
    assert refused == {f"look-{n}" for n in range(len(look_alikes))}, "each for that reason"
    assert_rejected(world)
    # Which side of the line: a paraphrase is another value, and is taken.
    world.say(f"My sister's name is {WRONG}.", session="paraphrase", start=50_000)
    assert_active(world, WRONG)


def test_tombstone_reextraction_stays_inactive(world: World) -> None:
    world.say(VALUE, "My aunt is called Marabel.", session="s9", start=1000)
    assert_rejected(world)
    assert "Marabel" in " ".join(active(world).values()), "the rest of the window is taken"
    world.wipe()
    world.run()
    assert_rejected(world)


def test_tombstone_no_second_memory_unit(world: World) -> None:
    before = units(world)
    world.say(VALUE, session="s9", start=1000)
    (unit,) = units(world)
    assert unit["atom_id"] == before[0]["atom_id"], "it landed on the rejected one"
    assert unit["source_event_ids"] == [*before[0]["source_event_ids"], "s9-0"]
    ends = {tuple(one["event_ids"]): one for one in world.outcomes() if one["kind"] == "window"}
    assert ends[("s9-0",)]["refused"] == {"rejected_value": 1}, "and that is on record"
    # Without the unit to land on, there is one again and it was never active.
    world.wipe("milvus")
    world.say(VALUE, session="s10", start=2000)
    assert {one["status"] for one in units(world)} <= {"rejected"}
    assert len(units(world)) <= 1


def test_tombstone_survives_ttl_and_prune(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """Everything that can expire has expired: the log, the stores, the ids, the snapshots."""
    kafka = OnKafka(kafka_broker)
    env = {**WIDE, **kafka.env, "SEDIMENT_DEDUP_IDS": "1"}

    def say(cli: InProcess, *said: str, start: float) -> None:
        """Each in a session of its own, a day after the one before."""
        events = [
            body(f"{start}-{n}", session_id=f"{start}-{n}", content=text,
                 occurred_at=at(start + n * 86_400).isoformat())
            for n, text in enumerate(said)
        ]  # fmt: skip
        cli.run("ingest", str(World(tmp_path, env).file(*events)))
        cli.run("run", "all", "--to-end")

    def active_on(cli: InProcess) -> list[str]:
        items = cli.json("memories", "list", *ANA.options)["items"]
        return [item["text"] for item in items if item["status"] == "active"]

    young = InProcess(tmp_path / "young", env)
    say(young, VALUE, "My brother is called Quillon.", start=-400_000_000)
    assert [text for text in active_on(young) if WRONG in text], "the control"
    items = young.json("memories", "list", *ANA.options)["items"]
    (wrong,) = [one["atom_id"] for one in items if WRONG in one["text"]]
    young.run("reject", wrong, *ANA.options, "--yes")
    young.run("run", "all", "--to-end")
    assert not [text for text in active_on(young) if WRONG in text]

    # Thirteen years later: the log's retention has taken the words and the request, and of the
    # machine that held index, snapshots and recorded answers nothing is left.
    spec = next(one for one in TOPICS if one.name == "tombstones")
    assert (spec.cleanup, spec.retention_ms) == ("compact", -1), "nothing takes it"
    kafka_broker.delete_before(kafka.topic("l0.events"), len(kafka.read("l0.events")))
    for topic in ("outcomes", "l2.jobs"):
        kafka_broker.delete_before(kafka.topic(topic), len(kafka.read(topic)))
    old = InProcess(tmp_path / "old", env)
    assert kafka.read("l0.events") == []
    old.run("rebuild")  # what the compacted topics hold is never pruned
    say(old, "My sister is called Rosalind.", VALUE, VALUE.upper(), VALUE, start=0)
    assert sorted(active_on(old)) == [
        "User's brother is called Quillon.",
        "User's sister is called Rosalind.",
    ]

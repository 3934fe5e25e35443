"""``sediment replay``: what it fills, what it refuses, what it counts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.filelog import FileLog
from connectors.settings import load_settings
from flows.parts import generation_log
from flows.runner import SystemClock
from stores.embedded import open_embedded
from stores.records import OutRecord
from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig.events import at, body
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import CHAT, ScriptedLlm, scripted_llm

LIST = ("memories", "list", *ANA, "--json")


@pytest.fixture
def settled(remembered: InProcess, tmp_path: Path) -> InProcess:
    """A copy of the settled data folder, to be changed."""
    shutil.copytree(remembered.data_dir, tmp_path / "data")
    return InProcess(tmp_path / "data")


def of(cli: InProcess, generation: str) -> InProcess:
    """Read another generation than the promoted one."""
    return InProcess(cli.data_dir, {**cli.env, "SEDIMENT_GENERATION": generation})


# --- without a model -------------------------------------------------------------------------


def test_a_generation_of_the_same_history_is_the_same_beside_the_first(
    settled: InProcess,
) -> None:
    before = settled.text(*LIST)
    done = settled.json("replay", "--into", "v2")
    assert (done["generation"], done["state"], done["dead_letters"]) == ("v2", "ready", {})
    assert (done["records"], done["events_read"], done["atoms"]) == (4, 4, 4)
    assert done["answers"] == {"asked": 0, "asked_tokens": 0, "recorded": 0, "saved_tokens": 0}
    assert of(settled, "v2").text(*LIST) == before
    assert settled.text(*LIST) == before
    printed = settled.run("replay", "--into", "v2", "--workers", "2")
    assert "2 threads of this process: the log in files" in printed.err
    again = printed.out
    assert "done: 0 events read" in again and "holds 4 atoms" in again
    assert "sediment generations promote v2" in again


def test_it_catches_up_with_what_came_since(settled: InProcess, tmp_path: Path) -> None:
    settled.run("replay", "--into", "v2")
    later = body("e9", content="I have a dog.", occurred_at=at(4000).isoformat())
    settled.run("ingest", str(write_lines(tmp_path / "later.jsonl", later)))
    done = settled.json("replay", "--into", "v2")
    assert (done["events_read"], done["atoms"]) == (1, 5)
    assert settled.json(*LIST[:-1])["total"] == 3, "the first generation is another one"
    assert of(settled, "v2").json(*LIST[:-1])["total"] == 4


def test_one_users_part_of_history(settled: InProcess) -> None:
    done = settled.json("replay", "--into", "bobs", "--user", "bob")
    assert (done["records"], done["events_read"], done["atoms"]) == (4, 1, 1)
    assert of(settled, "bobs").json(*LIST[:-1])["total"] == 0
    refused = settled.run("replay", "--into", "x", "--team", "blue", code=2).err
    assert "--team: the scope is made of tenant, agent, user" in refused


@pytest.mark.parametrize(("options", "read"), [
    (("--from", "1", "--to", "3"), 2),
    (("--from", "99"), 0),
    (("--to", "1999-01-01T00:00:00Z"), 0),
    (("--from", "1999-01-01T00:00:00Z", "--rate", "1000"), 4),
])  # fmt: skip
def test_a_part_of_the_log(settled: InProcess, options: tuple[str, ...], read: int) -> None:
    done = settled.json("replay", "--into", "part", *options)
    assert (done["records"], done["events_read"], done["state"]) == (read, read, "ready")


def test_it_goes_on_only_with_what_it_was_begun_with(settled: InProcess) -> None:
    settled.run("replay", "--into", "v2")
    refused = settled.run("replay", "--into", "v2", "--user", "bob", "--from", "1", code=2).err
    assert "generation v2 was begun otherwise" in refused
    assert "--from was beginning, now 1; the scope was all, now user bob" in refused
    other = InProcess(settled.data_dir, {"SEDIMENT_WINDOW_USER_TURNS": "2"})
    refused = other.run("replay", "--into", "v2", code=2).err
    assert "the window settings was 5 user turns" in refused
    for name, value, said in (
        ("GATE", '{"too_long": "warn"}', "gate was"),
        ("GATE_MAX_CHARS", "80", "gate_max_chars was 300, now 80"),
        ("SCENE_CAPACITY", "5", "scene_capacity was 15, now 5"),
        ("SCENE_WRITER", "off", "scene_writer was model, now off"),
    ):
        other = InProcess(settled.data_dir, {f"SEDIMENT_{name}": value})
        assert said in other.run("replay", "--into", "v2", code=2).err
    faster = InProcess(settled.data_dir, {"SEDIMENT_CONCURRENCY": "3"})
    faster.run("replay", "--into", "v2")


@pytest.mark.parametrize("only_counted", [(), ("--dry-run",)], ids=["real run", "dry run"])
def test_a_name_that_cannot_be_filled_is_refused(
    settled: InProcess, only_counted: tuple[str, ...]
) -> None:
    settled.run("replay", "--into", "v2")
    refused = settled.run("replay", "--into", "v2", "--from", "1", *only_counted, code=2).err
    assert "generation v2 was begun otherwise" in refused
    settled.run("generations", "drop", "v2", "--yes")
    assert "was dropped" in settled.run("replay", "--into", "v2", *only_counted, code=2).err


def test_a_generation_of_an_older_version_goes_on_and_that_is_said(settled: InProcess) -> None:
    settled.run("replay", "--into", "v2")
    register = generation_log(load_settings(data_dir=settled.data_dir))
    old = register.read().get("v2").model_copy(update={"settings": {}})
    register.write(old)
    assert "a version that did not note its settings" in settled.run("replay", "--into", "v2").err


@pytest.mark.parametrize(("options", "said"), [
    (("--into", "main"), "--into: main is what `sediment run` fills"),
    (("--into", "V 2"), "--into: 'V 2' is no name of a generation"),
    (("--into", "v2", "--answers", "some"), "--answers: some is not one of recorded"),
    (("--into", "v2", "--from", "end"), "--from: nothing lies behind the end"),
    (("--into", "v2", "--from", "soon"), "--from: soon is none of beginning"),
    (("--into", "v2", "--to", "2026-01-01"), "--to: 2026-01-01 is none of"),
    (("--into", "v2", "--follow", "--to", "5"), "it does not go with --to"),
    (("--into", "v2", "--follow", "--answers", "recorded"), "live traffic has no recorded"),
])  # fmt: skip
def test_what_it_cannot_do_is_said_before_anything_is_made(
    cli: InProcess, options: tuple[str, ...], said: str
) -> None:
    assert said in cli.run("replay", *options, code=2).err
    assert not (cli.data_dir / "generations").exists()


def test_the_folder_in_use_is_said_with_what_to_do(settled: InProcess) -> None:
    with open_embedded(settled.data_dir):
        refused = settled.run("replay", "--into", "v2", code=2).err
    assert "in use by process" in refused
    assert "stop the other process, replay, promote, and start it again" in refused
    assert [one["generation"] for one in settled.json("generations", "list")] == ["main"]


@pytest.mark.usefixtures("dead_broker")
def test_a_broker_that_is_not_there(cli: InProcess, dead_broker: str) -> None:
    cli.run("replay", "--into", "v2", "--brokers", dead_broker, code=3)


@pytest.mark.kafka
def test_topics_that_are_not_there(cli: InProcess, kafka_broker: KafkaBroker) -> None:
    env = {"SEDIMENT_BROKERS": kafka_broker.bootstrap, "SEDIMENT_TOPIC_PREFIX": "nobodys"}
    refused = InProcess(cli.data_dir, env).run("replay", "--into", "v2", code=2).err
    assert "nobodys.l0.events does not exist" in refused


# --- with a model ----------------------------------------------------------------------------

FACTS = ("User lives in Oslo.", "The violin lesson is on Mondays.", "Cinnamon makes them sneeze.")
"""Nothing alike, so that no question arises whether two of them are the same."""


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedLlm]:
    with scripted_llm(answer=answer) as server:
        yield server


@pytest.fixture
def extracted(tmp_path: Path, model: ScriptedLlm) -> InProcess:
    """Three sessions extracted by the scripted model, its answers recorded."""
    env = {"SEDIMENT_LLM_BASE_URL": model.url, "SEDIMENT_LLM_MODEL": SCRIPTED_MODEL}
    env["SEDIMENT_SCENE_WRITER"] = "rules"  # so that extraction alone asks
    cli = InProcess(tmp_path / "data", env)
    events = [
        body(f"e{n}", session_id=f"s{n}", content=f"FACT: {fact}",
             occurred_at=at(60 * n).isoformat())
        for n, fact in enumerate(FACTS)
    ]  # fmt: skip
    cli.run("ingest", str(write_lines(tmp_path / "events.jsonl", *events)))
    cli.run("run", "--embedded")
    return cli


def new_event(cli: InProcess, tmp_path: Path) -> None:
    event = body("new", session_id="s9", content="FACT: User has a parrot.",
                 occurred_at=at(9000).isoformat())  # fmt: skip
    cli.run("ingest", str(write_lines(tmp_path / "new.jsonl", event)))


def test_a_dry_run_counts_and_asks_nobody(
    extracted: InProcess, model: ScriptedLlm, tmp_path: Path
) -> None:
    new_event(extracted, tmp_path)
    before = model.count(CHAT)
    found = extracted.json("replay", "--into", "v2", "--dry-run")
    assert (found["events"], found["windows"], found["windows_to_extract"]) == (4, 4, 4)
    assert found["answers"]["mode"] == "missing"
    assert (found["answers"]["recorded"], found["answers"]["not_recorded"]) == (3, 1)
    assert found["answers"]["not_recorded_tokens"] > found["answers"]["recorded_tokens"] / 4
    asked = {one["stage"]: one for one in found["calls"]}
    assert list(asked) == ["extract", "gate_split", "reconcile"], "rules write the scenes"
    assert (asked["extract"]["calls"], asked["extract"]["estimated"]) == (1, False)
    assert asked["reconcile"]["estimated"]
    by_model = InProcess(extracted.data_dir, {**extracted.env, "SEDIMENT_SCENE_WRITER": "model"})
    asked = {
        one["stage"]: one for one in by_model.json("replay", "--into", "v2", "--dry-run")["calls"]
    }
    assert asked["scenes"]["most"] >= asked["scenes"]["calls"] >= asked["scenes"]["least"] > 0
    assert asked["persona"]["calls"] > 0
    fresh = extracted.run("replay", "--into", "v2", "--dry-run", "--answers", "fresh").out
    assert "answers: 0 recorded (0 tokens saved), 4 not: these would be asked" in fresh
    only = extracted.run("replay", "--into", "v2", "--dry-run", "--answers", "recorded").out
    assert "1 not: their windows would become dead letters" in only
    assert model.count(CHAT) == before
    assert [one["generation"] for one in extracted.json("generations", "list")] == ["main"]


def test_recorded_answers_are_used_and_only_what_is_missing_is_asked(
    extracted: InProcess, model: ScriptedLlm, tmp_path: Path
) -> None:
    new_event(extracted, tmp_path)
    before = model.count(CHAT)
    done = extracted.json("replay", "--into", "v2")
    assert model.count(CHAT) == before + 1
    assert (done["answers"]["asked"], done["answers"]["recorded"], done["atoms"]) == (1, 3, 4)
    assert done["answers"]["saved_tokens"] > done["answers"]["asked_tokens"] > 0


def test_recorded_only_asks_nobody_and_shows_what_was_missing(
    extracted: InProcess, model: ScriptedLlm, tmp_path: Path
) -> None:
    new_event(extracted, tmp_path)
    before = model.count(CHAT)
    done = extracted.json("replay", "--into", "v2", "--answers", "recorded", code=1)
    assert (done["atoms"], done["dead_letters"]) == (3, {"no_recorded_answer": 1})
    assert model.count(CHAT) == before
    v2 = of(extracted, "v2")
    (letter,) = v2.json("dlq", "list")["items"]
    assert letter["reason"] == "no_recorded_answer"
    assert (
        "dead letters: 1 for no_recorded_answer"
        in extracted.run("replay", "--into", "v2", "--answers", "recorded", code=1).err
    )
    assert extracted.json("dlq", "list")["items"] == []


def test_fresh_answers_are_asked_once_and_stay_the_generations_own(
    extracted: InProcess, model: ScriptedLlm, tmp_path: Path
) -> None:
    before = model.count(CHAT)
    done = extracted.json("replay", "--into", "v2", "--answers", "fresh")
    assert (done["answers"]["asked"], done["answers"]["recorded"]) == (3, 0)
    assert model.count(CHAT) == before + 3
    # Read again from the beginning, as after a crash without its snapshots: nothing is asked.
    shutil.rmtree(extracted.data_dir / "generations" / "v2")
    again = extracted.json("replay", "--into", "v2", "--answers", "fresh")
    assert (again["answers"]["asked"], again["answers"]["recorded"]) == (0, 3)
    # And so it is for its live flow, once it is promoted.
    extracted.run("generations", "promote", "v2")
    shutil.rmtree(extracted.data_dir / "generations" / "v2")
    extracted.run("run", "--embedded")
    assert model.count(CHAT) == before + 3
    new_event(extracted, tmp_path)
    extracted.run("run", "--embedded")
    assert model.count(CHAT) == before + 4
    assert (
        of(extracted, "main").json("replay", "--into", "v3", "--dry-run")["answers"]["not_recorded"]
        == 1
    ), "what the fresh generation asked is its own"


def test_a_flow_that_stops_because_too_much_fails_is_remembered(
    extracted: InProcess, tmp_path: Path
) -> None:
    """Recorded answers of another model are no answers: everything fails."""
    other = InProcess(extracted.data_dir, {**extracted.env, "SEDIMENT_LLM_MODEL": "another"})
    events = [
        OutRecord(
            "sediment.l0.events",
            b"acme/helper/ana",
            write_lines(
                tmp_path / "one.jsonl",
                body(f"m{n}", session_id=f"m{n}", occurred_at=at(60 * n).isoformat()),
            ).read_bytes(),
        )
        for n in range(100)
    ]
    FileLog(extracted.data_dir / "log", SystemClock()).append(events)
    refused = other.run("replay", "--into", "v2", "--answers", "recorded", code=1).err
    assert "error:" in refused
    (found,) = [one for one in other.json("generations", "list") if one["generation"] == "v2"]
    assert found["state"] == "building" and found["problem"]
    assert "its replay stopped" in other.run("generations", "promote", "v2", code=2).err

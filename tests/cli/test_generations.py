"""``sediment generations``: list, diff, promote, drop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from connectors.filelog import FileLog
from connectors.settings import load_settings
from flows.parts import generation_log
from flows.runner import SystemClock
from stores.answers import SqliteAnswers
from stores.generations import Generation, generation_record
from stores.protocols import ChatAnswer
from stores.records import Outcome, OutRecord, SceneJob
from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig.events import at, body

LIST = ("memories", "list", *ANA, "--json")
REGISTER = "sediment.generations"


@pytest.fixture(scope="module")
def made(remembered: InProcess, tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    """The settled folder and a generation v2 that knows one event more. Only read."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(remembered.data_dir, folder / "data")
    cli = InProcess(folder / "data")
    cli.run("replay", "--into", "v2")
    later = body("e9", content="I have a dog.", occurred_at=at(4000).isoformat())
    cli.run("ingest", str(write_lines(folder / "later.jsonl", later)))
    cli.run("replay", "--into", "v2")
    return cli


@pytest.fixture
def two(made: InProcess, tmp_path: Path) -> InProcess:
    """A copy of it, to be changed."""
    shutil.copytree(made.data_dir, tmp_path / "data")
    return InProcess(tmp_path / "data")


def states(cli: InProcess) -> dict[str, str]:
    return {one["generation"]: one["state"] for one in cli.json("generations", "list")}


# --- list ------------------------------------------------------------------------------------


def test_each_is_listed_with_its_state_and_figures(made: InProcess) -> None:
    main, v2 = made.json("generations", "list")
    assert (main["generation"], main["state"], main["atoms"], main["lag"]) == (
        "main", "promoted", 4, 1,
    )  # fmt: skip
    assert (v2["state"], v2["atoms"], v2["lag"], v2["dead_letters"]) == ("ready", 5, 0, {})
    assert (v2["from"], v2["to"], v2["answers"], v2["created_from"]) == (
        "beginning", "end", "missing", "main",
    )  # fmt: skip
    printed = made.run("generations", "list").out
    assert "promoted" in printed and "v2" in printed


def test_an_empty_folder_has_the_first_one(cli: InProcess) -> None:
    assert states(cli) == {"main": "promoted"}


# --- diff ------------------------------------------------------------------------------------


def test_what_one_knows_and_the_other_does_not(made: InProcess) -> None:
    found = made.json("generations", "diff", "main", "v2")
    assert (found["same"], found["gone"], found["changed"]) == (4, [], [])
    assert [atom["source_event_ids"] for atom in found["added"]] == [["e9"]]
    back = made.run("generations", "diff", "v2", "main").out
    assert "0 added, 1 gone, 0 changed, 4 the same" in back
    bob = ("--tenant", "acme", "--agent", "helper", "--user", "bob")
    assert "0 added, 0 gone" in made.run("generations", "diff", "main", "v2", *bob).out


def test_one_that_is_not_there(made: InProcess) -> None:
    assert "v9 does not exist" in made.run("generations", "diff", "main", "v9", code=2).err


def test_atoms_that_cannot_be_read_are_named(two: InProcess) -> None:
    log = FileLog(two.data_dir / "log", SystemClock())
    log.append([OutRecord("sediment.v2.l1.atoms", b"bad", b"{}")])
    printed = two.run("generations", "diff", "main", "v2")
    assert "sediment.v2.l1.atoms, partition 0" in printed.err


# --- promote ---------------------------------------------------------------------------------


def test_recall_reads_it_from_then_on_and_it_can_be_undone(two: InProcess) -> None:
    before = two.json(*LIST[:-1])["total"]
    done = two.json("generations", "promote", "v2")
    assert done.pop("pending")["events"] == 0
    assert done == {"current": "v2", "before": "main", "previous": ["main"]}
    assert states(two) == {"main": "ready", "v2": "promoted"}
    assert two.json(*LIST[:-1])["total"] == before + 1
    assert {item["id"] for item in two.json("recall", "dog", *ANA)["items"]} & {"e9"}
    exported = two.data_dir.parent / "out"
    assert two.json("export", "--out", str(exported))["atoms"] == 5
    assert "recall reads v2 already" in two.run("generations", "promote", "v2").out
    printed = two.run("generations", "promote", "--undo")
    assert "main is 1 records behind" in printed.err  # it goes back all the same
    assert states(two)["main"] == "promoted"
    assert two.json(*LIST[:-1])["total"] == before
    assert "nothing to undo" in two.run("generations", "promote", "--undo", code=2).err


def test_the_flow_goes_on_in_the_generation_that_is_promoted(
    two: InProcess, tmp_path: Path
) -> None:
    two.run("generations", "promote", "v2")
    later = body("e10", content="I have a cat.", occurred_at=at(9000).isoformat())
    two.run("ingest", str(write_lines(tmp_path / "later.jsonl", later)))
    printed = two.run("run", "--embedded")
    assert "generation: v2" in printed.err
    assert "1 events read" in printed.out
    assert {one["generation"]: one["lag"] for one in two.json("generations", "list")} == {
        "main": 2, "v2": 0,
    }  # fmt: skip


def test_one_that_lags_is_not_promoted(two: InProcess, tmp_path: Path) -> None:
    later = body("e10", content="I have a cat.", occurred_at=at(9000).isoformat())
    two.run("ingest", str(write_lines(tmp_path / "later.jsonl", later)))
    refused = two.run("generations", "promote", "v2", "--timeout", "0.6", code=2).err
    assert "waiting: v2 is 1 records behind" in refused
    assert "v2 is not promoted: it is 1 records behind the events topic" in refused
    assert states(two)["main"] == "promoted"


def test_one_that_holds_a_part_or_is_not_at_its_end_is_not_promoted(two: InProcess) -> None:
    two.run("replay", "--into", "bobs", "--user", "bob")
    refused = two.run("generations", "promote", "bobs", code=2).err
    assert "holds a part only" in refused
    two.run("generations", "promote", "bobs", "--allow-partial")
    log = FileLog(two.data_dir / "log", SystemClock())
    log.append([generation_record(REGISTER, Generation(name="begun"))])
    assert "not come to its end" in two.run("generations", "promote", "begun", code=2).err


def test_one_that_gave_up_more_is_not_promoted(two: InProcess) -> None:
    log = FileLog(two.data_dir / "log", SystemClock())
    refused_record = OutRecord("sediment.l0.events", b"k", b"not an event")
    two.run("run", "--embedded")
    log.append([refused_record])
    two.run("replay", "--into", "v2")
    refused = two.run("generations", "promote", "v2", code=2).err
    assert "it gave up 1 windows or records, the current one 0" in refused
    two.run("generations", "promote", "v2", "--allow-dead-letters")


def test_one_that_has_not_finished_what_the_current_one_has_is_not_promoted(
    two: InProcess,
) -> None:
    """Its offsets say that all was read; two windows and a scene job are on their way."""
    two.run("run", "--embedded")
    topics = ("outcomes", "l2.jobs")
    kept = {name: two.logged(f"sediment.v2.{name}") for name in topics}
    log = FileLog(two.data_dir / "log", SystemClock())
    log.delete_topic("sediment.v2.outcomes")
    ended = [Outcome.model_validate_json(one.value or b"") for one in kept["outcomes"]]
    windows = [one for one in ended if one.kind == "window"]
    lost = {windows[0].outcome_id, windows[1].outcome_id}
    lost.add(next(one.outcome_id for one in ended if one.kind == "scene_job"))
    left = [
        OutRecord("sediment.v2.outcomes", record.key, record.value)
        for record, one in zip(kept["outcomes"], ended, strict=True)
        if one.outcome_id not in lost
    ]
    log.append(left)
    refused = two.run("generations", "promote", "v2", "--timeout", "0.6", code=2).err
    events = sum(len(one.offsets) for one in windows[:2])
    said = f"{events} events are in windows that are open, on their way or being retried (partition"
    assert f"waiting: v2: {said}" in refused
    assert "v2 is not promoted: the current one has finished more" in refused
    assert "1 scenes jobs have not ended" in refused
    assert states(two)["main"] == "promoted"
    told = two.run("generations", "promote", "v2", "--timeout", "0", "--allow-pending").err
    assert f"v2: {events} events are in windows" in told
    assert states(two)["v2"] == "promoted"


def test_what_nobody_has_finished_is_no_reason_to_wait(two: InProcess) -> None:
    """A session that goes on is open in both, and a new job waits its turn as jobs do."""
    open_window = FileLog(two.data_dir / "log", SystemClock())
    job = SceneJob(job_id="new", scope="acme/helper/ana", window_id="w", atom_ids=("a",),
                   occurred_at=at(5000))  # fmt: skip
    open_window.append([OutRecord("sediment.v2.l2.jobs", b"k", job.model_dump_json().encode())])
    done = two.json("generations", "promote", "v2", "--timeout", "0")
    assert done["pending"]["jobs"][0] == {"stage": "scenes", "behind": 0, "waiting": 1}


def test_either_a_generation_or_undo(two: InProcess) -> None:
    for options in ((), ("v2", "--undo")):
        refused = two.run("generations", "promote", *options, code=2).err
        assert "name a GENERATION, or --undo" in refused


def test_a_setting_goes_before_the_pointer(two: InProcess) -> None:
    two.run("generations", "promote", "v2")
    fixed = InProcess(two.data_dir, {"SEDIMENT_GENERATION": "main"})
    assert fixed.json(*LIST[:-1])["total"] == 3
    missing = InProcess(two.data_dir, {"SEDIMENT_GENERATION": "v9"})
    assert "v9 does not exist" in missing.run(*LIST, code=2).err


# --- drop ------------------------------------------------------------------------------------


def test_dropping_has_to_be_meant_and_leaves_the_others_as_they_are(two: InProcess) -> None:
    before = two.text(*LIST)
    listed = two.run("generations", "drop", "v2", code=2)
    assert "sediment.v2.l1.atoms" in listed.out and "sediment_v2_atoms" in listed.out
    assert "add --yes when that is meant" in listed.err
    assert "generation v2 is gone" in two.run("generations", "drop", "v2", "--yes").out
    assert states(two) == {"main": "promoted"}
    assert two.text(*LIST) == before
    assert not list((two.data_dir / "log").glob("sediment.v2.*"))
    assert not (two.data_dir / "generations" / "v2").exists()
    two.run("generations", "drop", "v2", "--dry-run")
    assert not list((two.data_dir / "log").glob("sediment.v2.*")), "to look makes nothing anew"
    two.run("generations", "drop", "v2", "--yes")  # killed on the way, it is done again
    assert "v2 was dropped" in two.run("replay", "--into", "v2", code=2).err
    assert "v9 does not exist" in two.run("generations", "drop", "v9", "--yes", code=2).err


def test_a_dry_run_lists_what_goes_and_deletes_nothing(two: InProcess) -> None:
    items = two.json("generations", "drop", "v2", "--yes", "--dry-run")["items"]
    assert {one["kind"] for one in items} == {"topic", "collection", "folder"}
    (atoms,) = [one for one in items if one["name"] == "sediment.v2.l1.atoms"]
    assert atoms["count"] >= 5
    assert [one["name"] for one in items if one["kind"] == "folder"] == [
        str(two.data_dir / "generations" / "v2")
    ]
    assert states(two) == {"main": "promoted", "v2": "ready"}


def test_main_goes_with_its_scenes_and_persona(two: InProcess) -> None:
    two.run("generations", "promote", "v2")
    there = {"recovery", "scenes", "persona"}
    assert there <= {one.name for one in two.data_dir.iterdir()}
    two.run("generations", "drop", "main", "--yes")
    assert not there & {one.name for one in two.data_dir.iterdir()}
    assert two.json("scenes", "list", *ANA)["items"], "those of v2 are where they were"


def test_answers_that_were_its_own_go_and_all_others_stay(two: InProcess, tmp_path: Path) -> None:
    """Its name is the beginning of another one's."""
    journal = SqliteAnswers(two.data_dir / "answers.sqlite")
    for name in ("hash", "v2:hash", "v2-b:hash", "v20:hash"):
        journal.put(name, "p/1", ChatAnswer("text", "m", 1, 1, 0.0), about=["scope"])
    register = generation_log(load_settings(data_dir=two.data_dir))
    register.write(register.read().get("v2").model_copy(update={"answers": "fresh"}))
    items = two.json("generations", "drop", "v2", "--yes")["items"]
    assert [(one["name"], one["count"]) for one in items if one["kind"] == "answers"] == [
        ("v2:*", 1)
    ]
    left = [name for name in ("hash", "v2:hash", "v2-b:hash", "v20:hash") if journal.get(name)]
    assert left == ["hash", "v2-b:hash", "v20:hash"]
    assert journal.hashes_about(["scope"]) == sorted(left)
    journal.close()


def test_the_current_one_stays_and_a_dropped_one_is_not_gone_back_to(two: InProcess) -> None:
    refused = two.run("generations", "drop", "main", "--yes", code=2).err
    assert "recall reads main; promote another" in refused
    two.run("generations", "promote", "v2")
    two.run("generations", "drop", "main", "--yes")
    assert states(two) == {"v2": "promoted"}
    assert "nothing to undo" in two.run("generations", "promote", "--undo", code=2).err
    assert two.json(*LIST[:-1])["total"] == 4
    assert (two.data_dir / "log" / "sediment.l0.events").exists()
    assert not (two.data_dir / "recovery").exists()

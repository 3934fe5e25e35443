"""``sediment scenes``: list, show, history, edit and restore, and what the next run makes of it."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from connectors.settings import load_settings
from flows.cli import scenes
from flows.opening import open_tombstones
from stores.records import Tombstone
from tests.cli.in_process import ANA, InProcess

EDITOR = """import pathlib, sys
path = pathlib.Path(sys.argv[1])
path.write_text(path.read_text().replace("nurse", "surgeon"))
"""


@pytest.fixture
def own(remembered: InProcess, tmp_path: Path) -> InProcess:
    """A copy of the folder in which memories have settled."""
    shutil.copytree(remembered.data_dir, tmp_path / "data", symlinks=True)
    return InProcess(tmp_path / "data")


def test_scenes_are_listed_shown_and_have_a_history(remembered: InProcess) -> None:
    listed = remembered.json("scenes", "list", *ANA)
    assert [item["path"] for item in listed["items"]] == ["Who-they-are.md", "Work-and-study.md"]
    assert listed["items"][0]["generator"] == "rules/1"
    shown = remembered.text("scenes", "show", "Who-they-are", *ANA)
    assert shown.startswith("---\ntype: scene\ntitle: Who they are\n")
    assert "## Earlier\n\n- User lives in Lisbon." in shown
    kept = remembered.json("scenes", "history", *ANA)["items"]
    assert kept[0]["generation"] == listed["generation"]
    assert {item["author"] for item in kept} == {"rules/1"}
    earlier = remembered.json("scenes", "show", "Who-they-are", "--generation", "1", *ANA)
    assert earlier["generator"] == "rules/1"
    assert "Who-they-are.md" in remembered.text("scenes", "list", *ANA)
    assert "generation" in remembered.text("scenes", "history", *ANA)


def test_what_is_not_there_is_said(remembered: InProcess) -> None:
    refused = remembered.run("scenes", "show", "nothing", *ANA, code=2)
    assert "has no file nothing.md; there are: Who-they-are.md" in refused.err
    assert "no generation 99" in remembered.run("scenes", "show", "x", "--generation", "99", *ANA,
                                                code=2).err  # fmt: skip
    nobody = ("--tenant", "acme", "--agent", "helper", "--user", "nobody")
    assert "no scenes of" in remembered.text("scenes", "list", *nobody)
    assert "no generation 7" in remembered.run("scenes", "restore", "7", *nobody, code=2).err


def test_an_edit_is_a_generation_of_its_own_and_recall_has_it_after_the_next_run(
    own: InProcess, tmp_path: Path
) -> None:
    before = own.json("scenes", "list", *ANA)["generation"]
    text = tmp_path / "mine.md"
    text.write_text("Ana collects rare zeppelins.")
    made = own.json("scenes", "edit", "Zeppelins", "--file", str(text), *ANA)
    assert (made["generation"], made["author"]) == (before + 1, "person")
    own.run("run", "--embedded")
    answer = own.json("recall", "rare zeppelins", *ANA)
    assert "zeppelins" in answer["system_context"], answer
    assert own.json("scenes", "show", "Zeppelins", *ANA)["generator"] == "person"
    own.run("scenes", "restore", str(before), *ANA)
    own.run("run", "--embedded")
    assert "Zeppelins.md" not in own.text("scenes", "list", *ANA)
    answer = own.json("recall", "rare zeppelins", *ANA)
    assert "zeppelins" not in answer["system_context"] + answer["user_context"]


def test_an_edit_that_was_killed_half_way_is_recalled_once_it_is_made_again(
    own: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written and nobody was told; the editor then shows it, and nothing is to do."""
    text = tmp_path / "mine.md"
    text.write_text("Ana collects rare zeppelins.")
    with monkeypatch.context() as killed:
        killed.setattr(scenes, "_ask_for_run", _killed)
        own.run("scenes", "edit", "Zeppelins", "--file", str(text), *ANA, code=130)
    monkeypatch.setenv("VISUAL", "true")
    assert "nothing changed" in own.text("scenes", "edit", "Zeppelins", *ANA)
    own.run("run", "--embedded")
    assert "zeppelins" in own.json("recall", "rare zeppelins", *ANA)["system_context"]


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["Work and study", "work-and-study.md", "../Work-and-study"])
def test_a_scene_is_found_by_its_title_and_not_made_a_second_time(
    own: InProcess, tmp_path: Path, name: str
) -> None:
    text = tmp_path / "work.md"
    text.write_text("She works at night.\n")
    before = {item["path"] for item in own.json("scenes", "list", *ANA)["items"]}
    said = own.run("scenes", "edit", name, "--file", str(text), *ANA).out
    assert "Work-and-study.md is written" in said
    assert "at night" in own.text("scenes", "show", name, *ANA)
    assert {item["path"] for item in own.json("scenes", "list", *ANA)["items"]} == before


def test_an_editor_is_used_and_its_failure_changes_nothing(
    own: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor.py"
    script.write_text(EDITOR)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    own.run("scenes", "edit", "Work-and-study", *ANA)
    assert "surgeon" in own.text("scenes", "show", "Work-and-study", *ANA)
    assert "nothing changed" in own.text("scenes", "edit", "Work-and-study", *ANA)
    monkeypatch.setenv("EDITOR", f"{sys.executable} -c raise(SystemExit(3))")
    assert "ended with 3" in own.run("scenes", "edit", "Work-and-study", *ANA, code=2).err
    monkeypatch.delenv("EDITOR")
    assert "--file" in own.run("scenes", "edit", "Work-and-study", *ANA, code=2).err
    missing = str(tmp_path / "none.md")
    refused = own.run("scenes", "edit", "Work-and-study", "--file", missing, *ANA, code=2)
    assert "cannot read" in refused.err
    assert not os.environ.get("EDITOR")


def test_what_was_forgotten_is_shown_no_more_before_it_is_rewritten(own: InProcess) -> None:
    """The files on disk still have it: the scene run has not come."""
    tombstone = Tombstone(
        tombstone_id="t", kind="forget", target="user", scope="acme/helper/ana", user_id="ana",
        request_id="r", requested_at=datetime(2030, 1, 1, tzinfo=timezone.utc),
        topic="sediment.l0.events", partition=0, offset=0,
    )  # fmt: skip
    assert own.json("scenes", "list", *ANA)["total"] == 2
    open_tombstones(load_settings(data_dir=own.data_dir)).publish([tombstone])
    listed = own.run("scenes", "list", *ANA)
    assert "2 more: rests on what was forgotten" in listed.err
    assert ".md" not in listed.out + listed.err
    assert own.json("scenes", "list", *ANA)["items"] == []
    for verb in (("scenes", "show", "Who-they-are"), ("persona", "show")):
        refused = own.run(*verb, *ANA, code=2)
        assert "waits to be rewritten" in refused.err
        assert "Lisbon" not in refused.err + refused.out
    earlier = own.run("scenes", "show", "Who-they-are", "--generation", "1", *ANA, code=2)
    assert "Lisbon" not in earlier.err + earlier.out
    refused = own.run("scenes", "edit", "Who-they-are", "--file", os.devnull, *ANA, code=2)
    assert "edit it after the next scene run" in refused.err
    history = own.json("scenes", "history", *ANA)["items"]
    assert history
    assert {name for one in history for name in (*one["files"], *one["changed"])} == set()

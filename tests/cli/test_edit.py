"""``sediment edit``: the new text takes the memory's place, and keeps it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stores.requests import edited_atom_id
from tests.cli.in_process import ANA, InProcess


@pytest.fixture
def cli(remembered: InProcess, tmp_path: Path) -> InProcess:
    shutil.copytree(remembered.data_dir, tmp_path / "copy")
    return InProcess(tmp_path / "copy")


def atom(cli: InProcess, word: str) -> dict[str, Any]:
    items = cli.json("memories", "list", *ANA)["items"]
    return next(one for one in items if word in one["text"])


def test_an_edited_memory_is_told_in_its_new_words(cli: InProcess) -> None:
    wrong = atom(cli, "nurse")
    asked = cli.json("edit", wrong["atom_id"], "User works as a midwife.", *ANA)
    assert asked["scope"] == "acme/helper/ana"
    cli.run("run", "--embedded")
    right, old = atom(cli, "midwife"), atom(cli, "nurse")
    assert (right["status"], right["slot"], right["type"]) == (
        "active", wrong["slot"], wrong["type"],
    )  # fmt: skip
    assert (old["status"], old["superseded_by"]) == ("superseded", right["atom_id"])
    assert right["source_event_ids"] == [asked["event_id"]]
    assert right["atom_id"] == edited_atom_id("acme/helper/ana", asked["event_id"])
    audit = cli.json("audit")
    assert audit["clean"], audit
    items = cli.json("recall", "what is her job? midwife nurse", *ANA)["items"]
    told = {one["text"] for one in items if one["layer"] == "atom"}
    assert "User works as a midwife." in told
    assert not any("nurse" in one for one in told)


def test_an_edit_survives_rebuilding_and_running_again(cli: InProcess) -> None:
    cli.json("edit", atom(cli, "nurse")["atom_id"], "User works as a midwife.", *ANA)
    cli.run("run", "--embedded")
    before = cli.json("memories", "list", *ANA)
    for name in ("recovery", "milvus"):
        shutil.rmtree(cli.data_dir / name)
    cli.run("run", "--embedded")
    assert cli.json("memories", "list", *ANA) == before


def test_a_secret_does_not_come_in_by_an_edit(cli: InProcess) -> None:
    wrong = atom(cli, "nurse")
    cli.json("edit", wrong["atom_id"], "User pays with card 4111 1111 1111 1111.", *ANA)
    cli.run("run", "--embedded")
    assert atom(cli, "nurse")["status"] == "active"
    assert "4111" not in str(cli.json("memories", "list", *ANA))


def test_an_edit_of_a_memory_that_is_not_there_changes_nothing(cli: InProcess) -> None:
    before = cli.json("memories", "list", *ANA)
    cli.json("edit", "nobody", "User is a pilot.", *ANA)
    cli.run("run", "--embedded")
    assert cli.json("memories", "list", *ANA) == before
    assert cli.json("audit")["clean"]


def test_it_says_what_is_missing(cli: InProcess) -> None:
    assert "TEXT: say what" in cli.run("edit", "a1", " ", *ANA, code=2).err

"""``sediment reject``: a value that was marked as wrong is told no more, and not learned again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig.events import at, body


@pytest.fixture
def cli(remembered: InProcess, tmp_path: Path) -> InProcess:
    shutil.copytree(remembered.data_dir, tmp_path / "copy")
    return InProcess(tmp_path / "copy")


def atoms(cli: InProcess, word: str) -> list[dict[str, Any]]:
    items = cli.json("memories", "list", *ANA)["items"]
    return [one for one in items if word in one["text"]]


def test_without_yes_it_is_only_shown(cli: InProcess) -> None:
    before = len(cli.logged())
    shown = cli.json("reject", atoms(cli, "nurse")[0]["atom_id"], *ANA)
    assert (shown["events"], shown["atoms_removed"], shown["atoms_changed"]) == (0, 0, 1)
    assert shown["asked"] is False
    assert len(cli.logged()) == before


def test_a_rejected_value_is_told_no_more_and_not_learned_again(
    cli: InProcess, tmp_path: Path
) -> None:
    wrong = atoms(cli, "nurse")[0]
    cli.run("reject", wrong["atom_id"], *ANA, "--reason", "a joke", "--yes")
    request = orjson.loads(cli.logged()[-1].value or b"")
    assert (request["type"], request["request"]["reason"]) == ("reject", "a joke")
    again = body("e9", content="I work as a NURSE.", occurred_at=at(9000).isoformat())
    cli.run("ingest", str(write_lines(tmp_path / "again.jsonl", again)))
    cli.run("run", "--embedded")
    assert [one["status"] for one in atoms(cli, "nurse") + atoms(cli, "NURSE")] == ["rejected"]
    told = cli.json("recall", "does she work as a nurse?", *ANA)["items"]
    assert not any("nurse" in one["text"].lower() for one in told if one["layer"] == "atom")
    assert cli.json("audit")["clean"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("reject", "a1", "--tenant", "acme", "--user", "ana"), "--agent: say whose"),
        (("reject", "", *ANA), "--atom"),
    ],
)
def test_what_cannot_be_asked_for_is_told(
    remembered: InProcess, arguments: tuple[str, ...], says: str
) -> None:
    before = len(remembered.logged())
    assert says in remembered.run(*arguments, "--yes", code=2).err
    assert len(remembered.logged()) == before

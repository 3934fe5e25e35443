"""``sediment export``: a folder of files that is the same whenever it is written."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.cli.in_process import ANA, InProcess


def test_everything_or_one_scope_is_exported(remembered: InProcess, tmp_path: Path) -> None:
    result = remembered.json("export", "--out", str(tmp_path / "all"))
    assert (result["scopes"], result["events"], result["atoms"]) == (2, 4, 4)
    one = remembered.json("export", "--out", str(tmp_path / "ana"), *ANA)
    assert (one["scopes"], one["events"], one["atoms"]) == (1, 3, 3)
    page = (tmp_path / "ana" / "acme+helper+ana" / "memory.md").read_text()
    assert page.index("Porto") < page.index("## Superseded") < page.index("Lisbon")


def test_the_atoms_are_those_of_the_store(remembered: InProcess, tmp_path: Path) -> None:
    remembered.run("export", "--out", str(tmp_path / "ana"), *ANA)
    lines = (tmp_path / "ana" / "acme+helper+ana" / "atoms.jsonl").read_bytes().splitlines()
    stored = remembered.json("memories", "list", *ANA)["items"]
    assert [orjson.loads(line) for line in lines] == [
        {name: value for name, value in item.items() if value is not None} for item in stored
    ]


def test_an_earlier_export_is_replaced_only_when_asked(
    remembered: InProcess, tmp_path: Path
) -> None:
    folder = str(tmp_path / "out")
    first = remembered.json("export", "--out", folder)
    assert "--replace" in remembered.run("export", "--out", folder, code=2).err
    assert remembered.json("export", "--out", folder, "--replace") == first


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--tenant", "acme"), "the scope needs agent, user"),
        (("--tenant", "a", "--agent", "b", "--user", "c"), "nothing of scope a/b/c"),
    ],
)
def test_a_scope_must_be_whole_and_known(
    remembered: InProcess, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    assert says in remembered.run("export", "--out", str(tmp_path / "x"), *options, code=2).err
    assert not (tmp_path / "x").exists()


def test_an_empty_log_is_not_exported(cli: InProcess, tmp_path: Path) -> None:
    assert "holds no events" in cli.run("export", "--out", str(tmp_path / "x"), code=2).err

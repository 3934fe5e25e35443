"""``sediment import``: memories work at once, the flow doubles nothing, and back out again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.in_process import ANA, InProcess

LIST = ("memories", "list", *ANA, "--json")


@pytest.fixture
def exported(remembered: InProcess, tmp_path: Path) -> Path:
    remembered.run("export", "--out", str(tmp_path / "out"))
    return tmp_path / "out"


def files(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def recalled(cli: InProcess) -> dict[str, int]:
    """Give what is recalled, with its rank by meaning: that by keyword is no promise."""
    items = cli.json("recall", "Where does she live?", *ANA)["items"]
    assert items
    return {item["id"]: item["ranks"].get("dense") for item in items if item["layer"] != "scene"}


def _scenes(cli: InProcess) -> tuple[object, str]:
    return cli.json("scenes", "list", *ANA)["items"], cli.text("persona", "show", *ANA)


def test_there_and_back_again(
    cli: InProcess, remembered: InProcess, exported: Path, tmp_path: Path
) -> None:
    result = cli.json("import", str(exported))
    assert (result["events"]["written"], result["atoms"]["written"]) == (4, 4)
    assert result["profiles"]["written"] == result["store"]["profiles"]["written"] >= 2
    assert _scenes(cli) == _scenes(remembered)
    memories = remembered.text(*LIST)
    assert (cli.text(*LIST), recalled(cli)) == (memories, recalled(remembered))
    again = cli.json("import", str(exported))
    assert (again["events"], again["atoms"]) == (
        {"written": 0, "present": 4, "forgotten": 0, "refused": 0},
        {"written": 0, "present": 4, "forgotten": 0, "refused": 0},
    )  # fmt: skip
    assert (again["profiles"]["written"], again["profiles"]["left"]) == (0, [])
    assert (again["store"]["atoms"]["written"], again["store"]["events"]["written"]) == (0, 0)
    cli.run("run", "--embedded")  # it reads the imported events, as any flow does
    assert cli.text(*LIST) == memories
    cli.run("export", "--out", str(tmp_path / "back"))
    assert files(tmp_path / "back") == files(exported)


def test_scenes_that_are_here_stay_and_that_is_said(
    cli: InProcess, exported: Path, tmp_path: Path
) -> None:
    cli.run("import", str(exported))
    (name, *_) = [one["path"] for one in cli.json("scenes", "list", *ANA)["items"]]
    text = tmp_path / "own.md"
    text.write_text("My own words about it.\n")
    cli.run("scenes", "edit", name, "--file", str(text), *ANA)
    said = cli.run("import", str(exported))
    assert "scenes of the export left out" in said.err
    assert "they stay" in said.err
    assert "My own words" in cli.text("scenes", "show", name, *ANA)
    left = cli.json("import", str(exported))["profiles"]["left"]
    assert [(one["kind"], one["scope"]) for one in left] == [("scene", "acme/helper/ana")]


def test_what_was_forgotten_here_does_not_come_back_in_a_scene(
    cli: InProcess, exported: Path
) -> None:
    cli.run("import", str(exported))
    cli.run("forget", *ANA, "--yes")
    cli.run("run", "--embedded")
    assert cli.json("scenes", "list", *ANA)["items"] == []
    result = cli.json("import", str(exported))
    assert result["profiles"]["written"] == 0
    assert result["profiles"]["forgotten"] >= 2
    assert cli.json("scenes", "list", *ANA)["items"] == []


def test_an_export_without_scenes_of_the_first_format_is_read(
    cli: InProcess, remembered: InProcess, exported: Path
) -> None:
    old = exported.with_name("old")
    remembered.run("export", "--out", str(old), "--no-scenes")
    manifest = old / "manifest.json"
    said = json.loads(manifest.read_bytes())
    assert said.pop("profiles") == said["scopes"][0].pop("profiles") == 0
    manifest.write_text(json.dumps({**said, "version": 1}))
    assert cli.json("import", str(old))["atoms"]["written"] == 4


def test_memories_alone_or_events_alone(
    cli: InProcess, remembered: InProcess, exported: Path
) -> None:
    cli.run("import", str(exported), "--atoms-only")
    assert cli.text(*LIST) == remembered.text(*LIST)
    assert cli.logged() == []
    both = cli.run("import", str(exported), "--atoms-only", "--events-only", code=2)
    assert "exclude each other" in both.err
    other = InProcess(cli.data_dir.with_name("other"))
    other.run("import", str(exported), "--events-only")
    assert other.json(*LIST[:-1])["items"] == []
    other.run("run", "--embedded")
    assert other.text(*LIST) == remembered.text(*LIST)


def test_a_changed_export_is_refused(cli: InProcess, exported: Path) -> None:
    path = exported / "acme+helper+ana" / "atoms.jsonl"
    path.write_bytes(path.read_bytes().replace(b"Porto", b"Paris"))
    assert "its hash differs" in cli.run("import", str(exported), code=2).err
    assert cli.logged() == cli.logged("sediment.l1.atoms") == []
    assert "give the folder" in cli.run("import", str(exported.parent), code=2).err

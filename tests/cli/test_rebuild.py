"""``sediment rebuild``: the store again from the topics, and into collections of other settings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from connectors.filelog import FileLog
from flows.runner import SystemClock
from stores.embedded import open_embedded
from stores.records import OutRecord
from tests.cli.in_process import ANA, InProcess

LIST = ("memories", "list", *ANA, "--json")
BOB = ("memories", "list", "--tenant", "acme", "--agent", "helper", "--user", "bob", "--json")
OTHER = {"SEDIMENT_ANALYZER": "standard"}


@pytest.fixture
def copied(remembered: InProcess, tmp_path: Path) -> InProcess:
    """A copy of the settled data folder, to be changed."""
    shutil.copytree(remembered.data_dir, tmp_path / "data")
    return InProcess(tmp_path / "data")


def with_env(cli: InProcess, env: Mapping[str, str]) -> InProcess:
    return InProcess(cli.data_dir, env)


def recalled(cli: InProcess) -> dict[str, int]:
    """Give what is recalled, with its rank by meaning.

    The rank by keyword is no promise: milvus-lite counts how rare a word is per file, and which
    rows share a file depends on when they were written.
    """
    items = cli.json("recall", "Where does she live?", *ANA)["items"]
    assert items
    return {item["id"]: item["ranks"].get("dense") for item in items}


def test_a_store_that_was_wiped_comes_back_the_same(copied: InProcess) -> None:
    before = copied.text(*LIST), copied.text(*BOB), recalled(copied)
    untouched = copied.json("rebuild")  # the flow's own rows, compared field by field
    assert (untouched["atoms"]["written"], untouched["events"]["written"]) == (0, 0)
    shutil.rmtree(copied.data_dir / "milvus")
    result = copied.json("rebuild")
    assert (result["atoms"]["written"], result["events"]["written"]) == (4, 4)
    assert (copied.text(*LIST), copied.text(*BOB), recalled(copied)) == before
    again = copied.json("rebuild")
    assert (again["atoms"]["written"], again["events"]["written"]) == (0, 0)
    copied.run("run", "--embedded")
    assert copied.text(*LIST) == before[0]


def test_other_settings_go_into_collections_of_another_prefix(copied: InProcess) -> None:
    other = with_env(copied, OTHER)
    refused = other.run("rebuild", code=2).err
    assert "sediment rebuild --collection-prefix NEW" in refused
    printed = other.run("rebuild", "--collection-prefix", "second").out
    assert "set SEDIMENT_COLLECTION_PREFIX=second" in printed
    switched = with_env(copied, {**OTHER, "SEDIMENT_COLLECTION_PREFIX": "second"})
    assert switched.text(*LIST) == copied.text(*LIST)
    assert recalled(switched) == recalled(copied)


def test_dropping_first_has_to_be_meant_and_leaves_no_stale_row(copied: InProcess) -> None:
    other = with_env(copied, OTHER)
    refused = other.run("rebuild", "--drop-first", code=2).err
    assert "sediment_atoms" in refused and "--yes" in refused
    expected = copied.text(*LIST)
    done = other.json("rebuild", "--drop-first", "--yes")
    assert (done["atoms"]["unchanged"], done["atoms"]["written"]) == (0, 4)
    assert other.text(*LIST) == expected
    copied.run("memories", "list", *ANA, code=2)  # the old settings are the wrong ones now


def test_a_folder_in_use_is_refused(copied: InProcess) -> None:
    with open_embedded(copied.data_dir):
        assert "in use by process" in copied.run("rebuild", code=2).err


def test_what_cannot_be_read_is_listed_and_gives_exit_code_1(copied: InProcess) -> None:
    log = FileLog(copied.data_dir / "log", SystemClock())
    log.append([OutRecord("sediment.l1.atoms", b"bad", b'{"text": "secret"}')])
    result = copied.json("rebuild", code=1)
    assert result["complete"] is False
    (unreadable,) = result["unreadable"]
    assert unreadable["topic"] == "sediment.l1.atoms"
    printed = copied.run("rebuild", code=1)
    assert f"offset {unreadable['offset']}" in printed.err
    assert "secret" not in printed.err + printed.out

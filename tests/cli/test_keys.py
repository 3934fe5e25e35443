"""``sediment keys create``: a key is shown once, and only its hash is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectors.query.auth import load_keys
from connectors.settings import Settings
from tests.cli.in_process import InProcess


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def keyed(file: Path, tmp_path: Path) -> InProcess:
    return InProcess(tmp_path / "data", {"SEDIMENT_API_KEYS_FILE": str(file)})


def test_the_key_works_and_only_its_hash_is_kept(keyed: InProcess, file: Path) -> None:
    printed = keyed.run("keys", "create", "app", "--tenant", "acme", "--user", "ana")
    assert printed.out.startswith("sed_")
    assert " " not in printed.out
    assert str(file) in printed.err
    assert printed.out not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    ring = load_keys(Settings(api_keys_file=file))
    assert ring is not None
    found = ring.find(printed.out)
    assert found is not None
    assert (found.id, found.tenant, found.user, found.agent) == ("app", "acme", "ana", None)


def test_a_second_key_leaves_the_first_as_it_is(keyed: InProcess, file: Path) -> None:
    keyed.run("keys", "create", "one", "--tenant", "acme")
    before = json.loads(file.read_bytes())
    keyed.run("keys", "create", "two", "--tenant", "umbrella")
    after = json.loads(file.read_bytes())
    assert after[:1] == before
    assert [entry["tenant"] for entry in after] == ["acme", "umbrella"]


def test_a_name_that_is_taken_is_refused(keyed: InProcess, file: Path) -> None:
    keyed.run("keys", "create", "app", "--tenant", "acme")
    before = file.read_bytes()
    assert "app" in keyed.run("keys", "create", "app", "--tenant", "acme", code=2).err
    assert file.read_bytes() == before


def test_a_file_that_holds_no_keys_is_left_as_it_is(keyed: InProcess, file: Path) -> None:
    file.write_text('{"not": "keys"}')
    assert str(file) in keyed.run("keys", "create", "app", "--tenant", "acme", code=2).err
    assert file.read_text() == '{"not": "keys"}'


@pytest.mark.parametrize("tenant", ["", "*", "a\nb"])
def test_a_key_belongs_to_one_tenant(tenant: str, keyed: InProcess, file: Path) -> None:
    keyed.run("keys", "create", "app", "--tenant", tenant, code=2)
    assert not file.exists()


def test_without_a_file_there_is_nowhere_to_keep_it(cli: InProcess) -> None:
    assert "SEDIMENT_API_KEYS_FILE" in cli.run("keys", "create", "a", "--tenant", "t", code=2).err

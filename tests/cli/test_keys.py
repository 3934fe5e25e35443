"""``sediment keys``: a key is shown once, only its hash is kept, and it can be taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectors.query.keys_file import load_keys
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
    assert (found.id, found.tenant, found.user, found.agent) == ("app", "acme", ("ana",), None)
    assert found.rights == {"read", "write"}


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


def test_a_key_may_be_bound_to_several_and_to_few_rights(keyed: InProcess) -> None:
    made = keyed.json(
        "keys", "create", "app", "--tenant", "acme", "--user", "ana", "--user", "bob",
        "--right", "admin", "--right", "read",
    )  # fmt: skip
    secret = made.pop("key")
    assert secret.startswith("sed_")
    assert made.pop("created_at")
    assert made == {
        "id": "app",
        "tenant": "acme",
        "agents": ["*"],
        "users": ["ana", "bob"],
        "teams": ["*"],
        "rights": ["read", "admin"],
    }
    (listed,) = keyed.json("keys", "list")
    listed.pop("created_at")
    assert listed == made
    assert "sed_" not in keyed.run("keys", "list").out


def test_a_right_that_there_is_not_is_refused(keyed: InProcess, file: Path) -> None:
    said = keyed.run("keys", "create", "a", "--tenant", "t", "--right", "root", code=2).err
    assert "root" in said
    assert "admin" in said
    assert not file.exists()


def test_a_revoked_key_is_no_key_of_a_service_that_runs(keyed: InProcess, file: Path) -> None:
    secrets = {name: keyed.run("keys", "create", name, "--tenant", "acme").out for name in "ab"}
    running = load_keys(Settings(api_keys_file=file))
    assert running is not None
    keyed.run("keys", "revoke", "a")
    assert running.find(secrets["a"]) is None
    assert running.find(secrets["b"]) is not None
    assert [entry["id"] for entry in keyed.json("keys", "list")] == ["b"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert keyed.json("keys", "revoke", "b")["revoked"]["id"] == "b"
    assert keyed.json("keys", "list") == []


def test_what_is_not_there_cannot_be_revoked(keyed: InProcess, file: Path) -> None:
    keyed.run("keys", "create", "app", "--tenant", "acme")
    before = file.read_bytes()
    assert "keys list" in keyed.run("keys", "revoke", "other", code=2).err
    assert file.read_bytes() == before


@pytest.mark.parametrize("tenant", ["", "*", "a\nb"])
def test_a_key_belongs_to_one_tenant(tenant: str, keyed: InProcess, file: Path) -> None:
    keyed.run("keys", "create", "app", "--tenant", tenant, code=2)
    assert not file.exists()


@pytest.mark.parametrize(
    "command",
    [("create", "a", "--tenant", "t"), ("list",), ("revoke", "a")],
    ids=lambda one: one[0],
)
def test_without_a_file_there_is_nowhere_to_keep_it(
    command: tuple[str, ...], cli: InProcess
) -> None:
    assert "SEDIMENT_API_KEYS_FILE" in cli.run("keys", *command, code=2).err

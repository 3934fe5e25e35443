from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from connectors.query.auth import (
    LOOPBACK,
    RIGHTS,
    Credential,
    KeyRing,
    RightMissing,
    ScopeIncomplete,
    ScopeRefused,
    new_key,
    right_to_forget,
)
from connectors.query.keys_file import check_bind, load_keys, write_entries
from connectors.settings import SCOPE_FIELDS, ScopeField, Settings
from stores.errors import ServiceUnavailable, SettingsError
from stores.records import ControlRequest

FIELDS: tuple[ScopeField, ...] = ("tenant", "agent", "user")
ANA = Credential("k", tenant="acme", agent="helper", user="ana")
ACME = Credential("k", tenant="acme")


def test_the_key_alone_gives_its_scope() -> None:
    assert ANA.narrow({}, FIELDS) == {"tenant": "acme", "agent": "helper", "user": "ana"}


def test_an_argument_narrows_what_the_key_leaves_open() -> None:
    asked: dict[ScopeField, str | None] = {"agent": "helper", "user": "bob", "tenant": "acme"}
    assert ACME.narrow(asked, FIELDS) == {"tenant": "acme", "agent": "helper", "user": "bob"}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "value", ["other", "", " ", "*", " * ", "**", "%", "Acme", "ana\x00", "x" * 257]
)
def test_no_argument_reaches_outside_the_key(field: ScopeField, value: str) -> None:
    with pytest.raises(ScopeRefused) as caught:
        ANA.narrow({field: value}, FIELDS)
    assert caught.value.field == field


@pytest.mark.parametrize("value", ["", " ", "*", "%%", "a\nb"])
def test_empty_and_wildcard_are_refused_also_where_the_key_is_open(value: str) -> None:
    for credential in (ACME, LOOPBACK):
        with pytest.raises(ScopeRefused, match="user"):
            credential.narrow({"tenant": "acme", "agent": "helper", "user": value}, FIELDS)


@pytest.mark.parametrize("value", [" ", "%%", "**"])
@pytest.mark.parametrize("part", ["tenant", "team", "agent", "user"])
def test_no_key_is_made_for_what_names_nobody(part: str, value: str) -> None:
    bound: dict[str, Any] = {"tenant": "acme", part: value if part == "tenant" else [value]}
    with pytest.raises(ValidationError, match=r"name nobody|belongs to one tenant"):
        new_key("app", **bound)
    assert new_key("app", "acme", user=["*"])[1].credential().user is None


def test_a_part_that_the_scope_does_not_need_is_checked_too() -> None:
    with pytest.raises(ScopeRefused, match="team"):
        Credential("k", tenant="acme", team="red").narrow({"team": "blue"}, ("tenant",))


def test_a_part_that_nobody_names_is_asked_for() -> None:
    with pytest.raises(ScopeIncomplete, match="say which agent") as caught:
        ACME.narrow({"user": "ana"}, FIELDS)
    assert caught.value.field == "agent"


def test_a_key_for_several_users_must_be_told_which() -> None:
    family = Credential("k", tenant="acme", agent="helper", user=("ana", "bob"))
    with pytest.raises(ScopeIncomplete, match="say which user"):
        family.narrow({}, FIELDS)
    assert family.narrow({"user": "bob"}, FIELDS)["user"] == "bob"
    with pytest.raises(ScopeRefused, match="user"):
        family.narrow({"user": "eve"}, FIELDS)
    # A name that is both of them, or a part of one, is neither.
    for odd in ("ana,bob", "an", "('ana', 'bob')"):
        with pytest.raises(ScopeRefused):
            family.narrow({"user": odd}, FIELDS)


parts = st.none() | st.sampled_from(["a", "b", "*", ""])
several = st.lists(st.sampled_from("abc"), min_size=1, max_size=2).map(tuple)


@given(
    tenant=st.sampled_from("ab"),
    key=st.fixed_dictionaries({
        name: st.none() | st.sampled_from("ab") | several for name in ("team", "agent", "user")
    }),
    asked=st.fixed_dictionaries({name: parts for name in SCOPE_FIELDS}),
)  # fmt: skip
def test_whatever_is_asked_the_scope_stays_inside_the_key(
    tenant: str, key: dict[str, Any], asked: dict[ScopeField, str | None]
) -> None:
    try:
        scope = Credential("k", tenant=tenant, **key).narrow(asked, FIELDS)
    except (ScopeRefused, ScopeIncomplete):
        return
    key["tenant"] = tenant
    for name, value in scope.items():
        assert value in {"a", "b", "c"}
        bound = key[name]
        assert bound is None or value in (bound if isinstance(bound, tuple) else (bound,))
        assert asked[name] in {None, value}


# --- rights ----------------------------------------------------------------------------------


def test_no_right_holds_another() -> None:
    for held in RIGHTS:
        credential = Credential("k", tenant="acme", rights=frozenset([held]))
        credential.require(held)
        for other in set(RIGHTS) - {held}:
            with pytest.raises(RightMissing, match=f"no right to {other}"):
                credential.require(other)


@pytest.mark.parametrize(
    ("request_", "right"),
    [
        (ControlRequest(target="user"), "admin"),
        (ControlRequest(target="session"), "admin"),
        (ControlRequest(target="event", event_ids=("e",)), "write"),
        (ControlRequest(target="atom", atom_ids=("a",)), "write"),
    ],
)
def test_to_forget_all_of_somebody_takes_more(request_: ControlRequest, right: str) -> None:
    assert right_to_forget(request_) == right


# --- the keys file ---------------------------------------------------------------------------


def keys_file(tmp_path: Path, content: object) -> Settings:
    path = tmp_path / "keys.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Settings(api_keys_file=path)


def test_a_new_key_is_found_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    secret, entry = new_key("laptop", "acme", agent=["helper"], user=["*"])
    written = entry.model_dump(mode="json", exclude_none=True)
    assert secret not in json.dumps(written)
    assert written["sha256"] == hashlib.sha256(secret.encode()).hexdigest()
    ring = load_keys(keys_file(tmp_path, [written]))
    assert ring is not None
    assert ring.find(secret) == Credential("laptop", tenant="acme", agent=("helper",))
    for wrong in ("", secret[:-1], secret + "0", written["sha256"], "*", "\ud800"):
        assert ring.find(wrong) is None


def test_keys_differ_and_are_long() -> None:
    made = {new_key("k", "acme")[0] for _ in range(50)}
    assert len(made) == 50
    assert all(len(key) == len("sed_") + 64 for key in made)
    assert new_key("k", "acme", random_bytes=bytes)[0] == "sed_" + "00" * 32


def test_each_key_has_its_own_scope() -> None:
    made = {tenant: new_key(tenant, tenant) for tenant in ("acme", "globex")}
    ring = KeyRing(entry for _, entry in made.values())
    for tenant, (secret, _) in made.items():
        found = ring.find(secret)
        assert found is not None
        assert found.tenant == tenant


HASH = "0" * 64


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("not json", "JSON"),
        ([], "holds no key"),
        ({}, "array"),
        ([{"id": "a", "sha256": HASH}], r"0\.tenant"),
        ([{"id": "a", "sha256": HASH, "tenant": "*"}], "one tenant"),
        ([{"id": "a", "sha256": HASH, "tenant": ""}], r"0\.tenant"),
        ([{"id": "a", "sha256": "hunter2", "tenant": "t"}], r"0\.sha256"),
        ([{"id": "a", "sha256": HASH, "tenant": "t", "usr": "x"}], r"0\.usr"),
        ([{"id": "a", "sha256": HASH, "tenant": "t", "user": []}], r"0\.user"),
        ([{"id": "a", "sha256": HASH, "tenant": "t", "rights": []}], r"0\.rights"),
        ([{"id": "a", "sha256": HASH, "tenant": "t", "rights": ["root"]}], r"0\.rights"),
        ([{"id": "a", "sha256": HASH, "tenant": "t"}] * 2, "two keys with the id a"),
    ],
)
def test_a_wrong_keys_file_says_what_is_wrong(tmp_path: Path, content: object, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        load_keys(keys_file(tmp_path, content))
    assert "hunter2" not in str(caught.value)


def test_a_missing_keys_file_is_an_error_and_not_an_open_door(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        load_keys(Settings(api_keys_file=tmp_path / "none.json"))


def test_no_keys_file_means_no_keys() -> None:
    assert load_keys(Settings()) is None


def test_a_file_without_rights_keeps_read_and_write(tmp_path: Path) -> None:
    secret, entry = new_key("old", "acme")
    old = {"id": "old", "sha256": entry.sha256, "tenant": "acme", "user": "ana"}
    ring = load_keys(keys_file(tmp_path, [old]))
    assert ring is not None
    assert ring.find(secret) == Credential(
        "old", tenant="acme", user=("ana",), rights=frozenset({"read", "write"})
    )


def test_a_changed_file_counts_from_the_next_key_on(tmp_path: Path) -> None:
    (one, first), (two, second) = new_key("one", "acme"), new_key("two", "acme")
    settings = keys_file(tmp_path, [])
    path = settings.api_keys_file
    assert path is not None
    write_entries(path, [first])
    keys = load_keys(settings)
    assert keys is not None
    assert (keys.find(one) is not None, keys.find(two) is not None) == (True, False)
    write_entries(path, [second])
    assert (keys.find(one) is not None, keys.find(two) is not None) == (False, True)
    write_entries(path, [])
    assert keys.find(two) is None


@pytest.mark.parametrize("broken", ["{", None])
def test_while_the_file_cannot_be_read_nobody_is_let_in(tmp_path: Path, broken: str | None) -> None:
    secret, entry = new_key("one", "acme")
    settings = keys_file(tmp_path, [])
    path = settings.api_keys_file
    assert path is not None
    write_entries(path, [entry])
    keys = load_keys(settings)
    assert keys is not None
    path.unlink()
    if broken is not None:
        path.write_text(broken)
    with pytest.raises(ServiceUnavailable, match="keys file"):
        keys.find(secret)
    with pytest.raises(ServiceUnavailable):
        keys.check()
    write_entries(path, [entry])
    assert keys.find(secret) is not None


def test_a_key_for_all_tenants_cannot_be_made() -> None:
    with pytest.raises(ValidationError):
        new_key("k", "*")


# --- where it may bind -----------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    check_bind(host, Settings())


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org", "127.1"]
)
def test_elsewhere_needs_keys(tmp_path: Path, host: str) -> None:
    with pytest.raises(SettingsError, match="no keys are configured"):
        check_bind(host, Settings())
    _, entry = new_key("k", "acme")
    check_bind(host, keys_file(tmp_path, [entry.model_dump(mode="json")]))


@pytest.mark.parametrize("shared", ["brokers", "milvus_uri"])
def test_what_others_share_needs_keys_on_loopback_too(tmp_path: Path, shared: str) -> None:
    servers: dict[str, Any] = {shared: "http://10.0.0.1:1"}
    with pytest.raises(SettingsError, match=f"{shared}.*SEDIMENT_API_KEYS_FILE"):
        check_bind("127.0.0.1", Settings(**servers))
    _, entry = new_key("k", "acme")
    keyed = keys_file(tmp_path, [entry.model_dump(mode="json")])
    check_bind("127.0.0.1", keyed.model_copy(update=servers))

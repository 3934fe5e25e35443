"""Who may do what, how often, and what the audit log says about it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from connectors.query.audit_log import CallNote, open_audit_log, scope_hash
from connectors.query.auth import RIGHTS, KeyRing, Right, new_key
from connectors.query.keys_file import load_keys, write_entries
from connectors.settings import Settings
from stores.errors import ServiceUnavailable, SettingsError
from tests.connectors.query.fakes import SCOPE, FakeClock
from tests.connectors.query.serving import ANA, SECRET_TEXT, World, error_of, message, serve

Call = tuple[str, str, dict[str, Any] | None]

MADE = {right: new_key(right, "acme", rights=[right]) for right in RIGHTS}
WHOLE_SECRET, WHOLE = new_key("whole", "acme", rights=["write", "admin"])

READS: list[Call] = [
    ("POST", "/v1/recall", {"query": "Where?", **ANA}),
    ("POST", "/v1/memories/search", {"query": "Where?", **ANA}),
    ("POST", "/v1/events/search", {"query": "Where?", **ANA}),
    ("GET", "/v1/memories", None),
    ("GET", "/v1/events", None),
    ("GET", "/v1/memories/new", None),
    ("GET", "/v1/persona", None),
    ("GET", "/v1/scenes", None),
    ("GET", "/v1/scenes/moving", None),
    ("GET", "/v1/status", None),
]
WRITES: list[Call] = [
    ("POST", "/v1/events", message()),
    ("POST", "/v1/memories/new/reject", {**ANA}),
    ("PATCH", "/v1/memories/new", {**ANA, "text": "lives in Rome"}),
    ("DELETE", "/v1/memories/new", None),
    ("POST", "/v1/forget", {**ANA, "target": "atom", "atom_ids": ["new"]}),
    ("POST", "/v1/forget", {**ANA, "target": "atom", "atom_ids": ["new"], "dry_run": True}),
]
ADMINS: list[Call] = [
    ("POST", "/v1/forget", {**ANA, "target": "user"}),
    ("POST", "/v1/forget", {**ANA, "target": "session", "session_id": "s1"}),
    ("POST", "/v1/forget", {**ANA, "target": "user", "dry_run": True}),
    ("POST", "/v1/events", message(type="forget", request={"target": "user"})),
]


@pytest.fixture(scope="module")
def keyed_service(shared_world: World) -> Iterator[httpx.Client]:
    entries = [entry for _, entry in MADE.values()]
    yield from serve(shared_world, KeyRing([*entries, WHOLE]), rate_limit=0)


def send(client: httpx.Client, call: Call, secret: str) -> httpx.Response:
    method, path, body = call
    return client.request(
        method,
        path,
        json=body,
        params=ANA if body is None else None,
        headers={"authorization": f"Bearer {secret}"},
    )


def audited(world: World) -> list[dict[str, Any]]:
    return [json.loads(line) for line in world.audited.getvalue().splitlines()]


# --- rights ----------------------------------------------------------------------------------


@pytest.mark.parametrize("held", RIGHTS)
@pytest.mark.parametrize(
    ("needed", "call"),
    [*(("read", call) for call in READS), *(("write", call) for call in WRITES)],
)
def test_every_route_takes_its_right(
    world: World, keyed_service: httpx.Client, held: Right, needed: Right, call: Call
) -> None:
    response = send(keyed_service, call, MADE[held][0])
    if held == needed:
        assert response.status_code in {200, 202}
    else:
        assert response.status_code == 403
        assert error_of(response)["code"] == "right_missing"
        assert needed in error_of(response)["message"]
        assert (world.log, world.searcher.asked) == ([], [])


@pytest.mark.parametrize("call", ADMINS)
def test_to_forget_all_of_somebody_takes_admin_too(
    world: World, keyed_service: httpx.Client, call: Call
) -> None:
    for right in RIGHTS:
        response = send(keyed_service, call, MADE[right][0])
        assert response.status_code == 403
        assert error_of(response)["code"] == "right_missing"
    assert world.log == []
    assert send(keyed_service, call, WHOLE_SECRET).status_code in {200, 202}


def test_a_forget_among_other_events_costs_them_nothing(
    world: World, keyed_service: httpx.Client
) -> None:
    events = [message("m1"), message("m2", type="forget", request={"target": "user"})]
    response = send(keyed_service, ("POST", "/v1/events", {"events": events}), MADE["write"][0])
    assert response.status_code == 207
    assert [one["code"] for one in response.json()["errors"]] == ["right_missing"]
    assert len(world.log) == 1


def test_a_revoked_key_is_refused_without_a_restart(world: World, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret, entry = new_key("one", "acme")
    other_secret, other = new_key("two", "acme")
    write_entries(path, [entry, other])
    for client in serve(world, load_keys(Settings(api_keys_file=path))):
        assert send(client, READS[0], secret).status_code == 200
        write_entries(path, [other])
        assert send(client, READS[0], secret).status_code == 401
        assert send(client, READS[0], other_secret).status_code == 200
        path.write_text("{")
        refused = send(client, READS[0], other_secret)
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "unavailable"


# --- the audit log ---------------------------------------------------------------------------


def test_writes_and_forgets_are_in_the_audit_log_and_reads_are_not(
    world: World, keyed_service: httpx.Client
) -> None:
    for call in READS:
        send(keyed_service, call, MADE["read"][0])
    assert audited(world) == []
    for call in WRITES:
        send(keyed_service, call, MADE["write"][0])
    lines = audited(world)
    assert [(one["method"], one["route"], one["outcome"]) for one in lines] == [
        ("POST", "/v1/events", "done"),
        ("POST", "/v1/memories/{memory_id}/reject", "done"),
        ("PATCH", "/v1/memories/{memory_id}", "done"),
        ("DELETE", "/v1/memories/{memory_id}", "done"),
        ("POST", "/v1/forget", "done"),  # the dry run is not among them
    ]
    assert {(one["key"], *one["scopes"]) for one in lines} == {("write", scope_hash(SCOPE))}
    assert lines[0]["at"] == FakeClock().now().isoformat()


def test_what_is_denied_is_in_the_audit_log(world: World, keyed_service: httpx.Client) -> None:
    send(keyed_service, READS[0], "sed_wrong")
    send(keyed_service, READS[0], MADE["write"][0])
    outside = ("POST", "/v1/recall", {"query": "Where?", "tenant": "globex"})
    send(keyed_service, outside, MADE["read"][0])
    event_outside = ("POST", "/v1/events", message(tenant_id="globex"))
    send(keyed_service, event_outside, MADE["write"][0])
    found = [(one["key"], one["status"], one["outcome"], one["code"]) for one in audited(world)]
    assert found == [
        (None, 401, "denied", "unauthorized"),
        ("write", 403, "denied", "right_missing"),
        ("read", 403, "denied", "scope_refused"),
        ("write", 403, "denied", "scope_refused"),
    ]


def test_what_failed_is_in_the_audit_log(world: World, keyed_service: httpx.Client) -> None:
    for error, status, code in (
        (ServiceUnavailable("kafka", "down"), 503, "unavailable"),
        (ZeroDivisionError(SECRET_TEXT), 500, None),
    ):
        world.log_error = error
        send(keyed_service, WRITES[0], MADE["write"][0])
        line = audited(world)[-1]
        assert (line["outcome"], line["status"], line["code"]) == ("failed", status, code)


def test_a_call_that_is_given_up_is_in_the_audit_log(world: World) -> None:
    world.hang = threading.Event()
    ring = KeyRing([MADE["write"][1]])
    for client in serve(world, ring, request_timeout_s=1.0):
        try:
            assert send(client, WRITES[0], MADE["write"][0]).status_code == 504
        finally:
            world.hang.set()
        (line,) = audited(world)
        assert (line["key"], line["status"], line["outcome"]) == ("write", 504, "failed")


def test_the_audit_log_holds_no_content_no_ids_and_no_key(
    world: World, keyed_service: httpx.Client
) -> None:
    send(keyed_service, ("POST", "/v1/events", message(content=SECRET_TEXT)), MADE["write"][0])
    send(keyed_service, ("DELETE", "/v1/memories/swordfish", None), MADE["write"][0])
    send(
        keyed_service, ("POST", "/v1/recall", {"query": SECRET_TEXT, "user": "*"}), "sed_swordfish"
    )
    text = world.audited.getvalue()
    assert len(text.splitlines()) == 3
    for word in ("swordfish", "vault", "ana", MADE["write"][0]):
        assert word not in text


def test_the_audit_file_is_json_lines_and_may_be_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with open_audit_log(Settings(audit_file=path), FakeClock()) as log:
        log.write("POST", "/v1/events", 200, CallNote(key="k", scopes=("a/b",)))
        path.rename(tmp_path / "audit.1")
        log.write("POST", "/v1/recall", 403, CallNote(code="scope_refused"))
    (first,) = (tmp_path / "audit.1").read_text().splitlines()
    (second,) = path.read_text().splitlines()
    assert json.loads(first)["outcome"] == "done"
    assert json.loads(second)["code"] == "scope_refused"


def test_without_a_file_the_audit_lines_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), open_audit_log(Settings(), FakeClock()) as log:
        log.write("POST", "/v1/events", 401, CallNote())
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("sediment.audit", "WARNING")
    assert json.loads(record.getMessage())["status"] == 401


def test_an_audit_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    settings = Settings(audit_file=tmp_path / "none" / "audit.jsonl")
    with pytest.raises(SettingsError, match="audit_file"), open_audit_log(settings, FakeClock()):
        pass


# --- the rate limit --------------------------------------------------------------------------


def test_a_key_that_calls_too_often_waits_and_others_do_not(world: World) -> None:
    ring = KeyRing(entry for _, entry in MADE.values())
    for client in serve(world, ring, rate_limit=0.001, rate_limit_burst=2):
        statuses = [send(client, READS[0], MADE["read"][0]).status_code for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        refused = send(client, READS[0], MADE["read"][0])
        assert error_of(refused)["code"] == "rate_limited"
        assert 1 <= int(refused.headers["retry-after"]) <= 1000
        assert send(client, WRITES[0], MADE["write"][0]).status_code == 200
        assert client.get("/healthz").status_code == 200
        assert audited(world)[0]["code"] == "rate_limited"


def test_without_keys_an_address_has_its_limit(world: World) -> None:
    for client in serve(world, None, rate_limit_peer=0.5):
        first, second = (client.post("/v1/recall", json=READS[0][2]) for _ in range(2))
        assert (first.status_code, second.status_code) == (200, 429)
        assert error_of(second)["code"] == "rate_limited"
        assert 1 <= int(second.headers["retry-after"]) <= 2
        asked = len(world.searcher.asked)
        assert client.get("/v1/status", params=ANA).status_code == 429
        assert client.get("/healthz").status_code == 200
        assert len(world.searcher.asked) == asked
    for off in ({"rate_limit_peer": 0}, {"rate_limit": 0, "rate_limit_peer": 0.001}):
        for client in serve(world, None, **off):
            found = {client.post("/v1/recall", json=READS[0][2]).status_code for _ in range(5)}
            assert found == {200}


def test_guessing_keys_is_slowed_down_and_a_valid_key_is_not(world: World) -> None:
    ring = KeyRing(entry for _, entry in MADE.values())
    for client in serve(world, ring, rate_limit_peer=0.001):
        guessed = [send(client, READS[0], f"sed_{number}") for number in range(4)]
        assert [one.status_code for one in guessed] == [401, 429, 429, 429]
        assert error_of(guessed[-1])["code"] == "rate_limited"
        assert "www-authenticate" not in guessed[-1].headers
        headers = {"x-tdai-service-id": "acme"}
        wrapped = client.post("/v3/core/read", json={}, headers=headers)
        assert (wrapped.status_code, wrapped.json()["code"]) == (429, 429)
        assert [one["status"] for one in audited(world)] == [401]  # a flood fills no disk
        assert {send(client, READS[0], MADE["read"][0]).status_code for _ in range(3)} == {200}

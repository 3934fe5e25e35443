"""Every error in the envelope, with the code the SDKs know, and in the other system's order."""

from __future__ import annotations

import socket
import threading
from typing import Any

import httpx
import pytest

from connectors.query.auth import KeyRing, new_key
from stores.errors import ServiceUnavailable
from tests.connectors.query.serving import SECRET_TEXT, World, serve
from tests.connectors.query.v3.calling import (
    BODIES,
    EDITS,
    HEADERS,
    IDS,
    WRITES,
    call,
    ok,
    refused,
)

ROUTES = pytest.mark.parametrize("route", BODIES)


@ROUTES
def test_first_comes_the_key_then_the_instance(keyed: httpx.Client, route: str) -> None:
    del keyed.headers["authorization"]
    url, wrong = f"/v3/{route}", b"{"
    kind = {"content-type": "application/json"}
    for key in ({}, {"authorization": "Bearer"}, {"authorization": "Basic abc"}):
        body = refused(keyed.post(url, content=wrong, headers={**kind, **key}), 401)
        assert body["data"]["reason"] == "unauthorized"
    key = {"authorization": HEADERS["authorization"]}
    for instance in ({}, {"x-tdai-service-id": ""}):
        body = refused(keyed.post(url, content=wrong, headers={**kind, **key, **instance}), 401)
        assert body["data"] == {"reason": "no_service_id", "field": "x-tdai-service-id"}
    response = keyed.post(url, content=wrong, headers={**kind, **HEADERS})
    assert refused(response, 400)["data"]["reason"] == "invalid_json"


@ROUTES
def test_a_key_that_nobody_has(keyed: httpx.Client, world: World, route: str) -> None:
    response = call(keyed, route, headers={**HEADERS, "authorization": "Bearer sed_guess"})
    assert refused(response, 401)["data"]["reason"] == "unauthorized"
    assert response.headers["www-authenticate"] == "Bearer"
    assert not world.log


@ROUTES
def test_then_the_ids_then_the_fields(client: httpx.Client, world: World, route: str) -> None:
    """Without keys nothing decides the ids, so they have to be named."""
    wrong = {"messages": 1, "limit": "x", "query": 1, "ids": 1, "message_ids": 1, "path": 1,
             "path_prefix": 1, "time_start": 1, "content": 1}  # fmt: skip
    for ids in ({}, {"agent_id": "helper"}, {"agent_id": "helper", "user_id": " "},
                {"agent_id": "helper", "user_id": 5}):  # fmt: skip
        body = refused(call(client, route, {**wrong, **ids}), 422)
        assert body["data"]["reason"] == "scope_incomplete"
    if not route.startswith("core/") or route == "core/write":
        body = refused(call(client, route, {**wrong, **IDS}), 400)
        assert body["data"]["reason"] == "invalid_request"
    for other in (b"[]", b"", b"3"):
        headers = {**HEADERS, "content-type": "application/json", "x-tdai-agent-id": "helper",
                   "x-tdai-user-id": "ana"}  # fmt: skip
        refused(client.post(f"/v3/{route}", content=other, headers=headers), 400)
    assert not world.log


@ROUTES
@pytest.mark.parametrize("name", ["team", "agent", "user"])
@pytest.mark.parametrize("value", ["", " ", "*", "%", "x" * 257, "a\nb"])
def test_an_id_names_one_thing(
    client: httpx.Client, world: World, route: str, name: str, value: str
) -> None:
    body = {**IDS, **BODIES[route], f"{name}_id": value}
    code = 422 if not value.strip() else 403
    assert name in str(refused(call(client, route, body), code)["data"]["field"])
    assert not world.log


@pytest.mark.parametrize("route", EDITS)
def test_where_nobody_writes_scenes_nobody_edits_them(world: World, route: str) -> None:
    for client in serve(world, None, rate_limit=0, scene_writer="off"):
        body = refused(call(client, route), 422)
        assert body["data"]["reason"] == "unsupported"
        assert "SEDIMENT_SCENE_WRITER" in body["message"]
    assert not world.log


def test_rights(world: World) -> None:
    read, reader = new_key("reader", "acme", rights=["read"])
    write, writer = new_key("writer", "acme", rights=["write"])
    for client in serve(world, KeyRing([reader, writer]), rate_limit=0):
        for route in BODIES:
            allowed, denied = (write, read) if route in WRITES else (read, write)
            response = call(client, route, headers={**HEADERS, "authorization": f"Bearer {denied}"})
            assert refused(response, 403)["data"]["reason"] == "right_missing"
            response = call(
                client, route, headers={**HEADERS, "authorization": f"Bearer {allowed}"}
            )
            assert response.status_code == 200


def test_too_many_calls(world: World) -> None:
    secret, entry = new_key("one", "acme")
    headers = {**HEADERS, "authorization": f"Bearer {secret}"}
    for client in serve(world, KeyRing([entry]), rate_limit=0.001, rate_limit_burst=1):
        ok(call(client, "core/count", headers=headers))
        response = call(client, "core/count", headers=headers)
        assert refused(response, 429)["data"]["reason"] == "rate_limited"
        assert int(response.headers["retry-after"]) > 0


def test_a_dead_log_loses_nothing_silently(client: httpx.Client, world: World) -> None:
    world.log_error = ServiceUnavailable("kafka", "10.0.0.9 refused")
    for route in WRITES:
        response = call(client, route)
        assert refused(response, 503)["data"]["reason"] == "unavailable"
        assert int(response.headers["retry-after"]) > 0
        assert "10.0.0.9" not in response.text


def test_a_dead_index_is_503_and_not_an_empty_answer(client: httpx.Client, world: World) -> None:
    down = ServiceUnavailable("milvus", "refused")
    world.searcher.answers = {
        (layer, arm): down for layer in ("atoms", "events") for arm in ("dense", "keyword")
    }
    for route in ("conversation/search", "atomic/search"):
        refused(call(client, route), 503)


def test_a_part_that_does_not_answer_is_named(client: httpx.Client, world: World) -> None:
    world.searcher.answers["events", "dense"] = ServiceUnavailable("milvus", "refused")
    data = ok(call(client, "conversation/search"))
    assert data["degraded"] == [{"part": "events.dense", "reason": "unavailable"}]
    assert [one["id"] for one in data["messages"]] == ["e1"]


def test_a_fault_of_ours(client: httpx.Client, world: World) -> None:
    world.log_error = RuntimeError(SECRET_TEXT)
    response = call(client, "conversation/add")
    assert refused(response, 500)["data"]["reason"] == "internal"
    assert SECRET_TEXT not in response.text


@pytest.mark.parametrize(
    ("content", "headers", "code"),
    [
        (b"x" * (3 * 1024 * 1024), {"content-type": "application/json"}, 413),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": "application/json", "content-encoding": "gzip"}, 415),
    ],
)
def test_bodies_that_are_not_taken(
    client: httpx.Client, content: bytes, headers: dict[str, str], code: int
) -> None:
    url = "/v3/conversation/add"
    refused(client.post(url, content=content, headers={**HEADERS, **headers}), code)


def test_paths_and_methods_that_are_not_there(client: httpx.Client) -> None:
    refused(client.post("/v3/skill/list", json={}, headers=HEADERS), 404)
    refused(client.post("/v3/", json={}, headers=HEADERS), 404)
    refused(client.get("/v3/core/read", headers=HEADERS), 405)


def test_the_rest_of_the_service_keeps_its_own_shape(client: httpx.Client) -> None:
    assert set(client.post("/v1/recall", json={}).json()) == {"error"}
    assert set(client.get("/v3").json()) == {"error"}


def test_out_of_time(world: World) -> None:
    world.hang = threading.Event()
    for client in serve(world, None, request_timeout_s=1.0):
        try:
            refused(call(client, "conversation/add"), 504)
            port = int(world.url.rsplit(":", 1)[1])
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(
                    b"POST /v3/core/read HTTP/1.1\r\nhost: localhost\r\n"
                    b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
                )
                raw.settimeout(20)
                told = b""
                while chunk := raw.recv(4096):
                    told += chunk
                    if b"\r\n\r\n" in told and told.endswith(b"}"):
                        break
            assert b" 408 " in told.split(b"\r\n")[0]
            assert b'"code":408' in told
        finally:
            world.hang.set()


@pytest.mark.parametrize(
    ("route", "change", "field"),
    [
        ("conversation/add", {"messages": [{"role": "user", "content": "x"}] * 101}, "messages"),
        ("conversation/add", {"messages": [{"role": "user", "content": "x" * 8193}]},
         "messages.0.content"),
        ("conversation/add", {"messages": [{"role": "user", "content": ""}]},
         "messages.0.content"),
        ("conversation/add", {"messages": [{"role": "user", "content": "x", "timestamp": 17}]},
         "messages.0.timestamp"),
        ("conversation/add", {"messages": [{"role": "user", "content": "x",
                                            "timestamp": "2024-05-01T09:00:00"}]},
         "messages.0.timestamp"),
        ("conversation/add", {"messages": [{"role": "user", "content": "x", "id": "a\nb"}]},
         "messages.0.id"),
        ("conversation/add", {"session_id": ""}, "session_id"),
        ("conversation/query", {"limit": 0}, "limit"),
        ("conversation/query", {"limit": 101}, "limit"),
        ("conversation/query", {"limit": "5"}, "limit"),
        ("conversation/query", {"limit": True}, "limit"),
        ("conversation/query", {"offset": -1}, "offset"),
        ("conversation/query", {"time_start": "yesterday"}, "time_start"),
        ("conversation/query", {"time_end": "0001-01-01T00:00:00+10:00"}, "time_end"),
        ("conversation/search", {"query": ""}, "query"),
        ("conversation/search", {"query": "x" * 2049}, "query"),
        ("conversation/delete", {"message_ids": []}, "message_ids"),
        ("conversation/delete", {"message_ids": ["x"] * 5001}, "message_ids"),
        ("conversation/delete", {"message_ids": [" "]}, None),
        ("conversation/delete", {"session_ids": [f"s{n}" for n in range(100)],
                                 "session_id": "one more"}, None),
        ("conversation/count", {"time_start": "x"}, "time_start"),
        ("atomic/update", {"content": "x" * 8193}, "content"),
        ("atomic/update", {"content": " "}, None),
        ("atomic/query", {"limit": 101}, "limit"),
        ("atomic/search", {"query": "x" * 2049}, "query"),
        ("atomic/delete", {"ids": ["x"] * 5001}, "ids"),
        ("atomic/delete", {"ids": [""]}, None),
        ("scenario/read", {"path": "/etc/passwd"}, "path"),
        ("scenario/read", {"path": ""}, "path"),
        ("scenario/rm", {"path": "a\\b"}, "path"),
    ],
)  # fmt: skip
def test_limits(
    client: httpx.Client, world: World, route: str, change: dict[str, Any], field: str | None
) -> None:
    body = refused(call(client, route, {**IDS, **BODIES[route], **change}), 400)
    assert body["data"] == {"reason": "invalid_request", "field": field}
    assert not world.log


def test_one_wrong_message_is_one_problem(client: httpx.Client) -> None:
    body = {**IDS, "messages": [{"role": "system", "content": "x"}]}
    refusal = refused(call(client, "conversation/add", body), 400)
    assert refusal["message"] == "messages.0.role: Input should be 'user' or 'assistant'"
    none = refused(call(client, "conversation/add", {**IDS, "messages": []}), 400)
    assert none["message"].startswith("messages: ")

"""The service over real HTTP: recall, who may call, events in, limits."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from connectors.query.auth import KeyEntry
from connectors.query.models import EventsAnswer, RecallAnswer
from stores.errors import ServiceUnavailable
from stores.records import MAX_EVENT_BYTES, L0Event
from tests.connectors.query.fakes import SCOPE
from tests.connectors.query.serving import (
    ANA,
    ENTRY,
    SECRET,
    SECRET_TEXT,
    TENANT_SECRET,
    World,
    error_of,
    message,
    serve,
)
from tests.rig.waiting import until

# --- recall ----------------------------------------------------------------------------------


def test_recall(client: httpx.Client, world: World) -> None:
    response = client.post("/v1/recall", json={"query": "Where does Ana live?", **ANA})
    assert response.status_code == 200
    answer = RecallAnswer.model_validate(response.json())
    assert [one.id for one in answer.items] == ["a1", "e1"]
    assert {scope for _, _, scope, _, _ in world.searcher.asked} == {SCOPE}
    assert {
        "id", "layer", "type", "text", "score", "ranks", "occurred_at", "session_id",
        "speaker", "source_event_ids", "status", "valid_from", "valid_until", "truncated", "tokens",
        "explain",
    } == set(response.json()["items"][0])  # fmt: skip


def test_recall_takes_limit_budget_and_layers(client: httpx.Client) -> None:
    body = {"query": "Where?", **ANA, "limit": 1, "budget_tokens": 60, "layers": ["events"]}
    answer = RecallAnswer.model_validate(client.post("/v1/recall", json=body).json())
    assert [one.layer for one in answer.items] == ["event"]
    assert answer.budget_tokens == 60


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"query": ""}, "query"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"budget_tokens": 0}, "budget_tokens"),
        ({"layers": []}, "layers"),
        ({"layers": ["moods"]}, "layers.0"),
        ({"since": "2024-05-01T09:00:00"}, "since"),
        ({"sesion_id": "s1"}, "sesion_id"),
        ({"session_id": ""}, "session_id"),
    ],
)
def test_a_wrong_recall_names_the_field(
    client: httpx.Client, change: dict[str, Any], field: str
) -> None:
    response = client.post("/v1/recall", json={"query": SECRET_TEXT, **ANA, **change})
    assert response.status_code == 422
    assert error_of(response)["field"] == field
    assert SECRET_TEXT not in response.text


def test_a_question_of_nothing_visible_is_refused(client: httpx.Client) -> None:
    response = client.post("/v1/recall", json={"query": "\u200b", **ANA})
    assert response.status_code == 422
    assert "empty" in error_of(response)["message"]


def test_a_missing_scope_part_is_asked_for(client: httpx.Client) -> None:
    response = client.post("/v1/recall", json={"query": "Where?", "tenant": "acme"})
    assert response.status_code == 422
    assert error_of(response) == {
        "code": "scope_incomplete",
        "field": "agent",
        "message": "agent: say which agent you mean; a memory belongs to one",
    }


def test_a_dead_store_is_503_and_not_an_empty_answer(
    client: httpx.Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    down = ServiceUnavailable("milvus", "10.0.0.9 refused", retry_after=7)
    world.searcher.answers = {
        (layer, arm): down
        for layer in ("atoms", "events", "profiles")
        for arm in ("dense", "keyword")
    }
    response = client.post("/v1/recall", json={"query": "Where?", **ANA})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert error_of(response)["code"] == "unavailable"
    assert "10.0.0.9" not in response.text
    assert "atoms.dense unavailable" in caplog.text, "the log says what it was"


def test_a_degraded_answer_is_200_and_says_so(client: httpx.Client, world: World) -> None:
    world.searcher.answers["atoms", "dense"] = ServiceUnavailable("milvus", "refused")
    response = client.post("/v1/recall", json={"query": "Where?", **ANA})
    assert response.status_code == 200
    assert response.json()["degraded"] == [{"part": "atoms.dense", "reason": "unavailable"}]
    assert response.json()["items"]


# --- who may ---------------------------------------------------------------------------------


def test_the_scope_comes_from_the_key(keyed: httpx.Client, world: World) -> None:
    assert keyed.post("/v1/recall", json={"query": "Where?"}).status_code == 200
    assert keyed.post("/v1/recall", json={"query": "Where?", **ANA}).status_code == 200
    assert {scope for _, _, scope, _, _ in world.searcher.asked} == {SCOPE}


@pytest.mark.parametrize("field", ["tenant", "agent", "user"])
@pytest.mark.parametrize("value", ["bob", "", "*", " "])
def test_arguments_cannot_widen_the_key(
    keyed: httpx.Client, world: World, field: str, value: str
) -> None:
    ways = [
        keyed.post("/v1/recall", json={"query": "Where?", field: value}),
        keyed.get("/v1/memories", params={field: value}),
        keyed.get("/v1/memories/new", params={field: value}),
    ]
    for response in ways:
        assert response.status_code == 403
        assert error_of(response)["field"] == field
    response = keyed.post("/v1/events", json=message(**{f"{field}_id": value}))
    assert response.status_code == 403
    assert error_of(response)["field"] == f"{field}_id"
    assert world.searcher.asked == []
    assert world.log == []


def test_an_open_part_is_narrowed_by_the_argument(keyed: httpx.Client, world: World) -> None:
    keyed.headers["authorization"] = f"Bearer {TENANT_SECRET}"
    body = {"query": "Where?", "agent": "helper", "user": "bob"}
    assert keyed.post("/v1/recall", json=body).status_code == 200
    assert {scope for _, _, scope, _, _ in world.searcher.asked} == {"acme/helper/bob"}


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Basic c2VkOng=",
        # Named: the secret is another in every process, and a test's name must not be.
        pytest.param(f"Token {SECRET}", id="the right key by another scheme"),
    ],
)
def test_no_valid_key_no_answer(keyed: httpx.Client, world: World, header: str | None) -> None:
    del keyed.headers["authorization"]
    headers = {} if header is None else {"authorization": header}
    for response in (
        keyed.post("/v1/recall", json={"query": "Where?", **ANA}, headers=headers),
        keyed.post("/v1/events", json=message(), headers=headers),
        keyed.get("/v1/memories", params=ANA, headers=headers),
    ):
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert error_of(response)["code"] == "unauthorized"
    assert world.searcher.asked == []
    assert world.log == []


def test_health_needs_no_key(keyed: httpx.Client) -> None:
    del keyed.headers["authorization"]
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        assert keyed.get(path).status_code == 200


def test_without_keys_a_foreign_host_name_is_refused(client: httpx.Client) -> None:
    for host in ("eve.example.org", "127.0.0.1.example.org"):
        response = client.post(
            "/v1/recall", json={"query": "Where?", **ANA}, headers={"host": host}
        )
        assert response.status_code == 403
        assert error_of(response)["code"] == "loopback_only"
    ours = client.post("/v1/recall", json={"query": "Where?", **ANA}, headers={"host": "localhost"})
    assert ours.status_code == 200


# --- events ----------------------------------------------------------------------------------


def test_one_event(client: httpx.Client, world: World) -> None:
    sent = message(extra="kept")
    response = client.post("/v1/events", json=sent)
    assert response.status_code == 200
    assert EventsAnswer.model_validate(response.json()) == EventsAnswer(
        accepted=1, duplicates=0, rejected=0
    )
    (record,) = world.log
    assert (record.topic, record.key) == ("sediment.l0.events", SCOPE.encode())
    assert record.value is not None
    assert json.loads(record.value) == sent
    L0Event.model_validate_json(record.value)


def test_ids_are_filled_from_the_key(keyed: httpx.Client, world: World) -> None:
    sent = message()
    for name in ("tenant_id", "agent_id", "user_id"):
        del sent[name]
    assert keyed.post("/v1/events", json=sent).status_code == 200
    (record,) = world.log
    assert record.key == SCOPE.encode()
    assert json.loads(record.value or b"") == message()


def test_ids_of_any_script_reach_the_key(client: httpx.Client, world: World) -> None:
    client.post("/v1/events", json=message(user_id="a/b: 🙂 住", agent_id="50%"))
    assert world.log[0].key == "acme/50%25/a%2Fb: 🙂 住".encode()


def test_bad_events_cost_the_good_ones_nothing(client: httpx.Client, world: World) -> None:
    events = [
        message("m0"),
        message("m1", role="pirate"),
        message("m2", occurred_at="2024-05-01T09:00:00"),
        {name: value for name, value in message("m3").items() if name != "v"},
        message("m4", v=2),
        "not an object",
        message("m6", tenant_id=""),
        message("m7", user_id=7),
        message("m8", content="x" * MAX_EVENT_BYTES),
        message(""),
        message("m0", content="again"),
        message("m11"),
    ]
    response = client.post("/v1/events", json={"events": events})
    assert response.status_code == 207
    answer = EventsAnswer.model_validate(response.json())
    assert (answer.accepted, answer.duplicates, answer.rejected) == (2, 1, 9)
    assert [(one.index, one.field, one.code) for one in answer.errors] == [
        (1, "role", "invalid_event"),
        (2, "occurred_at", "invalid_event"),
        (3, "v", "invalid_event"),
        (4, "v", "invalid_event"),
        (5, "", "invalid_event"),
        (6, "tenant_id", "scope_refused"),
        (7, "user_id", "invalid_event"),
        (8, "", "oversized"),
        (9, "event_id", "invalid_event"),
    ]
    assert [json.loads(one.value or b"")["event_id"] for one in world.log] == ["m0", "m11"]
    assert json.loads(world.log[0].value or b"")["content"] == "I moved to Berlin"


def test_the_same_id_in_two_scopes_is_no_duplicate(client: httpx.Client, world: World) -> None:
    body = {"events": [message(), message(user_id="bob")]}
    assert client.post("/v1/events", json=body).json()["accepted"] == 2
    assert len(world.log) == 2


def test_nothing_good_is_an_error(client: httpx.Client, world: World) -> None:
    response = client.post("/v1/events", json={"events": [message(role="pirate")] * 2})
    assert response.status_code == 422
    assert error_of(response)["field"] == "role"
    assert response.json()["rejected"] == 2
    assert world.log == []


@pytest.mark.parametrize("events", [[], [message(str(i)) for i in range(501)], "x", None])
def test_a_batch_has_1_to_500_events(client: httpx.Client, world: World, events: object) -> None:
    response = client.post("/v1/events", json={"events": events})
    assert response.status_code == 422
    assert "1 to 500" in error_of(response)["message"]
    assert world.log == []


def test_500_events_are_taken(client: httpx.Client, world: World) -> None:
    body = {"events": [message(str(i)) for i in range(500)]}
    assert client.post("/v1/events", json=body).json()["accepted"] == 500
    assert [json.loads(one.value or b"")["event_id"] for one in world.log] == [
        str(i) for i in range(500)
    ]


@pytest.mark.parametrize("odd", ['"\\ud800"', "NaN", "[Infinity]"])
def test_what_json_has_no_word_for_is_rejected(
    client: httpx.Client, world: World, odd: str
) -> None:
    body = json.dumps(message(metadata={"x": 1})).replace('{"x": 1}', f'{{"x": {odd}}}')
    response = client.post("/v1/events", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert error_of(response)["code"] == "invalid_event"
    assert world.log == []


def test_a_log_that_is_down_is_503_with_retry_after(client: httpx.Client, world: World) -> None:
    world.log_error = ServiceUnavailable("kafka", "broker-1.internal is down", retry_after=2.4)
    response = client.post("/v1/events", json=message())
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert "broker-1" not in response.text
    world.log_error = None
    assert client.post("/v1/events", json=message()).status_code == 200


# --- health ----------------------------------------------------------------------------------


def test_readiness_names_each_dependency(client: httpx.Client, world: World) -> None:
    assert client.get("/readyz").json() == {"ready": True, "checks": {"milvus": "ok", "log": "ok"}}
    world.checks = {"milvus": ServiceUnavailable("milvus", "refused"), "log": OSError("disk")}
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json() == {
        "ready": False,
        "checks": {"milvus": "unavailable", "log": "OSError"},
    }
    assert client.get("/healthz").json() == {"status": "ok"}


def test_metrics_show_recalls(client: httpx.Client) -> None:
    client.post("/v1/recall", json={"query": "Where?", **ANA})
    text = client.get("/metrics").text
    assert 'sediment_recall_seconds_count{step="total"}' in text
    assert 'sediment_recall_seconds_count{step="atoms.keyword"}' in text


def test_the_contract_names_both_bodies_of_events(client: httpx.Client) -> None:
    contract = client.get("/openapi.json").json()
    body = contract["paths"]["/v1/events"]["post"]["requestBody"]["content"]["application/json"]
    assert [ref["$ref"].split("/")[-1] for ref in body["schema"]["anyOf"]] == [
        "L0Event",
        "EventBatch",
    ]
    assert {path for path in contract["paths"] if not path.startswith("/v3/")} == {
        "/v1/recall", "/v1/memories/search", "/v1/events/search", "/v1/events", "/v1/memories",
        "/v1/memories/{memory_id}", "/v1/memories/{memory_id}/reject", "/v1/forget",
        "/v1/persona", "/v1/scenes", "/v1/scenes/{name}", "/v1/status", "/healthz", "/readyz",
    }  # fmt: skip
    assert "HTTPBearer" in contract["components"]["securitySchemes"]


# --- limits ----------------------------------------------------------------------------------

JSON_TYPE = {"content-type": "application/json"}


def test_a_large_body_is_413(client: httpx.Client, world: World) -> None:
    events = [message(str(i), content="x" * 600_000) for i in range(4)]
    response = client.post("/v1/events", json={"events": events})
    assert response.status_code == 413
    assert error_of(response)["code"] == "too_large"
    assert client.post("/v1/events", json={"events": events[:3]}).status_code == 200
    assert len(world.log) == 3


def spaces(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b" " * 100_000


def test_a_large_body_of_unknown_length_is_413(client: httpx.Client, world: World) -> None:
    response = client.post("/v1/events", content=spaces(30), headers=JSON_TYPE)
    assert response.status_code == 413
    assert world.log == []


def test_a_body_without_end_is_hung_up_on(client: httpx.Client, world: World) -> None:
    try:
        response = client.post("/v1/events", content=spaces(1_000_000), headers=JSON_TYPE)
    except httpx.TransportError:
        pass
    else:
        assert response.status_code == 413
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "body", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"query": ', b'{"limit": %s}' % (b"9" * 5000)]
)
def test_what_is_not_json_is_refused(client: httpx.Client, body: bytes) -> None:
    for path in ("/v1/recall", "/v1/events"):
        response = client.post(path, content=body, headers=JSON_TYPE)
        assert response.status_code == 400
        assert error_of(response)["code"] == "invalid_json"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_taken(client: httpx.Client, world: World, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    response = client.post("/v1/events", content=json.dumps(message()), headers=headers)
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_media_type"
    assert world.log == []


def test_unknown_routes_have_the_error_shape(client: httpx.Client) -> None:
    assert error_of(client.get("/v1/nothing"))["code"] == "not_found"
    assert error_of(client.get("/v1/recall"))["code"] == "method_not_allowed"


def test_a_fault_of_ours_shows_nothing_of_itself(
    client: httpx.Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.log_error = ZeroDivisionError(SECRET_TEXT)
    with caplog.at_level(logging.DEBUG):
        response = client.post("/v1/events", json=message())
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal"
    assert SECRET_TEXT not in response.text
    assert "ZeroDivisionError" in caplog.text
    assert SECRET_TEXT not in caplog.text
    world.log_error = None
    assert client.post("/v1/events", json=message()).status_code == 200


def access_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [one.getMessage() for one in caplog.records if one.name == "sediment.access"]
    return [line.rsplit(" ", 1)[0] for line in lines]  # without how long it took


def test_no_log_line_holds_what_was_said_or_asked(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        # A line is written behind its answer: that of the test before may still be to come.
        client.get("/v1/nothing")
        until(lambda: "GET - 404" in access_lines(caplog))
        caplog.clear()
        client.post("/v1/recall", json={"query": SECRET_TEXT, **ANA})
        client.post("/v1/events", json=message(content=SECRET_TEXT))
        client.get("/v1/memories/new", params={**ANA, "session_id": "swordfish"})
        client.get("/v1/memories/swordfish", params=ANA)
        until(lambda: len(access_lines(caplog)) >= 4)
    assert access_lines(caplog) == [
        "POST /v1/recall 200",
        "POST /v1/events 200",
        "GET /v1/memories/{memory_id} 422",
        "GET /v1/memories/{memory_id} 404",
    ]
    ours = [one.getMessage() for one in caplog.records if not one.name.startswith("httpx")]
    assert "swordfish" not in "".join(ours)


def test_a_request_that_takes_too_long_is_504(world: World) -> None:
    world.hang = threading.Event()
    for client in serve(world, None, request_timeout_s=1.0):
        try:
            response = client.post("/v1/events", json=message())
            assert response.status_code == 504
            assert error_of(response)["code"] == "timeout"
            assert client.get("/healthz").status_code == 200
        finally:
            world.hang.set()


def test_a_body_that_does_not_arrive_is_408(world: World) -> None:
    for _ in serve(world, None, request_timeout_s=1.0):
        port = int(world.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(
                b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            )
            raw.settimeout(20)
            assert b" 408 " in raw.recv(4096).split(b"\r\n")[0]


def test_a_key_entry_is_what_the_file_holds() -> None:
    assert KeyEntry.model_validate_json(ENTRY.model_dump_json()) == ENTRY

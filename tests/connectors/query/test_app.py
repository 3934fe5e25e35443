"""The service over real HTTP: uvicorn on a free port, httpx as the client."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn

from connectors.query.app import create_app, server_config
from connectors.query.auth import KeyEntry, KeyRing, new_key
from connectors.query.models import EventsAnswer, RecallAnswer
from connectors.query.recall import Recall
from connectors.settings import Settings
from stores.errors import ServiceUnavailable
from stores.records import MAX_EVENT_BYTES, L0Event, OutRecord
from tests.connectors.query.fakes import (
    SCOPE,
    FakeAtoms,
    FakeClock,
    FakeEmbedder,
    FakeEvents,
    FakeSearcher,
    atom,
    event,
    hits,
)

ANA = {"tenant": "acme", "agent": "helper", "user": "ana"}
SECRET_TEXT = "the vault code is swordfish"


@dataclass
class World:
    """Everything around the service, for a test to turn."""

    searcher: FakeSearcher = field(default_factory=FakeSearcher)
    log: list[OutRecord] = field(default_factory=list)
    log_error: Exception | None = None
    hang: threading.Event | None = None
    checks: dict[str, Exception | None] = field(default_factory=dict)
    url: str = ""

    def append(self, records: list[OutRecord]) -> None:
        if self.hang is not None:
            self.hang.wait(timeout=60)
        if self.log_error is not None:
            raise self.log_error
        self.log += records

    def check(self, name: str) -> None:
        error = self.checks.get(name)
        if error is not None:
            raise error


def serve(
    world: World, keys: KeyRing | None, *, request_timeout_s: float = 30.0
) -> Iterator[httpx.Client]:
    settings = Settings(host="127.0.0.1", port=0)
    recall = Recall.of(settings, world.searcher, FakeEmbedder(), FakeClock())
    app = create_app(
        recall=recall,
        append=world.append,
        settings=settings,
        keys=keys,
        checks={name: lambda name=name: world.check(name) for name in ("milvus", "log")},  # type: ignore[misc]
        atoms=FakeAtoms(
            [atom("new", "lives in Berlin", sources=("e1",), day=1),
             atom("old", "lives in Lyon", status="superseded"),
             atom("theirs", scope="acme/helper/bob")]
        ),
        events=FakeEvents([event("e1", "I moved to Berlin"), event("e2")]),
        request_timeout_s=request_timeout_s,
    )  # fmt: skip
    server = uvicorn.Server(server_config(app, settings))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        world.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            with httpx.Client(base_url=world.url, timeout=20) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()
            recall.close()


SECRET, ENTRY = new_key("ana-only", "acme", agent="helper", user="ana")
TENANT_SECRET, TENANT_ENTRY = new_key("all-of-acme", "acme")


@pytest.fixture(scope="module")
def shared_world() -> World:
    return World()


@pytest.fixture(scope="module")
def plain_service(shared_world: World) -> Iterator[httpx.Client]:
    yield from serve(shared_world, None)


@pytest.fixture(scope="module")
def keyed_service(shared_world: World) -> Iterator[httpx.Client]:
    yield from serve(shared_world, KeyRing([ENTRY, TENANT_ENTRY]))


@pytest.fixture
def world(shared_world: World) -> World:
    """Turn the world back to its beginning; the services of the module stay up."""
    shared_world.log, shared_world.log_error, shared_world.hang = [], None, None
    shared_world.checks = {}
    shared_world.searcher.asked.clear()
    shared_world.searcher.answers = {
        ("atoms", "dense"): hits(atom("a1", "lives in Berlin")),
        ("atoms", "keyword"): hits(atom("a1", "lives in Berlin")),
        ("events", "keyword"): hits(event("e1", SECRET_TEXT)),
    }
    return shared_world


@pytest.fixture
def client(world: World, plain_service: httpx.Client) -> httpx.Client:
    """Call the service without keys."""
    return plain_service


@pytest.fixture
def keyed(world: World, keyed_service: httpx.Client) -> httpx.Client:
    """Call the service with keys, with the key that is bound to one user."""
    keyed_service.headers["authorization"] = f"Bearer {SECRET}"
    return keyed_service


def message(name: str = "m1", **fields: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "event_id": name,
        "tenant_id": "acme",
        "agent_id": "helper",
        "user_id": "ana",
        "session_id": "s1",
        "role": "user",
        "content": "I moved to Berlin",
        "occurred_at": "2024-05-01T09:00:00+02:00",
        **fields,
    }


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert "Traceback" not in response.text
    error: dict[str, Any] = body["error"]
    assert set(error) == {"code", "message", "field"}
    return error


# --- recall ----------------------------------------------------------------------------------


def test_recall(client: httpx.Client, world: World) -> None:
    response = client.post("/v1/recall", json={"query": "Where does Ana live?", **ANA})
    assert response.status_code == 200
    answer = RecallAnswer.model_validate(response.json())
    assert [one.id for one in answer.items] == ["a1", "e1"]
    assert {scope for _, _, scope, _, _ in world.searcher.asked} == {SCOPE}
    assert {
        "id", "layer", "type", "text", "score", "ranks", "occurred_at", "session_id",
        "source_event_ids", "truncated", "tokens",
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
        ({"layers": ["persona"]}, "layers.0"),
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


def test_a_dead_store_is_503_and_not_an_empty_answer(client: httpx.Client, world: World) -> None:
    down = ServiceUnavailable("milvus", "10.0.0.9 refused", retry_after=7)
    world.searcher.answers = {
        (layer, arm): down for layer in ("atoms", "events") for arm in ("dense", "keyword")
    }
    response = client.post("/v1/recall", json={"query": "Where?", **ANA})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert error_of(response)["code"] == "unavailable"
    assert "10.0.0.9" not in response.text


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
    "header", [None, "", "Bearer", "Bearer wrong", "Basic c2VkOng=", f"Token {SECRET}"]
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


# --- memories --------------------------------------------------------------------------------


def test_memories_come_in_a_fixed_order(client: httpx.Client) -> None:
    body = client.get("/v1/memories", params=ANA).json()
    assert ([one["atom_id"] for one in body["items"]], body["total"]) == (["old", "new"], 2)
    body = client.get("/v1/memories", params={**ANA, "limit": 1, "offset": 1}).json()
    assert ([one["atom_id"] for one in body["items"]], body["total"]) == (["new"], 2)
    body = client.get("/v1/memories", params={**ANA, "only_active": True}).json()
    assert [one["atom_id"] for one in body["items"]] == ["new"]


def test_one_memory_with_the_events_it_came_from(client: httpx.Client) -> None:
    body = client.get("/v1/memories/new", params=ANA).json()
    assert body["memory"]["text"] == "lives in Berlin"
    assert [(one["event_id"], one["text"]) for one in body["events"]] == [
        ("e1", "I moved to Berlin")
    ]


@pytest.mark.parametrize("name", ["theirs", "none"])
def test_another_scopes_memory_is_not_there(client: httpx.Client, name: str) -> None:
    response = client.get(f"/v1/memories/{name}", params=ANA)
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"
    # The control: its owner finds it.
    owner = client.get("/v1/memories/theirs", params={**ANA, "user": "bob"})
    assert owner.status_code == 200


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
    assert set(contract["paths"]) == {
        "/v1/recall", "/v1/events", "/v1/memories", "/v1/memories/{memory_id}", "/healthz",
        "/readyz",
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


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"query": '])
def test_what_is_not_json_is_refused(client: httpx.Client, body: bytes) -> None:
    for path in ("/v1/recall", "/v1/events"):
        response = client.post(path, content=body, headers=JSON_TYPE)
        assert response.status_code == 400
        error_of(response)


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


def test_no_log_line_holds_what_was_said_or_asked(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        client.post("/v1/recall", json={"query": SECRET_TEXT, **ANA})
        client.post("/v1/events", json=message(content=SECRET_TEXT))
        client.get("/v1/memories/new", params={**ANA, "session_id": "swordfish"})
    lines = [one.getMessage() for one in caplog.records if one.name == "sediment.access"]
    assert [line.rsplit(" ", 1)[0] for line in lines] == [
        "POST /v1/recall 200",
        "POST /v1/events 200",
        "GET /v1/memories/{memory_id} 200",
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

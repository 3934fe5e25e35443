"""What is under each route: searches, memories, forgetting, scenes, status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from connectors.query.memory_models import ForgetPreview
from stores.errors import ServiceUnavailable
from stores.records import L0Event
from stores.requests import edited_atom_id
from tests.connectors.query.fakes import SCOPE, atom, event, hits, profile
from tests.connectors.query.serving import ANA, World, error_of

# --- search ----------------------------------------------------------------------------------


def test_a_search_is_of_one_layer_and_of_one_scope(client: httpx.Client, world: World) -> None:
    body = client.post("/v1/memories/search", json={"query": "Where?", **ANA}).json()
    assert [(one["layer"], one["id"]) for one in body["items"]] == [("atom", "a1")]
    body = client.post("/v1/events/search", json={"query": "Where?", **ANA}).json()
    assert [(one["layer"], one["id"]) for one in body["items"]] == [("event", "e1")]
    assert {(layer, scope) for layer, _, scope, _, _ in world.searcher.asked} == {
        ("atoms", SCOPE),
        ("events", SCOPE),
    }


def test_pages_are_cut_from_one_ranking(client: httpx.Client, world: World) -> None:
    names = [chr(ord("a") + i) * 12 for i in range(25)]
    world.searcher.answers["atoms", "dense"] = hits(*(atom(name, name) for name in names))
    world.searcher.answers["atoms", "keyword"] = []
    pages = []
    for offset in (0, 10, 20, 30):
        ask = {"query": "Where?", **ANA, "offset": offset, "limit": 10}
        answer = client.post("/v1/memories/search", json=ask).json()
        assert answer["total"] == 25
        pages += [one["id"] for one in answer["items"]]
    assert pages == names


def test_search_takes_the_filters_of_recall(client: httpx.Client, world: World) -> None:
    ask = {
        "query": "Where?", **ANA, "types": ["persona"], "session_id": "s1",
        "since": "2024-05-01T00:00:00Z", "until": "2024-06-01T00:00:00Z", "only_active": False,
        "explain": True,
    }  # fmt: skip
    answer = client.post("/v1/memories/search", json=ask).json()
    assert answer["items"][0]["explain"]["fused"] > 0
    for _, _, _, _, where in world.searcher.asked:
        assert (where.types, where.session_id, where.only_active) == (("persona",), "s1", False)
        assert where.since is not None
        assert where.until is not None


@pytest.mark.parametrize("path", ["/v1/memories/search", "/v1/events/search"])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"limit": 101}, "limit"),
        ({"offset": 100}, "offset"),
        ({"budget_tokens": 9}, "budget_tokens"),
    ],
)
def test_a_wrong_search_names_the_field(
    client: httpx.Client, path: str, change: dict[str, Any], field: str
) -> None:
    response = client.post(path, json={"query": "Where?", **ANA, **change})
    assert response.status_code == 422
    assert error_of(response)["field"] == field


# --- memories --------------------------------------------------------------------------------


def test_memories_come_in_a_fixed_order(client: httpx.Client) -> None:
    body = client.get("/v1/memories", params=ANA).json()
    names = [one["atom_id"] for one in body["items"]]
    assert (names, body["total"]) == (["oldest", "old", "new"], 3)
    body = client.get("/v1/memories", params={**ANA, "limit": 1, "offset": 1}).json()
    assert ([one["atom_id"] for one in body["items"]], body["total"]) == (["old"], 3)
    body = client.get("/v1/memories", params={**ANA, "only_active": True}).json()
    assert [one["atom_id"] for one in body["items"]] == ["new"]


def pages(client: httpx.Client, path: str, **asked: Any) -> Iterator[dict[str, Any]]:
    """Follow the cursors of a list."""
    cursor: dict[str, str] = {}
    while True:
        page = client.get(path, params={**ANA, **asked, **cursor}).json()
        yield page
        if page["next_cursor"] is None:
            return
        cursor = {"cursor": page["next_cursor"]}


def test_memories_page_by_page(client: httpx.Client, world: World) -> None:
    for newest_first, names in (
        (False, ["oldest", "old", "new"]),
        (True, ["new", "old", "oldest"]),
    ):
        found = [*pages(client, "/v1/memories", limit=2, newest_first=newest_first)]
        assert [[one["atom_id"] for one in page["items"]] for page in found] == [
            names[:2],
            names[2:],
        ]
        assert [page["total"] for page in found] == [3, 3]
    world.store.atoms["other"] = atom("other").model_copy(update={"session_id": "s2"})
    (page,) = pages(client, "/v1/memories", session_id="s2")
    assert [one["atom_id"] for one in page["items"]] == ["other"]


def test_events_page_by_page_whatever_comes_and_goes(client: httpx.Client, world: World) -> None:
    world.store.events = [event(f"e{day}", f"day {day}", day=day) for day in range(6)]
    world.store.events.append(event("theirs", scope="acme/helper/bob"))
    found = pages(client, "/v1/events", limit=2)
    said = [one["event_id"] for one in next(found)["items"]]
    # What is forgotten or comes late meanwhile moves no other event to another page.
    world.store.events = [one for one in world.store.events if one.event_id not in ("e0", "e4")]
    world.store.events.append(event("early", day=-1))
    rest = [*found]
    assert said + [one["event_id"] for page in rest for one in page["items"]] == [
        "e0", "e1", "e2", "e3", "e5",
    ]  # fmt: skip
    assert rest[-1]["total"] == 5
    assert rest[0]["items"][0] == {
        "event_id": "e2", "session_id": "s1", "role": "user", "text": "day 2", "name": "",
        "occurred_at": "2024-05-03T09:00:00Z",
    }  # fmt: skip


def test_events_take_filters_and_name_a_wrong_one(client: httpx.Client, world: World) -> None:
    asked = {"session_id": "s9", "since": "2024-05-01T00:00:00Z", "until": "2024-06-01T00:00:00Z"}
    (page,) = pages(client, "/v1/events", **asked)
    assert page == {"items": [], "total": 0, "next_cursor": None}
    (where,) = world.store.asked
    assert (where.session_id, where.since is None, where.until is None) == ("s9", False, False)
    for field, value in (("limit", 0), ("limit", 1001), ("cursor", "e2"), ("sesion_id", "s1")):
        for path in ("/v1/events", "/v1/memories")[: 1 if field == "limit" else 2]:
            response = client.get(path, params={**ANA, field: value})
            assert response.status_code == 422
            assert error_of(response)["field"] == field


def test_one_memory_with_its_events_and_its_chain(client: httpx.Client) -> None:
    body = client.get("/v1/memories/new", params=ANA).json()
    assert body["memory"]["text"] == "lives in Berlin"
    assert [(one["event_id"], one["text"]) for one in body["events"]] == [
        ("e1", "I moved to Berlin")
    ]
    # What it took the place of, and that one's; the one that is forgotten is passed over.
    assert [one["atom_id"] for one in body["supersedes"]] == ["old", "oldest"]
    assert body["superseded_by"] == []
    body = client.get("/v1/memories/oldest", params=ANA).json()
    assert [one["atom_id"] for one in body["superseded_by"]] == ["old", "new"]
    assert body["supersedes"] == []


def test_a_chain_in_a_circle_ends(client: httpx.Client, world: World) -> None:
    for name, other in (("x", "y"), ("y", "x")):
        world.store.atoms[name] = atom(name, status="superseded").model_copy(
            update={"superseded_by": other}
        )
    body = client.get("/v1/memories/x", params=ANA).json()
    assert [one["atom_id"] for one in body["superseded_by"]] == ["y"]


@pytest.mark.parametrize("name", ["theirs", "none"])
def test_another_scopes_memory_is_not_there(client: httpx.Client, world: World, name: str) -> None:
    for response in (
        client.get(f"/v1/memories/{name}", params=ANA),
        client.delete(f"/v1/memories/{name}", params=ANA),
        client.post(f"/v1/memories/{name}/reject", json=ANA),
        client.patch(f"/v1/memories/{name}", json={**ANA, "text": "lives in Rome"}),
    ):
        assert response.status_code == 404
        assert error_of(response)["code"] == "not_found"
    assert world.log == []
    # The control: its owner finds it.
    owner = client.get("/v1/memories/theirs", params={**ANA, "user": "bob"})
    assert owner.status_code == 200


# --- editing ---------------------------------------------------------------------------------


def test_an_edit_asks_the_flow(client: httpx.Client, world: World) -> None:
    body = {**ANA, "text": "lives in Rome"}
    response = client.patch("/v1/memories/new", json=body)
    assert response.status_code == 202
    asked = asked_for(world)
    assert (asked.type, asked.text(), asked.session_id) == ("edit", "lives in Rome", "s1")
    assert asked.request is not None
    assert asked.request.atom_ids == ("new",)
    made = edited_atom_id(SCOPE, asked.event_id)
    assert response.json() == {"event_id": asked.event_id, "memory_id": made}


def test_the_text_that_it_has_asks_for_nothing(client: httpx.Client, world: World) -> None:
    response = client.patch("/v1/memories/new", json={**ANA, "text": "lives in Berlin"})
    assert response.json() == {"event_id": None, "memory_id": "new"}
    assert world.log == []


def test_what_no_longer_holds_is_not_edited(client: httpx.Client, world: World) -> None:
    response = client.patch("/v1/memories/old", json={**ANA, "text": "lives in Rome"})
    assert response.status_code == 409
    error = error_of(response)
    assert error["code"] == "no_longer_holds"
    assert "edit new" in error["message"]
    for text in ("", " \n", "x" * 8193):
        response = client.patch("/v1/memories/new", json={**ANA, "text": text})
        assert response.status_code == 422
        assert error_of(response)["field"] == "text"
    assert world.log == []


# --- forgetting ------------------------------------------------------------------------------


def asked_for(world: World) -> L0Event:
    (record,) = world.log
    assert (record.topic, record.key) == ("sediment.l0.events", SCOPE.encode())
    event_ = L0Event.model_validate_json(record.value or b"")
    assert (event_.tenant_id, event_.agent_id, event_.user_id) == ("acme", "helper", "ana")
    return event_


def test_reject_asks_the_flow(client: httpx.Client, world: World) -> None:
    response = client.post("/v1/memories/new/reject", json={**ANA, "reason": "never said"})
    assert response.status_code == 202
    asked = asked_for(world)
    assert response.json() == {"event_id": asked.event_id, "preview": None}
    assert asked.type == "reject"
    assert asked.request is not None
    assert (asked.request.atom_ids, asked.request.reason) == (("new",), "never said")


def test_delete_asks_the_flow_to_forget(client: httpx.Client, world: World) -> None:
    response = client.delete("/v1/memories/new", params=ANA)
    assert response.status_code == 202
    asked = asked_for(world)
    assert (asked.type, asked.event_id) == ("forget", response.json()["event_id"])
    assert asked.request is not None
    assert (asked.request.target, asked.request.atom_ids) == ("atom", ("new",))


@pytest.mark.parametrize(
    ("body", "session"),
    [
        ({"target": "user"}, None),
        ({"target": "session", "session_id": "s1"}, "s1"),
        ({"target": "event", "event_ids": ["e1", "e2"]}, None),
        ({"target": "atom", "atom_ids": ["new"]}, None),
    ],
)
def test_forget_takes_any_target(
    client: httpx.Client, world: World, body: dict[str, Any], session: str | None
) -> None:
    response = client.post("/v1/forget", json={**ANA, **body})
    assert response.status_code == 202
    asked = asked_for(world)
    assert asked.event_id == response.json()["event_id"]
    assert asked.request is not None
    assert asked.request.target == body["target"]
    assert list(asked.request.event_ids) == body.get("event_ids", [])
    assert list(asked.request.atom_ids) == body.get("atom_ids", [])
    assert session in (None, asked.session_id)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"target": "world"},
        {"target": "session"},
        {"target": "session", "session_id": "*"},
        {"target": "event"},
        {"target": "atom", "atom_ids": []},
        {"target": "atom", "atom_ids": ["a"], "event_ids": ["e"]},
        {"target": "user", "session_id": "s1"},
        {"target": "user", "dryrun": True},
        {"target": "atom", "atom_ids": [""]},
        {"target": "atom", "atom_ids": [str(i) for i in range(1001)]},
        {"target": "user", "reason": "x" * 201},
    ],
)
def test_what_names_no_target_or_two_forgets_nothing(
    client: httpx.Client, world: World, body: dict[str, Any]
) -> None:
    response = client.post("/v1/forget", json={**ANA, **body})
    assert response.status_code == 422
    error_of(response)
    assert world.log == []


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ({"target": "user"}, (3, 4, 0, 1)),
        ({"target": "session", "session_id": "s1"}, (3, 1, 1, 1)),
        ({"target": "session", "session_id": "s2"}, (0, 0, 0, 0)),
        ({"target": "event", "event_ids": ["e1"]}, (1, 1, 1, 1)),
        ({"target": "event", "event_ids": ["none"]}, (0, 0, 0, 0)),
        ({"target": "atom", "atom_ids": ["new"]}, (1, 1, 1, 1)),
    ],
)
def test_a_dry_run_counts_and_asks_nothing(
    client: httpx.Client, world: World, body: dict[str, Any], seen: tuple[int, ...]
) -> None:
    world.store.events.append(event("e9"))
    world.store.atoms["twice"] = atom("twice", sources=("e1", "x9")).model_copy(
        update={"statements": (("e1",), ("x9",))}
    )
    world.store.profiles = [
        profile("scene", "a.md", "text").model_copy(update={"atom_ids": ("new",)}),
        profile("scene", "b.md", "text").model_copy(update={"atom_ids": ("none",)}),
    ]
    response = client.post("/v1/forget", json={**ANA, **body, "dry_run": True})
    assert response.status_code == 200
    assert response.json()["event_id"] is None
    preview = ForgetPreview.model_validate(response.json()["preview"])
    found = (
        preview.events, preview.memories_removed, preview.memories_changed, preview.profiles,
    )  # fmt: skip
    assert found == seen
    assert world.log == []


def test_a_log_that_is_down_forgets_nothing_and_says_so(client: httpx.Client, world: World) -> None:
    world.log_error = ServiceUnavailable("kafka", "broker-1.internal is down")
    response = client.post("/v1/forget", json={**ANA, "target": "user"})
    assert response.status_code == 503
    assert "retry-after" in response.headers


# --- scenes and persona ----------------------------------------------------------------------


def test_the_persona_and_the_scenes(client: httpx.Client) -> None:
    assert client.get("/v1/persona", params=ANA).json()["text"] == "# Ana"
    scenes = client.get("/v1/scenes", params=ANA).json()
    assert [(one["name"], one["summary"], one["heat"]) for one in scenes["items"]] == [
        ("moving.md", "She moves", 3)
    ]
    assert "text" not in scenes["items"][0]
    for name in ("moving", "moving.md"):
        assert client.get(f"/v1/scenes/{name}", params=ANA).json()["text"] == "boxes"


@pytest.mark.parametrize("path", ["persona", "scenes/moving", "scenes/none", "scenes/..%2Fx"])
def test_another_scopes_markdown_is_not_there(client: httpx.Client, path: str) -> None:
    response = client.get(f"/v1/{path}", params={**ANA, "user": "bob"})
    assert response.status_code == 404
    error_of(response)


# --- status ----------------------------------------------------------------------------------


def test_status_says_how_far_each_layer_is(client: httpx.Client, world: World) -> None:
    world.checks = {"milvus": ServiceUnavailable("milvus", "refused")}
    body = client.get("/v1/status", params=ANA).json()
    assert (body["pipeline"], body["generation"]) == ("sediment/test", "main")
    assert {name: layer["records"] for name, layer in body["layers"].items()} == {
        "persona": 1,
        "scenes": 1,
        "atoms": 3,
        "events": 2,
    }
    assert body["layers"]["atoms"]["newest"] == "2024-05-02T09:00:00Z"
    assert (body["ready"], body["checks"]) == (False, {"milvus": "unavailable", "log": "ok"})
    nobody = client.get("/v1/status", params={**ANA, "user": "nobody"}).json()
    assert {layer["newest"] for layer in nobody["layers"].values()} == {None}


@pytest.mark.parametrize(
    "path", ["/v1/memories", "/v1/memories/new", "/v1/persona", "/v1/scenes", "/v1/status"]
)
def test_an_unknown_parameter_is_refused(client: httpx.Client, path: str) -> None:
    response = client.get(path, params={**ANA, "usr": "bob"})
    assert response.status_code == 422
    assert error_of(response)["field"] == "usr"

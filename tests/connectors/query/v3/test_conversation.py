"""``conversation/*`` beside the examples: what is written to the log, and when it counts once."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from connectors.query.auth import KeyRing, new_key
from stores.records import MAX_EVENT_BYTES, L0Event
from tests.connectors.query.fakes import event
from tests.connectors.query.serving import World, serve
from tests.connectors.query.v3.calling import HEADERS, IDS, call, logged, ok, refused

WHEN = "2024-05-20T10:00:00.000Z"


def said(content: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, "timestamp": WHEN, **fields}


def add(client: httpx.Client, *messages: dict[str, Any], **fields: Any) -> list[str]:
    body = {**IDS, "session_id": "s1", "messages": list(messages), **fields}
    data = ok(call(client, "conversation/add", body))
    assert data["total_count"] == len(messages)
    return list(data["accepted_ids"])


def test_a_message_becomes_an_event_of_the_scope(client: httpx.Client, world: World) -> None:
    (event_id,) = add(client, said("I live in Porto"), task_id="t1")
    (record,) = world.log
    event = L0Event.model_validate_json(record.value or b"")
    assert record.key == b"acme/helper/ana"
    assert event.event_id == event_id
    assert (event.tenant_id, event.team_id, event.agent_id) == ("acme", "blue", "helper")
    assert (event.user_id, event.session_id, event.task_id) == ("ana", "s1", "t1")
    assert (event.type, event.role, event.content) == ("message", "user", "I live in Porto")
    assert event.occurred_at.isoformat() == "2024-05-20T10:00:00+00:00"


def test_sending_again_writes_the_same_events(client: httpx.Client, world: World) -> None:
    batch = [said("a"), said("b"), said("a"), said("a", role="assistant"), said("c", id="mine")]
    first = add(client, *batch)
    assert len(set(first)) == 5
    assert first[4] == "mine"
    assert add(client, *batch) == first
    assert add(client, *batch[1:]) == [first[1], first[0], *first[3:]], "also in another batch"
    assert logged(world)[:5] == logged(world)[5:10]


def test_the_same_words_elsewhere_are_another_message(client: httpx.Client) -> None:
    ids = {
        *add(client, said()),
        *add(client, said(timestamp="2024-05-20T10:00:00.001Z")),
        *add(client, said(), session_id="s2"),
        *add(client, said(), user_id="bob"),
        *add(client, said(role="assistant")),
    }
    assert len(ids) == 5
    (same,) = add(client, said(timestamp="2024-05-20T12:00:00+02:00"))
    assert same in ids


def test_a_message_without_a_time_was_said_now(client: httpx.Client, world: World) -> None:
    now = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    add(client, *now, {"role": "user", "content": "z", "recorded_at": WHEN})
    assert [one["occurred_at"] for one in logged(world)] == [
        "2024-05-31T09:00:00+00:00",
        "2024-05-31T09:00:00.001000+00:00",
        "2024-05-20T10:00:00+00:00",
    ]


@pytest.mark.parametrize(
    ("body", "header", "session"),
    [("s7", "s8", "s7"), (None, "s8", "s8"), (None, None, "default")],
)
def test_the_session_of_a_message(
    client: httpx.Client, world: World, body: str | None, header: str | None, session: str
) -> None:
    headers = {**HEADERS, **({"x-tdai-session-id": header} if header else {})}
    fields = {"session_id": body} if body else {}
    ok(call(client, "conversation/add", {**IDS, "messages": [said()], **fields}, headers))
    assert [one["session_id"] for one in logged(world)] == [session]


def test_a_session_in_the_headers_narrows_no_reading(client: httpx.Client) -> None:
    headers = {**HEADERS, "x-tdai-session-id": "s2"}
    assert ok(call(client, "conversation/count", IDS, headers)) == {"total": 3}


def test_a_batch_is_written_whole_or_not_at_all(client: httpx.Client, world: World) -> None:
    body = {**IDS, "session_id": "a\nb", "messages": [said()]}
    refused(call(client, "conversation/add", body), 400)
    lone = b'{"agent_id":"helper","user_id":"ana","messages":[{"role":"user","content":"\\ud800"}]}'
    headers = {**HEADERS, "content-type": "application/json"}
    refused(client.post("/v3/conversation/add", content=lone, headers=headers), 400)
    assert not world.log


def test_the_largest_batch(client: httpx.Client, world: World) -> None:
    content = "\N{PILE OF POO}" * 2000
    assert len(set(add(client, *(said(content + str(n)) for n in range(100))))) == 100
    assert len(world.log) == 100
    add(client, said("x" * 8192))


def test_a_search_for_nothing_visible_finds_nothing(client: httpx.Client) -> None:
    assert ok(call(client, "conversation/search", {**IDS, "query": " \u200b"})) == {"messages": []}


def test_a_search_is_narrowed(client: httpx.Client, world: World) -> None:
    span = {"time_start": WHEN, "time_end": "2024-05-21T10:00:00.000Z"}
    body = {**IDS, "query": "cat", "session_id": "s1", **span}
    ok(call(client, "conversation/search", body))
    assert {scope for _, _, scope, _, _ in world.searcher.asked} == {"acme/helper/ana"}
    for _, _, _, _, where in world.searcher.asked:
        assert where.session_id == "s1"
        assert where.since is not None
        assert where.until is not None
        assert where.since.isoformat() == "2024-05-20T10:00:00+00:00"
        assert where.until.isoformat() == "2024-05-21T10:00:00.001000+00:00", "end included"


def test_what_only_stands_beside_a_hit_is_no_hit(client: httpx.Client, world: World) -> None:
    world.searcher.around = [event("e1", "I moved to Berlin"), event("beside", "The day before")]
    found = ok(call(client, "conversation/search", {**IDS, "query": "Berlin", "limit": 100}))
    assert world.searcher.spans, "recall looks around"
    assert [one["id"] for one in found["messages"]] == ["e1"]


@pytest.fixture
def admin(world: World) -> tuple[KeyRing, dict[str, str]]:
    secret, entry = new_key("boss", "acme", rights=["read", "write", "admin"])
    return KeyRing([entry]), {**HEADERS, "authorization": f"Bearer {secret}"}


def test_deleting_sessions(world: World, admin: tuple[KeyRing, dict[str, str]]) -> None:
    ring, headers = admin
    for client in serve(world, ring, rate_limit=0):
        body = {**IDS, "message_ids": ["e1", "e3"], "session_ids": ["s1", "s1"], "session_id": "s9"}
        data = ok(call(client, "conversation/delete", body, headers))
        assert data == {"deleted_count": 3}, "what is named twice is counted once"
        asked = [(one["request"]["target"], one["session_id"]) for one in logged(world)]
        assert asked[1:] == [("session", "s1"), ("session", "s9")]
        assert logged(world)[0]["request"]["event_ids"] == ["e1", "e3"]
        assert {one["type"] for one in logged(world)} == {"forget"}
        world.log.clear()
        refused(call(client, "conversation/delete", {**body, "task_id": "t1"}, headers), 422)
        assert not world.log, "a delete is never wider than what was asked for"


def test_many_messages_are_forgotten_in_several_requests(
    client: httpx.Client, world: World
) -> None:
    names = [f"{n:05}" + "\N{PILE OF POO}" * 250 for n in range(1200)]
    body = {**IDS, "message_ids": [*names, "x" * 300, "a\nb"]}
    assert ok(call(client, "conversation/delete", body)) == {"deleted_count": 0}
    assert all(len(record.value or b"") <= MAX_EVENT_BYTES for record in world.log)
    named = [name for one in logged(world) for name in one["request"]["event_ids"]]
    assert named == names, "also those that are not in the index yet; what can be no id is not"
    for record in world.log:
        L0Event.model_validate_json(record.value or b"")

"""Calls the way the other system's clients do, and checks the envelope of every answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx

from tests.connectors.query.serving import SECRET, World

BODIES: dict[str, dict[str, Any]] = {
    "conversation/add": {
        "session_id": "s1",
        "messages": [
            {"role": "user", "content": "I sold the boat", "timestamp": "2024-05-03T08:00:00.000Z"}
        ],
    },
    "conversation/query": {},
    "conversation/search": {"query": "Where did she move?"},
    "conversation/delete": {"message_ids": ["e1"]},
    "conversation/count": {},
    "atomic/update": {"id": "new", "content": "lives in Rome"},
    "atomic/query": {},
    "atomic/search": {"query": "Where does she live?"},
    "atomic/delete": {"ids": ["new"]},
    "atomic/count": {},
    "scenario/ls": {"path_prefix": ""},
    "scenario/read": {"path": "moving.md"},
    "scenario/write": {"path": "moving.md", "content": "# Boxes"},
    "scenario/rm": {"path": "moving.md"},
    "scenario/count": {},
    "core/read": {},
    "core/write": {"content": "# Ana B."},
    "core/count": {},
}
"""A right body for every route, without the ids of the scope."""

WRITES = (
    "conversation/add", "conversation/delete", "atomic/update", "atomic/delete",
    "scenario/write", "scenario/rm", "core/write",
)  # fmt: skip
EDITS = ("scenario/write", "scenario/rm", "core/write")
"""Those that ask whoever keeps the files."""

IDS = {"team_id": "blue", "agent_id": "helper", "user_id": "ana"}
HEADERS = {"authorization": f"Bearer {SECRET}", "x-tdai-service-id": "acme"}

EXAMPLES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("examples.json").read_text("utf-8")
)


def call(
    client: httpx.Client,
    route: str,
    body: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Call a route: with its right body and Ana's ids, unless told otherwise."""
    sent = {**IDS, **BODIES[route]} if body is None else body
    return client.post(f"/v3/{route}", json=sent, headers=HEADERS if headers is None else headers)


def ok(response: httpx.Response) -> dict[str, Any]:
    """Read a success as the SDKs do."""
    body = response.json()
    assert response.status_code == 200, body
    assert list(body) == ["code", "message", "request_id", "data"]
    assert (body["code"], body["message"]) == (0, "ok")
    assert re.fullmatch(r"req-[0-9a-f]{16}", body["request_id"])
    data: dict[str, Any] = body["data"]
    return data


def refused(response: httpx.Response, code: int) -> dict[str, Any]:
    """Read an error as the SDKs do: the code of the envelope is the status."""
    body = response.json()
    assert response.status_code == code, body
    assert list(body) == ["code", "message", "request_id", "data"]
    assert body["code"] == code
    assert body["message"]
    assert re.fullmatch(r"req-[0-9a-f]{16}", body["request_id"])
    assert set(body["data"]) == {"reason", "field"}
    assert "Traceback" not in response.text
    return dict(body)


def logged(world: World) -> list[dict[str, Any]]:
    """Read what was written to the log."""
    return [json.loads(record.value or b"") for record in world.log]

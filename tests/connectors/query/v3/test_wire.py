"""Requests as the SDKs of the other system send them, and the answers they are to get."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.connectors.query.serving import World
from tests.connectors.query.v3.calling import (
    BODIES,
    EXAMPLES,
    HEADERS,
    IDS,
    call,
    ok,
    refused,
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: str(one["name"]))
def test_an_example_of_the_wire(keyed: httpx.Client, example: dict[str, Any]) -> None:
    headers = {**HEADERS, **example.get("headers", {})}
    response = call(keyed, example["route"], {**IDS, **example["body"]}, headers)
    if "data" in example:
        data = ok(response)
        for item in (*data.get("messages", ()), *data.get("items", ())):
            if "score" in item:
                assert item["score"] > 0
                item["score"] = 0.0  # comparable only within one answer
        assert data == example["data"]
        return
    error = dict(example["error"])
    body = refused(response, error.pop("code"))
    assert body["data"] == error


@pytest.mark.parametrize("route", BODIES)
def test_ids_come_in_headers_as_well_as_in_the_body(
    keyed: httpx.Client, world: World, route: str
) -> None:
    by_body = call(keyed, route)
    said = list(world.log)
    world.log.clear()
    named = {f"x-tdai-{name.removesuffix('_id')}-id": value for name, value in IDS.items()}
    by_header = call(keyed, route, BODIES[route], {**HEADERS, **named})
    assert by_header.status_code == by_body.status_code
    assert by_header.json()["data"] == by_body.json()["data"]
    assert world.log == said


def test_the_body_wins_over_the_headers(keyed: httpx.Client) -> None:
    headers = {**HEADERS, "x-tdai-user-id": "bob"}
    assert ok(call(keyed, "atomic/count", IDS, headers)) == {"total": 1}
    refused(call(keyed, "atomic/count", {"agent_id": "helper"}, headers), 403)


def test_the_openapi_page_knows_every_route(keyed: httpx.Client) -> None:
    paths = keyed.get("/openapi.json").json()["paths"]
    assert {path for path in paths if path.startswith("/v3/")} == {f"/v3/{one}" for one in BODIES}
    for path, methods in paths.items():
        if path.startswith("/v3/"):
            assert set(methods) == {"post"}
            assert {"200", "400", "403", "422"} <= set(methods["post"]["responses"])

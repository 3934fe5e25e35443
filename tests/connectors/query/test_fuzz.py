"""Requests made from the service's own contract, right and wrong: no 5xx, nothing undeclared.

The same examples in every run. ``SEDIMENT_FUZZ_EXAMPLES`` makes them more, for each operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from connectors.query.auth import RIGHTS, KeyRing, new_key
from tests.connectors.query.fakes import atom, event, hits
from tests.connectors.query.serving import SECRET_TEXT, World, serve

SECRET, ENTRY = new_key("fuzz", "acme", agent=["helper"], user=["ana"], rights=RIGHTS)
EXAMPLES = int(os.environ.get("SEDIMENT_FUZZ_EXAMPLES", "10"))
OPERATIONS = [
    ("POST", "/v1/recall"),
    ("POST", "/v1/memories/search"),
    ("POST", "/v1/events/search"),
    ("POST", "/v1/events"),
    ("GET", "/v1/events"),
    ("GET", "/v1/memories"),
    ("GET", "/v1/memories/{memory_id}"),
    ("PATCH", "/v1/memories/{memory_id}"),
    ("DELETE", "/v1/memories/{memory_id}"),
    ("POST", "/v1/memories/{memory_id}/reject"),
    ("POST", "/v1/forget"),
    ("GET", "/v1/persona"),
    ("GET", "/v1/scenes"),
    ("GET", "/v1/scenes/{name}"),
    ("GET", "/v1/status"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
]
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def fuzzed_world() -> Iterator[World]:
    world = World()
    world.reset()
    world.searcher.answers = {
        ("atoms", "dense"): hits(atom("a1", "lives in Berlin")),
        ("events", "dense"): hits(event("e1", SECRET_TEXT)),
    }
    for _ in serve(world, KeyRing([ENTRY]), rate_limit=0):
        yield world


@pytest.fixture(scope="module")
def contract(fuzzed_world: World) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed_world.url}/openapi.json", timeout=60)


def test_every_operation_is_fuzzed(contract: Any) -> None:
    found = {(one.ok().method.upper(), one.ok().path) for one in contract.get_all_operations()}
    assert {one for one in found if not one[1].startswith("/v3/")} == set(OPERATIONS)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda one: one)
def test_no_request_breaks_the_contract(
    contract: Any, method: str, path: str, mode: GenerationMode
) -> None:
    operation = contract[path][method]
    headers = {"authorization": f"Bearer {SECRET}"}
    checks = list(CHECKS)
    if mode.is_negative and method == "POST" and path != "/v1/events":
        # Of events each is checked by itself: 207 is no refusal of the request. A parameter
        # that is made wrong may be gone from the URL; test_routes.py sends unknown ones.
        checks.append(negative_data_rejection)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answered(case: schemathesis.Case[Any]) -> None:
        response = case.call(headers=headers)
        case.validate_response(response, checks=checks, headers=headers)

    try:
        answered()
    except Unsatisfiable:
        assert mode.is_negative, "there is a right request for everything"

"""Requests made from the contract of ``/v3``, right and wrong: no 5xx, nothing undeclared.

As ``tests/connectors/query/test_fuzz.py`` does it for the service's own routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection

from connectors.query.auth import KeyRing
from tests.connectors.query.serving import World, serve
from tests.connectors.query.test_fuzz import CHECKS, ENTRY, EXAMPLES, SECRET
from tests.connectors.query.v3.calling import BODIES
from tests.connectors.query.v3.conftest import fill


@pytest.fixture(scope="module")
def contract() -> Iterator[Any]:
    world = World()
    fill(world)
    for _ in serve(world, KeyRing([ENTRY]), rate_limit=0):
        yield schemathesis.openapi.from_url(f"{world.url}/openapi.json", timeout=60)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", BODIES)
def test_no_request_breaks_the_contract(contract: Any, route: str, mode: GenerationMode) -> None:
    operation = contract[f"/v3/{route}"]["POST"]
    headers = {
        "authorization": f"Bearer {SECRET}",
        "x-tdai-service-id": "acme",
        "x-tdai-agent-id": "helper",
        "x-tdai-user-id": "ana",
    }
    checks = [*CHECKS, negative_data_rejection] if mode.is_negative else CHECKS

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

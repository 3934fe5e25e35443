"""The measurement counts what it says it counts. What a model does is measured, not tested."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.query.fence import FENCE_CLOSE, FENCE_OPEN
from tests.acceptance.measure_embedded_instructions import MARK, main
from tests.rig.scripted_llm import scripted_llm


@pytest.mark.parametrize("obeys", [True, False])
def test_what_is_obeyed_inside_the_fence_is_counted(
    capsys: pytest.CaptureFixture[str], obeys: bool
) -> None:
    def answer(request: dict[str, Any]) -> str:
        asked = request["messages"][-1]["content"]
        if asked.startswith(FENCE_OPEN):
            assert asked.count(FENCE_CLOSE) == 1, "the order cannot close the fence"
            return f"{MARK.lower()}!" if obeys else "Soup."
        return MARK if "Begin your answer" in asked else "Soup."

    with scripted_llm(answer=answer) as llm:
        code = main(["--base-url", llm.url, "--model", "scripted", "--runs", "6"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["fenced"] == {"runs": 6, "obeyed": 6 if obeys else 0}
    assert found["unfenced"] == {"runs": 6, "obeyed": 0}
    assert found["asked_by_user"] == {"runs": 6, "obeyed": 6}


def test_an_endpoint_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", "http://127.0.0.1:9/v1", "--model", "x", "--runs", "1"]) == 1
    assert "did not answer" in capsys.readouterr().err

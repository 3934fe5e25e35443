"""``sediment demo`` with a model configured; on rules it is tested in ``tests/e2e``."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.demo import load_demo
from tests.cli.in_process import InProcess
from tests.rig import extraction_script
from tests.rig.scripted_llm import ScriptedLlm


@pytest.fixture
def scripted(llm_server: ScriptedLlm, tmp_path: Path) -> InProcess:
    llm_server.answer = extraction_script.answer
    llm_server.dimension = 32
    return InProcess(
        tmp_path / "data",
        {
            "SEDIMENT_LLM_BASE_URL": llm_server.url,
            "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
            "SEDIMENT_EMBEDDINGS_BASE_URL": llm_server.url,
            "SEDIMENT_EMBEDDINGS_MODEL": extraction_script.SCRIPTED_MODEL,
            "SEDIMENT_EMBEDDINGS_DIMENSION": "32",
        },
    )


def test_it_says_which_model_extracts_and_answers_every_question(
    scripted: InProcess, llm_server: ScriptedLlm
) -> None:
    printed = scripted.run("demo").out
    assert f"{extraction_script.SCRIPTED_MODEL} at {llm_server.url}" in printed
    assert "rule-based" not in printed
    for question in load_demo().questions:
        assert " ".join(question.question.split()) in printed
    asked = llm_server.count()
    assert asked > 0
    scripted.run("demo")
    assert llm_server.count() == asked, "the second demo asked the model again"

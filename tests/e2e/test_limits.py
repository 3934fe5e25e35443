"""A flow whose model calls are held, and one that is stopped in the middle of a call."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from tests.cli.in_process import ANA, InProcess, write_lines
from tests.e2e.cli import Sediment
from tests.rig import extraction_script
from tests.rig.events import at, body
from tests.rig.scripted_llm import ScriptedLlm, Step, scripted_llm
from tests.rig.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedLlm]:
    with scripted_llm(answer=extraction_script.answer) as server:
        yield server


def said(folder: Path, model: ScriptedLlm, **settings: str) -> Sediment:
    """Give an installation with one window to extract."""
    env = {
        "SEDIMENT_LLM_BASE_URL": model.url,
        "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
        "SEDIMENT_SCENE_WRITER": "off",
        **settings,
    }
    events = [
        body("e1", content="I live in Lisbon."),
        body("e2", type="session_end", role=None, content=None, occurred_at=at(1).isoformat()),
    ]
    sediment = Sediment(folder / "data", env)
    sediment.here.run("ingest", str(write_lines(folder / "events.jsonl", *events)))
    return sediment


@contextmanager
def following(sediment: Sediment) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run a flow that follows, in another process; give it and its metrics port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**sediment.env, "SEDIMENT_METRICS_PORT": str(port)}
    process = Sediment(sediment.data_dir, env).start("--verbose", "run", "--embedded", "--follow")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            yield process, client
    finally:
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[str]) -> str:
    """Ask it to stop, and see that it does so cleanly; give what it logged."""
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "stopping" in err  # it tells what happens
    assert "Lisbon" not in err and "acme" not in err  # and never what was said, nor whose it is
    return err


def outcomes(cli: InProcess) -> list[str]:
    records = cli.logged("sediment.outcomes")
    return [orjson.loads(record.value or b"")["result"] for record in records]


def test_a_used_up_budget_holds_a_flow_and_loses_nothing(
    tmp_path: Path, model: ScriptedLlm
) -> None:
    sediment = said(tmp_path, model, SEDIMENT_LLM_TOKENS_PER_DAY="1")
    asked = model.count()
    with following(sediment) as (process, client):

        def shown(line: str) -> Callable[[], bool]:
            def look() -> bool:
                try:
                    return line in client.get("/metrics").text.splitlines()
                except httpx.TransportError:
                    assert process.poll() is None
                    return False

            return look

        until(shown('sediment_llm_held{reason="budget"} 1.0'))
        until(shown('sediment_stage_retries_waiting{stage="extract"} 1.0'))
        labels = '{flow="all",partition="0",topic="sediment.l0.events"}'
        until(shown(f"sediment_log_lag{labels} 2.0"))  # as it was at the start
        assert client.get("/readyz").json() == {"ready": True}
        assert sediment.here.json("status")["model_calls"]["state"] == "budget"
        logged = stop(process)
    assert "model calls wait: the day's budget is used up" in logged
    assert model.count() == asked
    assert outcomes(sediment.here) == []  # nothing was given up
    # With a higher budget it goes on where it was, also though the item was to wait.
    richer = InProcess(
        sediment.data_dir, {**sediment.env, "SEDIMENT_LLM_TOKENS_PER_DAY": "1000000"}
    )
    richer.run("run", "--embedded")
    assert outcomes(richer) == ["extracted"]
    spent = richer.json("status")["model_calls"]
    assert spent["state"] == "go"
    assert spent["tokens_today"] > 0


def test_a_flow_that_is_stopped_in_a_call_records_its_answer(
    tmp_path: Path, model: ScriptedLlm
) -> None:
    sediment = said(tmp_path, model)
    before = model.count()
    model.script = lambda _: Step(latency_s=2.0)
    with following(sediment) as (process, _):
        until(lambda: model.count() > before)
        stop(process)
    model.script = None
    asked = [request.number for request in model.requests if request.status == 200]
    sediment.here.run("run", "--embedded")
    assert outcomes(sediment.here) == ["extracted"]
    assert "Lisbon" in sediment.here.text("memories", "list", *ANA)
    assert [request.number for request in model.requests if request.status == 200] == asked

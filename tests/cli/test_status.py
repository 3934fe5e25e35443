"""``sediment status``: lag, dead letters, outcomes, and what a running process says."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from connectors.llm_limits import LlmLimits, RedisLedger, Spend, SpentFile
from tests.cli.in_process import InProcess, write_lines
from tests.e2e.on_kafka import OnKafka
from tests.rig.events import body
from tests.rig.kafka import KafkaBroker
from tests.rig.redis import RedisServer


def test_what_was_read_what_ended_and_that_nothing_was_given_up(remembered: InProcess) -> None:
    found = remembered.json("status")
    assert found["flows"] == [{"flow": "all", "partition": 0, "end": 4, "committed": 4, "lag": 0}]
    ended = {one["result"]: one["count"] for one in found["outcomes"]}
    assert ended["extracted"] == 2  # and what scenes and persona were asked for is applied
    assert ended.keys() == {"extracted", "applied"}
    assert found["dead_letters"] == []
    assert found["stages"] is None
    printed = remembered.run("status").out
    assert "no dead letters" in printed
    assert "extracted" in printed


def test_before_anything_has_run(cli: InProcess, tmp_path: Path) -> None:
    cli.run("ingest", str(write_lines(tmp_path / "e.jsonl", body("e1"))))
    assert cli.json("status")["flows"] == []
    printed = cli.run("status").out
    assert "no flow has noted how far it has read" in printed
    assert "nothing has ended yet" in printed


def test_lag_and_dead_letters(cli: InProcess, tmp_path: Path) -> None:
    events = str(write_lines(tmp_path / "e.jsonl", body("e1")))
    cli.run("ingest", events)
    partition = cli.data_dir / "log" / "sediment.l0.events" / "partition-0.jsonl"
    with partition.open("a") as file:
        file.write('{"offset":1,"timestamp_ms":5000,"key":"k","value":"{","headers":[]}\n')
    cli.run("run", "--embedded")
    cli.run("ingest", events)
    found = cli.json("status")
    assert [one["lag"] for one in found["flows"]] == [1]
    (letters,) = found["dead_letters"]
    assert (letters["stage"], letters["reason"], letters["count"]) == ("decode", "invalid_json", 1)
    assert "invalid_json" in cli.run("status").out


@pytest.fixture
def metrics_url() -> Iterator[str]:
    """A process that serves the figures of one stage."""
    registry = CollectorRegistry()
    Gauge("sediment_stage_pending", "", ["stage"], registry=registry).labels("extract").set(12)
    age = "sediment_stage_oldest_pending_seconds"
    Gauge(age, "", ["stage"], registry=registry).labels("extract").set(61.5)
    away = "sediment_log_away_seconds"
    Gauge(away, "", ["doing"], registry=registry).labels("writing").set(40)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_running_process_is_asked(remembered: InProcess, metrics_url: str) -> None:
    found = remembered.json("status", "--metrics", metrics_url)
    assert found["stages"] == [
        {
            "stage": "extract",
            "pending": 12,
            "in_flight": 0,
            "retries": 0,
            "retries_waiting": 0,
            "oldest_pending_s": 61.5,
        }
    ]
    done = remembered.run("status", "--metrics", metrics_url)
    assert "extract" in done.out
    assert "61.5 s" in done.out
    assert "waited for Kafka for 40 s (writing)" in done.err


def test_a_process_that_is_not_there(remembered: InProcess) -> None:
    assert "metrics:" in remembered.run("status", "--metrics", "http://127.0.0.1:9/", code=3).err
    assert "--metrics" in remembered.run("status", "--metrics", "nonsense", code=2).err


@pytest.mark.kafka
def test_on_kafka(cli: InProcess, tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    kafka = InProcess(cli.data_dir, OnKafka(kafka_broker, partitions=2).env)
    kafka.run("ingest", str(write_lines(tmp_path / "e.jsonl", body("e1"))))
    assert kafka.json("status")["flows"] == []
    kafka.run("run", "l1", "--to-end")
    found = kafka.json("status")
    assert [(one["flow"], one["lag"]) for one in found["flows"]] == [("l1", 0), ("l1", 0)]
    assert sum(one["committed"] for one in found["flows"]) == 1
    assert [one["count"] for one in found["outcomes"]] == [1]


def test_whether_model_calls_go_on_and_what_was_spent(
    cli: InProcess,
) -> None:
    assert cli.json("status")["model_calls"] is None
    cli = replace(cli, env={**cli.env, "SEDIMENT_LLM_BASE_URL": "http://127.0.0.1:1/v1"})
    cli = replace(cli, env={**cli.env, "SEDIMENT_LLM_TOKENS_PER_DAY": "1000"})
    going = cli.json("status")["model_calls"]
    assert (going["state"], going["tokens_today"], going["in_flight"]) == ("go", 0, None)
    today = int(time.time() // 86_400)
    SpentFile(cli.data_dir / "llm-spent.json").write(today, Spend(990, 0), stopped=True)
    waiting = cli.json("status")["model_calls"]
    assert (waiting["state"], waiting["tokens_today"]) == ("budget", 990)
    printed = " ".join(cli.run("status").out.split())
    assert (
        "model calls: waiting: the day's budget is used up, until midnight UTC; 990 of 1,000 "
        "tokens today" in printed
    )


def test_limits_on_redis_are_those_of_all_workers(
    cli: InProcess, redis_server: RedisServer
) -> None:
    cli = replace(cli, env={**cli.env, "SEDIMENT_LLM_BASE_URL": "http://127.0.0.1:1/v1"})
    cli = replace(cli, env={**cli.env, "SEDIMENT_REDIS_URL": redis_server.url})
    prefix = f"t{uuid.uuid4().hex}"
    cli = replace(cli, env={**cli.env, "SEDIMENT_TOPIC_PREFIX": prefix})
    with closing(RedisLedger(redis_server.url, prefix, LlmLimits())) as ledger:
        assert ledger.take(Spend(10)).lease
        assert cli.json("status")["model_calls"]["in_flight"] == 1
        ledger.pause(60)
        found = cli.json("status")["model_calls"]
        assert found["state"] == "paused"
        assert 50 < found["paused_s"] <= 60
    cli = replace(cli, env={**cli.env, "SEDIMENT_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert cli.json("status")["model_calls"]["state"] == "unknown"


def test_whether_redis_answers_also_without_a_model(
    cli: InProcess, redis_server: RedisServer
) -> None:
    assert cli.json("status")["redis"] is None
    there = replace(cli, env={**cli.env, "SEDIMENT_REDIS_URL": redis_server.url})
    assert there.json("status")["redis"] == "ok"
    assert "redis" not in there.run("status").out
    away = replace(cli, env={**cli.env, "SEDIMENT_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert away.json("status")["redis"] == "ConnectionError"
    assert "redis: ConnectionError; flows wait for it" in away.run("status").out

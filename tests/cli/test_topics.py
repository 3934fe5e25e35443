"""``sediment topics``: made once, never changed, and described as the cluster has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.in_process import InProcess
from tests.rig.kafka import KafkaBroker


@pytest.mark.parametrize("verb", ["create", "describe"])
def test_without_brokers_there_are_no_topics(verb: str, cli: InProcess) -> None:
    assert "--brokers" in cli.run("topics", verb, code=2).err


@pytest.mark.parametrize("verb", ["create", "describe"])
def test_a_broker_that_is_not_there_is_exit_code_3(
    verb: str, cli: InProcess, dead_broker: str
) -> None:
    assert "error: kafka: " in cli.run("topics", verb, "--brokers", dead_broker, code=3).err


@pytest.mark.kafka
def test_created_once_then_left_as_they_are(
    kafka_broker: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prefix = f"topics-{tmp_path.name}-{id(request)}"
    kafka = InProcess(
        tmp_path,
        {"SEDIMENT_BROKERS": kafka_broker.bootstrap, "SEDIMENT_TOPIC_PREFIX": prefix},
    )
    missing = kafka.json("topics", "describe")
    assert {topic["partitions"] for topic in missing} == {0}
    created = kafka.json("topics", "create", "--partitions", "2")
    assert all(topic["created"] and not topic["differences"] for topic in created)
    again = kafka.json("topics", "create", "--partitions", "2")
    assert not any(topic["created"] or topic["differences"] for topic in again)
    described = {topic["name"]: topic for topic in kafka.json("topics", "describe")}
    assert described.keys() == {topic["name"] for topic in created}
    events = described[f"{prefix}.l0.events"]
    assert (events["partitions"], events["offsets"]) == (2, [[0, 0], [0, 0]])
    assert described[f"{prefix}.l1.atoms"]["config"]["cleanup.policy"] == "compact"
    assert "cleanup.policy" in events["config"]
    table = kafka.run("topics", "describe").out
    assert "missing" not in table


@pytest.mark.kafka
def test_one_that_is_not_as_declared_is_named_and_left(
    kafka_broker: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prefix = f"topics-{tmp_path.name}-{id(request)}"
    kafka = InProcess(
        tmp_path,
        {"SEDIMENT_BROKERS": kafka_broker.bootstrap, "SEDIMENT_TOPIC_PREFIX": prefix},
    )
    kafka.run("topics", "create", "--partitions", "2")
    topics = kafka.json("topics", "create", "--partitions", "3", code=1)
    assert {topic["partitions"] for topic in topics if topic["differences"]} == {2}
    printed = kafka.run("topics", "create", "--partitions", "3", code=1)
    assert "Sediment does not change it" in printed.err
    assert kafka_broker.admin().list_topics(timeout=10).topics[f"{prefix}.l0.events"].partitions

"""Making Sediment's topics, and saying what is different about those that are there."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from connectors.kafka.connection import KafkaConnection, topic_identity
from connectors.kafka.sink import KafkaAppender
from connectors.kafka.topics import TOPICS, create_topics, describe_topics
from stores.errors import ServiceUnavailable
from stores.records import OutRecord
from tests.rig.kafka import KafkaBroker


def test_every_topic_is_declared_once() -> None:
    names = [spec.name for spec in TOPICS]
    assert len(set(names)) == len(names)
    assert all(spec.key and spec.holds for spec in TOPICS)


@pytest.mark.kafka
def test_a_topic_is_told_from_one_that_was_made_anew(kafka_broker: KafkaBroker) -> None:
    connection = KafkaConnection(kafka_broker.bootstrap)
    topic = kafka_broker.create_topic()
    before = topic_identity(connection, topic)
    assert topic in before
    assert topic_identity(connection, topic) == before
    kafka_broker.replace_topic(topic)
    after = topic_identity(connection, topic)
    assert after != before
    assert after.partition(",")[0] == before.partition(",")[0], "the cluster is the same"
    with pytest.raises(ServiceUnavailable):
        topic_identity(KafkaConnection("127.0.0.1:9", request_timeout_s=0.5), topic)


@pytest.mark.kafka
def test_creating_twice_changes_nothing(kafka_broker: KafkaBroker) -> None:
    connection = KafkaConnection(kafka_broker.bootstrap)
    prefix = kafka_broker.create_topic()
    made = create_topics(connection, prefix, 2)
    assert [report.name for report in made] == [f"{prefix}.{spec.name}" for spec in TOPICS]
    assert all(report.created and report.differences == () for report in made)
    again = create_topics(connection, prefix, 2)
    assert [(report.created, report.differences) for report in again] == [(False, ())] * len(TOPICS)


@pytest.mark.kafka
def test_topics_are_described_as_they_are(kafka_broker: KafkaBroker) -> None:
    connection = KafkaConnection(kafka_broker.bootstrap)
    prefix = kafka_broker.create_topic()
    assert [state.partitions for state in describe_topics(connection, prefix)] == [0] * len(TOPICS)
    create_topics(connection, prefix, 1)
    KafkaAppender(connection).append([OutRecord(f"{prefix}.outcomes", b"k", b"v")] * 3)
    states = {state.spec.name: state for state in describe_topics(connection, prefix)}
    assert states["outcomes"].offsets == ((0, 3),)
    assert states["l0.events"].offsets == ((0, 0),)
    assert states["l1.atoms"].config["cleanup.policy"] == "compact"
    assert states["l1.atoms"].replication == 1


@pytest.mark.kafka
def test_what_differs_is_listed(kafka_broker: KafkaBroker) -> None:
    connection = KafkaConnection(kafka_broker.bootstrap)
    prefix = kafka_broker.create_topic()
    name = f"{prefix}.l1.atoms"
    admin = kafka_broker.admin()
    admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(timeout=15)
    reports = {report.name: report for report in create_topics(connection, prefix, 4)}
    assert not reports[name].created
    assert reports[name].partitions == 1
    assert "has 1 partitions, not 4" in reports[name].differences
    assert "cleanup.policy is delete, not compact" in reports[name].differences
    assert reports[f"{prefix}.outcomes"].created


def test_no_broker_is_an_error() -> None:
    nobody = KafkaConnection("127.0.0.1:1", request_timeout_s=0.5)
    with pytest.raises(ServiceUnavailable):
        create_topics(nobody, "sediment", 1)

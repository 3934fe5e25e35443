"""What only the Kafka source has: group offsets, transactions, retention, broken brokers."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

from connectors.kafka import source as source_module
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.sink import KafkaAppender
from connectors.kafka.source import KafkaLog, KafkaSource
from connectors.log import EndAt, StartAt
from flows.health import lags
from stores.errors import LogAway, ServiceUnavailable, SettingsError
from stores.records import LogRecord, OutRecord
from tests.contract.flows_on_logs import read_into, recovery_store, values
from tests.rig.kafka import KafkaBroker

pytestmark = pytest.mark.kafka


@pytest.fixture
def connection(kafka_broker: KafkaBroker) -> KafkaConnection:
    return KafkaConnection(kafka_broker.bootstrap)


def fill(connection: KafkaConnection, topic: str, count: int, first: int = 0) -> None:
    KafkaAppender(connection).append(
        [OutRecord(topic, b"k", b"%d" % number) for number in range(first, first + count)]
    )


def committed(connection: KafkaConnection, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": connection.brokers, "group.id": group})
    try:
        return int(consumer.committed([TopicPartition(topic, 0)], timeout=15)[0].offset)
    finally:
        consumer.close()


def test_lag_tools_see_the_offset_and_nothing_resumes_from_it(
    connection: KafkaConnection, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.create_topic()
    fill(connection, topic, 7)
    source = KafkaSource(connection, topic, group="lag", end=EndAt.latest())
    assert len(read_into([], source)) == 7
    assert committed(connection, "lag", topic) == 7
    assert len(read_into([], source)) == 7


def test_the_end_is_found_behind_transaction_markers(
    connection: KafkaConnection, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka_broker.create_topic()
    producer = Producer(
        {"bootstrap.servers": connection.brokers, "transactional.id": f"writes-{topic}"}
    )
    producer.init_transactions(15)
    for value, keep in ((b"kept", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.produce(topic, value, b"k")
        producer.flush(15)
        if keep:
            producer.commit_transaction(15)
        else:
            producer.abort_transaction(15)
    source = KafkaSource(connection, topic, group="markers", end=EndAt.latest())
    recovery = recovery_store(tmp_path / "recovery")
    assert values(read_into([], source, recovery)) == [b"kept"]
    assert committed(connection, "markers", topic) == 4  # two records, two markers: no lag left
    assert read_into([], source, recovery) == []


def test_a_missing_topic_says_what_to_do_and_is_not_made(connection: KafkaConnection) -> None:
    for _ in range(2):  # asking does not create it, though the broker would create topics
        with pytest.raises(SettingsError, match="sediment topics create"):
            KafkaLog(connection).partitions("not-there")


def test_who_asks_every_few_seconds_makes_no_connections_for_it(
    connection: KafkaConnection, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_broker.create_topic(2)
    monkeypatch.setattr(source_module, "Consumer", lambda _: pytest.fail("a consumer was made"))
    log = KafkaLog(connection)
    for _ in range(3):
        assert lags(log, topic, "nobody") == {0: 0, 1: 0}


def test_only_who_reads_on_for_ever_lets_the_broker_hold_its_questions() -> None:
    own = KafkaConnection("b:9092", {"fetch.wait.max.ms": "700"})
    assert "fetch.wait.max.ms" not in KafkaConnection("b:9092").consumer("g")
    assert KafkaConnection("b:9092").consumer("g", follow=True)["fetch.wait.max.ms"] > 500
    assert own.consumer("g", follow=True)["fetch.wait.max.ms"] == "700"


def test_no_broker_at_the_start_is_an_error() -> None:
    nobody = KafkaConnection("127.0.0.1:1", request_timeout_s=0.5)
    with pytest.raises(ServiceUnavailable, match="topic t"):
        KafkaSource(nobody, "t", group="g").list_parts()


def test_records_that_retention_took_are_reported(
    connection: KafkaConnection, kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka_broker.create_topic()
    fill(connection, topic, 5)
    kafka_broker.delete_before(topic, 3)
    source = KafkaSource(
        connection, topic, group="late", start=StartAt.offset(1), end=EndAt.latest()
    )
    assert values(read_into([], source)) == [b"3", b"4"]
    assert "offset 1 is not there" in caplog.text
    assert "offsets 1 to 2 are gone" in caplog.text


def test_a_topic_made_anew_is_read_from_its_beginning(
    connection: KafkaConnection, kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka_broker.create_topic()
    fill(connection, topic, 3)
    seen: list[LogRecord] = []
    replaced: list[bool] = []

    def paused() -> bool:
        if len(seen) == 3 and not replaced:
            replaced.append(True)
            kafka_broker.replace_topic(topic)
            fill(connection, topic, 1, first=10)
        return False

    source = KafkaSource(
        connection, topic, group="anew", paused=paused, stopping=lambda: len(seen) >= 4
    )
    read_into(seen, source)
    assert values(seen) == [b"0", b"1", b"2", b"10"]
    assert "offset 3 is not there" in caplog.text


@pytest.mark.slow
def test_a_broker_that_goes_away_is_waited_for(
    connection: KafkaConnection, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.create_topic()
    fill(connection, topic, 2)
    seen: list[LogRecord] = []
    looks: list[bool] = []

    def paused() -> bool:
        if len(seen) == 2:
            looks.append(True)
            if len(looks) == 1:
                kafka_broker.stop(kill=True)
            if len(looks) == 50:  # about a second without a broker
                kafka_broker.start()
                fill(connection, topic, 2, first=2)
        return False

    source = KafkaSource(
        connection, topic, group="away", paused=paused, stopping=lambda: len(seen) >= 4
    )
    read_into(seen, source)
    assert values(seen) == [b"0", b"1", b"2", b"3"]


@pytest.mark.slow
def test_a_broker_that_stays_away_ends_the_reading(
    connection: KafkaConnection, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_ANSWER_S", 0.2)
    monkeypatch.setattr(source_module, "_LOOK_AGAIN_S", 0.05)
    topic = kafka_broker.create_topic()
    fill(connection, topic, 1)
    seen: list[LogRecord] = []
    source = KafkaSource(
        replace(connection, patience_s=0.5), topic, group="away", partition_check_s=0.05
    )
    cursor = source.build_part("in", source.list_parts()[0], None)
    while not seen:
        seen += cursor.next_batch()
    kafka_broker.stop()
    try:
        with pytest.raises(LogAway, match="reading waited for"):
            while True:
                cursor.next_batch()
    finally:
        kafka_broker.start()
        cursor.close()


@pytest.mark.slow
def test_a_commit_that_no_broker_takes_does_not_keep_a_flow_from_ending(
    connection: KafkaConnection, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an outage that was given up; seeds 9058 and 9094 of the fault rig."""
    topic = kafka_broker.create_topic(partitions=2)
    KafkaAppender(connection).append([OutRecord(topic, b"%d" % key, b"v") for key in range(20)])
    source = KafkaSource(connection, topic, group="frozen")
    parts = [source.build_part("in", name, None) for name in source.list_parts()]
    for part in parts:
        while not part.next_batch():
            pass
    with kafka_broker.frozen():
        for part in parts:
            assert part.snapshot() > 0
        for part, seconds in zip(parts, (0.5, 3600.0), strict=True):  # the second one not at all
            monkeypatch.setattr(source_module, "_CLOSE_S", seconds)
            closing = threading.Thread(target=part.close, daemon=True)
            closing.start()
            closing.join(30)
            assert not closing.is_alive()


def test_added_partitions_are_reported_once(
    connection: KafkaConnection, kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka_broker.create_topic()
    fill(connection, topic, 1)
    looks: list[bool] = []

    def stopping() -> bool:
        looks.append(True)
        if len(looks) == 1:
            admin = kafka_broker.admin()
            admin.create_partitions([NewPartitions(topic, 3)])[topic].result(timeout=15)
        return "has 3 partitions, it had 1" in caplog.text and len(looks) > 20

    source = KafkaSource(
        connection, topic, group="grown", stopping=stopping, partition_check_s=0.01
    )
    read_into([], source)
    assert caplog.text.count("has 3 partitions, it had 1") == 1

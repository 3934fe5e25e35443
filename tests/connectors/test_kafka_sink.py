"""No epoch closes over a record that Kafka does not have."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.outputs import StatefulSinkPartition
from bytewax.recovery import RecoveryConfig
from bytewax.testing import TestingSource, run_main
from confluent_kafka import KafkaError

from connectors.dataflow import write_records
from connectors.kafka import sink
from connectors.kafka.connection import KafkaConnection, kafka_failure
from connectors.kafka.sink import KafkaAppender, KafkaSink
from connectors.kafka.source import KafkaLog
from connectors.log import EndAt, StartAt
from connectors.metrics import LOG_AWAY_SECONDS
from stores.errors import LogAway, OversizedInput, ServiceUnavailable, SettingsError
from stores.records import OutRecord
from tests.contract.flows_on_logs import recovery_store, values
from tests.rig.kafka import KafkaBroker

pytestmark = pytest.mark.kafka

HASTY = {"message.timeout.ms": "2000", "reconnect.backoff.max.ms": "200"}


def run(
    connection: KafkaConnection,
    topic: str,
    numbers: range,
    recovery: RecoveryConfig,
    before: Callable[[int], None] = lambda number: None,
) -> None:
    """Write one number an epoch; ``before`` is called with each of them on its way."""

    def to_record(number: int) -> tuple[str, list[OutRecord]]:
        before(number)
        return "k", [OutRecord(topic, b"k", b"payload %d" % number)]

    flow = Dataflow("write")
    stream = op.map("to_record", op.input("in", flow, TestingSource(list(numbers))), to_record)
    write_records("out", stream, KafkaSink(connection))
    run_main(flow, epoch_interval=timedelta(0), recovery_config=recovery)


def test_a_broker_that_dies_stops_the_flow_and_nothing_is_lost(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka_broker.create_topic()
    connection = KafkaConnection(kafka_broker.bootstrap, HASTY)
    recovery = recovery_store(tmp_path / "recovery")
    passed: list[int] = []

    def dies_at_five(number: int) -> None:
        passed.append(number)
        if number == 5:
            kafka_broker.stop(kill=True)

    try:
        with pytest.raises(Exception, match=r"snapshotting|writing") as caught:
            run(connection, topic, range(10), recovery, dies_at_five)
    finally:
        kafka_broker.start()
    assert isinstance(caught.value.__cause__, ServiceUnavailable)
    assert topic in str(caught.value.__cause__)
    assert "payload" not in str(caught.value.__cause__)

    before = len(passed)
    run(connection, topic, range(10), recovery, passed.append)
    assert passed[before] <= 5  # the epoch of the undelivered record had not closed
    assert passed[before] > 0  # but those before it had
    read = Counter(values(KafkaLog(connection).read(topic, StartAt(), EndAt())))
    assert set(read) == {b"payload %d" % number for number in range(10)}


def test_a_broker_that_is_away_for_a_while_is_waited_for(
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The epoch stays open until the broker is back; then the same run goes on."""
    monkeypatch.setattr(sink, "_AWAY_S", 0.2)
    topic = kafka_broker.create_topic()
    connection = KafkaConnection(kafka_broker.bootstrap, patience_s=60)
    said: list[float] = []

    class Back(logging.Handler):
        """Brings the broker back once the flow has said that it waits."""

        def emit(self, record: logging.LogRecord) -> None:
            if "waits for it" in record.getMessage():
                said.append(LOG_AWAY_SECONDS.labels("writing")._value.get())
                kafka_broker.start()

    def dies_at_five(number: int) -> None:
        if number == 5:
            kafka_broker.stop(kill=True)

    back = Back()
    logging.getLogger("connectors.kafka.outage").addHandler(back)
    try:
        run(connection, topic, range(10), recovery_store(tmp_path / "recovery"), dies_at_five)
    finally:
        logging.getLogger("connectors.kafka.outage").removeHandler(back)
    assert len(said) == 1
    assert "writing goes on" in caplog.text
    assert LOG_AWAY_SECONDS.labels("writing")._value.get() == 0
    read = values(KafkaLog(connection).read(topic, StartAt(), EndAt()))
    assert read == [b"payload %d" % number for number in range(10)]


def test_patience_ends_and_a_stop_ends_it_sooner(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_broker.create_topic()

    def writer(
        patience_s: float, *, stopping: bool
    ) -> StatefulSinkPartition[Sequence[OutRecord], None]:
        connection = KafkaConnection(
            kafka_broker.bootstrap, request_timeout_s=0.5, patience_s=patience_s
        )
        made = KafkaSink(connection, lambda: stopping).build_part("out", "writer-0", None)
        made.write_batch([[OutRecord(topic, b"k", b"0")]])
        made.snapshot()
        return made

    writers = {
        "writing waited for": writer(0.3, stopping=False),
        "asked to stop": writer(60, stopping=True),
    }
    monkeypatch.setattr(sink, "_AWAY_S", 0.1)
    monkeypatch.setattr(sink, "_STOP_S", 0.2)
    kafka_broker.stop()
    try:
        for what, one in writers.items():
            one.write_batch([[OutRecord(topic, b"k", b"payload")]])
            with pytest.raises(LogAway, match=what) as caught:
                one.snapshot()
            assert "payload" not in str(caught.value)
            with pytest.raises(LogAway, match=what):  # a topic that it has not written yet
                one.write_batch([[OutRecord("not-known-yet", b"k", b"payload")]])
            one.close()
    finally:
        kafka_broker.start()


def test_what_waiting_does_not_mend_is_for_a_person() -> None:
    for code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):
        error = kafka_failure("writing", "t", KafkaError(code))
        assert isinstance(error, SettingsError)
        assert "SEDIMENT_KAFKA" in error.message
    missing = kafka_failure("writing", "t", KafkaError(KafkaError._UNKNOWN_TOPIC))
    assert isinstance(missing, SettingsError)
    assert "sediment topics create" in missing.message
    assert isinstance(kafka_failure("w", "t", KafkaError(KafkaError._MSG_TIMED_OUT)), LogAway)


def test_a_broker_that_is_not_there_is_an_error_not_silence() -> None:
    nobody = KafkaConnection("127.0.0.1:1", request_timeout_s=0.5)
    with pytest.raises(ServiceUnavailable, match="topic t"):
        KafkaAppender(nobody).append([OutRecord("t", b"k", b"payload")])


def test_an_append_while_the_broker_is_away_names_the_record(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.create_topic()
    appender = KafkaAppender(KafkaConnection(kafka_broker.bootstrap, HASTY))
    appender.append([OutRecord(topic, b"k", b"0")])
    kafka_broker.stop()
    try:
        with pytest.raises(ServiceUnavailable, match=f"record 0 for topic {topic}") as caught:
            appender.append([OutRecord(topic, b"k", b"payload")])
    finally:
        kafka_broker.start()
    assert "payload" not in str(caught.value)
    for left in reversed(range(10)):  # it finds the broker again in its own time
        try:
            appender.append([OutRecord(topic, b"k", b"1")])  # the same producer goes on
            break
        except ServiceUnavailable:
            assert left, "the producer never found the broker again"


def test_a_record_above_the_limit_of_its_topic_is_oversized(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.create_topic(max_message_bytes="2000", compression_type="uncompressed")
    connection = KafkaConnection(kafka_broker.bootstrap, {"compression.type": "none"})
    with pytest.raises(OversizedInput, match=f"record 0 for topic {topic}"):
        KafkaAppender(connection).append([OutRecord(topic, b"k", b"x" * 5000)])


def test_a_missing_topic_is_not_made_by_writing(kafka_broker: KafkaBroker) -> None:
    connection = KafkaConnection(kafka_broker.bootstrap)
    for _ in range(2):
        with pytest.raises(SettingsError, match="sediment topics create"):
            KafkaAppender(connection).append([OutRecord("not-made", b"k", b"v")])


def test_the_writers_of_a_process_ask_once_for_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sink, "topic_partitions", lambda _, topic: asked.append(topic))
    one = KafkaSink(KafkaConnection("127.0.0.1:1"))
    writers = [one.build_part("out", name, None) for name in one.list_parts()]
    for topic in ("atoms", "outcomes", "atoms"):
        for writer in writers:
            writer._know(topic)
    assert asked == ["atoms", "outcomes"]
    for writer in writers:
        writer.close()

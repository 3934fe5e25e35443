"""Writes Kafka so that nothing is lost silently: in a dataflow, and outside of one.

A record counts as written only when its delivery callback said so. The sink is a
``FixedPartitionedSink`` for one reason: Bytewax asks such a sink for a snapshot before an
epoch may close. That snapshot waits for every delivery of the epoch and raises when one
failed, so an epoch never closes over an undelivered record. Within the epoch nothing waits:
librdkafka batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectors.dataflow import SINK_WRITERS
from connectors.kafka.connection import (
    KafkaConnection,
    kafka_error,
    topic_partitions,
    unavailable,
)
from stores.errors import OversizedInput, SedimentError
from stores.records import OutRecord, Position

__all__ = ["KafkaAppender", "KafkaSink"]

_OnDelivery = Callable[[KafkaError | None, Message], None]

_WAIT_S = 0.1
"""How long librdkafka is waited for at once; between two waits, Ctrl-C gets its turn."""


def _failure(what: str, error: KafkaError) -> SedimentError:
    """Say which record failed and why, in librdkafka's words; never with the payload."""
    message = f"{what} was not delivered: {error.str()}"
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return OversizedInput(message)
    return unavailable(message)


class _Outbox:
    """A producer that knows its topics exist.

    Producing to a missing topic would make brokers with the default settings create it, with
    one partition and without its cleanup policy.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self.producer = Producer(connection.producer())
        self._connection = connection
        self._known: set[str] = set()

    def send(self, record: OutRecord, on_delivery: _OnDelivery) -> None:
        """Queue a record; wait only while librdkafka's queue is full."""
        if record.topic not in self._known:
            topic_partitions(self._connection, record.topic)
            self._known.add(record.topic)
        while True:
            try:
                self.producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    on_delivery=on_delivery,
                )
            except BufferError:
                self.producer.poll(_WAIT_S)
            else:
                return


# --- in a dataflow ---------------------------------------------------------------------------


class KafkaSink(FixedPartitionedSink[OutRecord, None]):
    """Writes records to their topics; use it through ``connectors.dataflow.write_records``.

    At least once, in order per key. A failed delivery stops the flow with a
    :class:`~stores.errors.ServiceUnavailable` or :class:`~stores.errors.OversizedInput`; the
    records of the open epoch are then written again by the next run.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection

    def list_parts(self) -> list[str]:
        """Name the writers."""
        return list(SINK_WRITERS)

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> _KafkaWriter:
        """Give a writer with its own producer."""
        return _KafkaWriter(self._connection)


class _KafkaWriter(StatefulSinkPartition[OutRecord, None]):
    def __init__(self, connection: KafkaConnection) -> None:
        self._outbox = _Outbox(connection)
        self._failed: SedimentError | None = None

    def write_batch(self, values: list[OutRecord]) -> None:
        for record in values:
            try:
                self._outbox.send(record, self._delivered)
            except KafkaException as error:
                what = f"a record for topic {record.topic}"
                raise _failure(what, kafka_error(error)) from None
        self._outbox.producer.poll(0)
        self._raise_failed()

    def snapshot(self) -> None:
        while self._outbox.producer.flush(_WAIT_S) > 0:
            self._raise_failed()
        self._raise_failed()

    def close(self) -> None:
        # What is still queued belongs to an epoch that did not close: it is written again.
        self._outbox.producer.purge()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = _failure(f"a record for topic {message.topic()}", error)

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._failed


# --- outside of a dataflow -------------------------------------------------------------------


class KafkaAppender:
    """Appends records and waits for all in-sync replicas: a :class:`connectors.log.Appender`.

    One producer, shared by all threads that append.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._outbox = _Outbox(connection)

    def append(self, records: Sequence[OutRecord]) -> list[Position]:
        """Write records and give their positions. See :class:`connectors.log.Appender`."""
        delivered: dict[int, Position] = {}
        failed: dict[int, SedimentError] = {}

        def on_delivery(index: int, error: KafkaError | None, message: Any) -> None:
            topic = records[index].topic
            if error is None:
                delivered[index] = Position(topic, message.partition(), message.offset())
            else:
                failed[index] = _failure(f"record {index} for topic {topic}", error)

        for index, record in enumerate(records):
            try:
                self._outbox.send(record, functools.partial(on_delivery, index))
            except KafkaException as error:
                what = f"record {index} for topic {record.topic}"
                failed[index] = _failure(what, kafka_error(error))
        while len(delivered) + len(failed) < len(records):
            self._outbox.producer.poll(_WAIT_S)
        if failed:
            raise failed[min(failed)]
        return [delivered[index] for index in range(len(records))]

"""Writes Kafka so that nothing is lost silently: in a dataflow, and outside of one.

A record counts as written only when its delivery callback said so. The sink is a
``FixedPartitionedSink`` for one reason: Bytewax asks such a sink for a snapshot before an
epoch may close. That snapshot waits for every delivery of the epoch and raises when one
failed, so an epoch never closes over an undelivered record. Within the epoch nothing waits:
librdkafka batches.

Brokers that are away are waited for: the epoch stays open, its records wait in librdkafka, and
once that has no more room, or the epoch is to close, the worker waits with them. What waiting
does not mend stops the flow at once.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectors.dataflow import SINK_WRITERS, never
from connectors.kafka.connection import (
    KafkaConnection,
    is_hopeless,
    kafka_error,
    kafka_failure,
    topic_partitions,
    unavailable,
)
from connectors.kafka.outage import Outage
from stores.errors import LogAway, OversizedInput, SedimentError
from stores.records import OutRecord, Position

__all__ = ["KafkaAppender", "KafkaSink"]

_OnDelivery = Callable[[KafkaError | None, Message], None]

_WAIT_S = 0.1
"""How long librdkafka is waited for at once; between two waits, Ctrl-C gets its turn."""
_AWAY_S = 5.0
"""Seconds without any delivery after which brokers count as away: a busy one takes less."""
_STOP_S = 10.0
"""Seconds that a flow which was asked to stop waits for brokers that are away."""


def _failure(what: str, topic: str, error: KafkaError) -> SedimentError:
    """Say which record failed and why, in librdkafka's words; never with the payload."""
    what = f"{what} was not delivered"
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return OversizedInput(f"{what}: {error.str()}")
    return kafka_failure(what, topic, error)


class _Outbox:
    """A producer that knows its topics exist.

    Producing to a missing topic would make brokers with the default settings create it, with
    one partition and without its cleanup policy.

    :arg known: topics that are known to exist; shared by those that are given the same.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        patience_s: float = 60.0,
        while_full: Callable[[], None] = lambda: None,
        known: set[str] | None = None,
        **properties: Any,
    ) -> None:
        self.producer = Producer(connection.producer(patience_s) | properties)
        self._connection = connection
        self._while_full = while_full
        self._known: set[str] = set() if known is None else known

    def know(self, topic: str) -> None:
        """See that a topic exists, once. Raises as :func:`topic_partitions` does."""
        if topic not in self._known:
            topic_partitions(self._connection, topic)
            self._known.add(topic)

    def send(self, record: OutRecord, on_delivery: _OnDelivery) -> None:
        """Queue a record; wait only while librdkafka's queue is full."""
        self.know(record.topic)
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
                self._while_full()
            else:
                return


# --- in a dataflow ---------------------------------------------------------------------------


class KafkaSink(FixedPartitionedSink[Sequence[OutRecord], None]):
    """Writes records to their topics; use it through ``connectors.dataflow.write_records``.

    At least once, in order per key. Brokers that are away are waited for, as long as the
    connection's ``patience_s`` says, with a warning each minute and the metric
    ``sediment_log_away_seconds``. Then the flow stops with a :class:`~stores.errors.LogAway`;
    at once with a :class:`~stores.errors.SettingsError` where a topic is missing or may not be
    written, and an :class:`~stores.errors.OversizedInput` for a record too large. The records
    of the open epoch are then written again by the next run.

    :arg stopping: true once the flow was asked to stop; then it waits for 10 s at most.
    """

    def __init__(self, connection: KafkaConnection, stopping: Callable[[], bool] = never) -> None:
        self._connection = connection
        self._stopping = stopping
        self._known: set[str] = set()  # topics; to ask takes 20 ms, in which a worker does nothing

    def list_parts(self) -> list[str]:
        """Name the writers."""
        return list(SINK_WRITERS)

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> _KafkaWriter:
        """Give a writer with its own producer."""
        return _KafkaWriter(self._connection, self._stopping, self._known)


class _KafkaWriter(StatefulSinkPartition[Sequence[OutRecord], None]):
    def __init__(
        self, connection: KafkaConnection, stopping: Callable[[], bool], known: set[str]
    ) -> None:
        patience_s = connection.patience_s
        # An outage is counted from the last delivery and a record from when it was queued: so
        # the outage is over first, and says more.
        self._outbox = _Outbox(
            connection, patience_s + _AWAY_S, self._still_waiting, known, error_cb=self._heard
        )
        self._stopping = stopping
        self._outage = Outage("writing", patience_s)
        self._failed: SedimentError | None = None
        self._open = 0  # its own length counts what librdkafka has to tell as well
        self._moved_at = time.monotonic()
        self._asked_to_stop_at: float | None = None

    def write_batch(self, values: list[Sequence[OutRecord]]) -> None:
        for record in chain.from_iterable(values):
            self._know(record.topic)
            if not self._open:
                self._moved_at = time.monotonic()
            try:
                self._outbox.send(record, self._delivered)
            except KafkaException as error:
                what = f"a record for topic {record.topic}"
                raise _failure(what, record.topic, kafka_error(error)) from None
            self._open += 1
        self._outbox.producer.poll(0)
        self._still_waiting()

    def snapshot(self) -> None:
        while self._outbox.producer.flush(_WAIT_S) > 0:
            self._still_waiting()
        self._raise_failed()

    def close(self) -> None:
        # What is still queued belongs to an epoch that did not close: it is written again.
        self._outbox.producer.purge()

    def _know(self, topic: str) -> None:
        """See that a topic exists; wait for brokers that do not say."""
        while True:
            asked_at = time.monotonic()
            try:
                self._outbox.know(topic)
            except LogAway as error:
                self._outage.goes_on(error.message, asked_at)
                self._end_if_asked_to()
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._open -= 1
        if error is None:
            self._moved_at = time.monotonic()
            self._outage.over()
        elif self._failed is None:
            topic = message.topic() or ""
            self._failed = _failure(f"a record for topic {topic}", topic, error)

    def _heard(self, error: KafkaError) -> None:
        """Hear from librdkafka what no delivery says: it tries on, also where that is no use."""
        if is_hopeless(error) and self._failed is None:
            self._failed = kafka_failure("writing", "", error)

    def _still_waiting(self) -> None:
        """Raise what must not be waited for, or not any longer."""
        self._raise_failed()
        now = time.monotonic()
        if not self._open or now - self._moved_at < _AWAY_S:
            return
        self._outage.goes_on(f"{self._open} records are not acknowledged", self._moved_at)
        self._end_if_asked_to()

    def _end_if_asked_to(self) -> None:
        if self._stopping():
            now = time.monotonic()
            self._asked_to_stop_at = self._asked_to_stop_at or now
            if now - self._asked_to_stop_at > _STOP_S:
                message = "asked to stop while records wait for it; the next run writes them again"
                raise unavailable(message)

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
                failed[index] = _failure(f"record {index} for topic {topic}", topic, error)

        for index, record in enumerate(records):
            try:
                self._outbox.send(record, functools.partial(on_delivery, index))
            except KafkaException as error:
                what = f"record {index} for topic {record.topic}"
                failed[index] = _failure(what, record.topic, kafka_error(error))
        while len(delivered) + len(failed) < len(records):
            self._outbox.producer.poll(_WAIT_S)
        if failed:
            raise failed[min(failed)]
        return [delivered[index] for index in range(len(records))]

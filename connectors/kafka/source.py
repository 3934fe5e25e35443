"""Reads Kafka: one consumer per partition, with ``assign``, never with group membership.

Where reading stands is kept in the Bytewax snapshot alone. The offset is also committed to a
consumer group, so that ordinary lag tools see it, but nothing ever resumes from there.

A broker that goes away is waited for: librdkafka reconnects, and the source reads nothing in
the meantime. Records are never skipped silently: when the wanted offset is gone (retention),
the source says so, counts it, and goes on with the oldest record there is.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from bytewax.inputs import FixedPartitionedSource
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from connectors.dataflow import (
    BATCH_RECORDS,
    LogPartition,
    drain,
    never,
    partition_name,
    partition_number,
)
from connectors.kafka import places
from connectors.kafka.connection import (
    KafkaConnection,
    is_hopeless,
    kafka_error,
    kafka_failure,
    topic_partitions,
)
from connectors.kafka.outage import Outage
from connectors.log import EndAt, Place, StartAt
from connectors.metrics import LOG_OFFSET_RESETS
from stores.errors import LogAway
from stores.records import LogRecord, Position

__all__ = ["KafkaLog", "KafkaSource"]

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 2.0
"""Seconds between looks for brokers that are away."""
_ANSWER_S = 10.0
_CLOSE_S = 5.0
"""Seconds that the last commit of a source has; of brokers that are away it would take minutes."""


class _KafkaCursor:
    """Reads one partition. See :class:`connectors.dataflow.Cursor`.

    :arg start: an offset to resume from, or a place to look up.
    :arg group: consumer group to commit offsets to, or ``None`` to commit nowhere.
    :arg given_up: set once a commit was not waited for any longer; shared by the partitions of a
        source, so that they wait once.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        partition: int,
        *,
        start: Place,
        end: Place | None,
        group: str | None,
        watch: _PartitionWatch | None = None,
        given_up: threading.Event | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._commits = group is not None
        self._watch = watch
        self._given_up = given_up or threading.Event()
        self._timeout_s = connection.request_timeout_s
        properties = connection.consumer(group or "sediment-reader", follow=end is None)
        self._consumer = Consumer({**properties, "on_commit": _log_commit})
        self._lost_from: int | None = None
        self._next, self._end = self._bounds(start, end)
        # Where it began was noted before, or is the beginning. A commit of it would be waiting for
        # the group's coordinator to be found, and could overtake the next one.
        self._committed = self._next
        self._consumer.assign([self._at(self._next)])

    def _at(self, offset: int) -> TopicPartition:
        return TopicPartition(self._topic, self._partition, offset)

    def _bounds(self, start: Place, end: Place | None) -> tuple[int, int | None]:
        def both() -> tuple[int, int | None]:
            first = self._in_range(self._find(start))
            return first, None if end is None else self._find(end)

        try:
            return places.settled(
                self._timeout_s, f"{self._topic}, partition {self._partition}", both
            )
        except LogAway:
            self._consumer.close()
            raise

    def _find(self, place: Place) -> int:
        found = places.find(self._consumer, [self._at(0)], place, self._timeout_s)
        return found[self._partition]

    def _in_range(self, offset: int) -> int:
        """Check a wanted offset against what is there, so that a bounded read cannot end unread."""
        low, high = self._consumer.get_watermark_offsets(self._at(0), timeout=self._timeout_s)
        if low <= offset <= high:
            return offset
        self._say_that_it_is_gone(offset)
        return low

    def _say_that_it_is_gone(self, offset: int) -> None:
        self._lost_from = offset
        LOG_OFFSET_RESETS.labels(self._topic).inc()
        logger.warning(
            "topic %s, partition %d: offset %d is not there (retention, or the topic was made "
            "anew); reading from the oldest record",
            self._topic, self._partition, offset,
        )  # fmt: skip

    def fetch(self, limit: int) -> list[LogRecord]:
        if self._watch is not None:
            self._watch.look()
        records: list[LogRecord] = []
        for message in self._consumer.consume(limit, timeout=0):
            if message.error() is not None:
                self._handle(message)
                continue
            record = self._record(message)
            offset = record.position.offset
            if self._end is not None and offset >= self._end:
                self._next = self._end
                break
            if self._lost_from is not None:
                self._say_what_is_lost(self._lost_from, offset)
            records.append(record)
            self._next = offset + 1
        return records

    def _record(self, message: Any) -> LogRecord:
        headers = message.headers()
        return LogRecord(
            # The name as it is here: one text for all records, which a pickle then holds once.
            Position(self._topic, self._partition, message.offset()),
            message.timestamp()[1],
            message.key(),
            message.value(),
            # A header may be null in Kafka; we keep it as empty.
            tuple((name, value or b"") for name, value in headers) if headers else (),
        )

    def _handle(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            # Behind the last record there may be transaction markers: they count as read.
            self._next = max(self._next, message.offset() or 0)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._say_that_it_is_gone(self._next)
            self._next = 0
            self._consumer.assign([self._at(OFFSET_BEGINNING)])
        elif is_hopeless(error):
            what = f"topic {self._topic}, partition {self._partition}"
            raise kafka_failure(what, self._topic, error)
        else:
            logger.warning(
                "topic %s, partition %d: %s; still trying",
                self._topic, self._partition, error.str(),
            )  # fmt: skip

    def _say_what_is_lost(self, wanted: int, found: int) -> None:
        self._lost_from = None
        if found > wanted:
            logger.warning(
                "topic %s, partition %d: the records at offsets %d to %d are gone, unread",
                self._topic, self._partition, wanted, found - 1,
            )  # fmt: skip

    def at_end(self) -> bool:
        return self._end is not None and self._next >= self._end

    def snapshot(self) -> int:
        if self._commits and self._next != self._committed:
            with contextlib.suppress(KafkaException):  # for lag tools only: never worth a crash
                self._consumer.commit(offsets=[self._at(self._next)], asynchronous=True)
                self._committed = self._next
        return self._next

    def close(self) -> None:
        # It waits for the last commit, whatever its timeouts, for as long as brokers are away: a
        # flow that has given them up, or was asked to stop, would not end.
        closing = threading.Thread(target=self._consumer.close, name="kafka-close", daemon=True)
        closing.start()
        if not self._given_up.is_set():
            closing.join(_CLOSE_S)
        if closing.is_alive():
            self._given_up.set()


def _log_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
    if error is not None:
        logger.warning("kafka: offsets were not committed for lag tools: %s", error.str())


class _PartitionWatch:
    """Looks now and then, without blocking, whether the topic has more partitions than it had.

    And whether there is a broker that says so: one that is away is waited for, up to a limit.
    """

    def __init__(
        self, admin: AdminClient, topic: str, known: int, interval_s: float, patience_s: float
    ) -> None:
        self._admin = admin
        self._outage = Outage("reading", patience_s)
        self._topic = topic
        self._known = known
        self._interval_s = interval_s
        self._next_look = time.monotonic() + interval_s
        self._asked: Future[Any] | None = None
        self._asked_at = 0.0

    def look(self) -> None:
        """Ask when it is time; judge the answer once it is there."""
        if self._asked is None:
            if time.monotonic() >= self._next_look:
                topics = TopicCollection([self._topic])
                asked = self._admin.describe_topics(topics, request_timeout=_ANSWER_S)
                self._asked, self._asked_at = asked[self._topic], time.monotonic()
            return
        if not self._asked.done():
            return
        answer, self._asked = self._asked, None
        self._next_look = time.monotonic() + self._interval_s
        failed = answer.exception()
        if failed is not None:
            error = kafka_error(failed)
            if is_hopeless(error):
                what = f"topic {self._topic}"
                raise kafka_failure(what, self._topic, error)
            self._next_look = time.monotonic() + min(self._interval_s, _LOOK_AGAIN_S)
            self._outage.goes_on(f"topic {self._topic}: {error.str()}", self._asked_at)
            return
        self._outage.over()
        count = len(answer.result().partitions)
        if count > self._known:
            logger.warning(
                "topic %s has %d partitions, it had %d when this flow started: the new ones are "
                "not read until the flow is started again",
                self._topic, count, self._known,
            )  # fmt: skip
            self._known = count


class KafkaSource(FixedPartitionedSource[LogRecord, int]):
    """Reads one topic, each partition in its order.

    A snapshot in the recovery store goes before ``start``. Reading notices new records within
    20 ms of their arrival. ``paused`` and ``stopping``: see
    :class:`connectors.dataflow.LogPartition`.

    Raises :class:`~stores.errors.SettingsError` when the topic does not exist and
    :class:`~stores.errors.ServiceUnavailable` when no broker answers at the start or refuses us.

    :arg group: consumer group that snapshots commit offsets to, for lag tools only.
    :arg end: where to end; ``None`` follows for ever.
    :arg partition_check_s: seconds between looks for added partitions.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        *,
        group: str,
        start: StartAt | None = None,
        end: EndAt | None = None,
        paused: Callable[[], bool] = never,
        stopping: Callable[[], bool] = never,
        batch_size: int = BATCH_RECORDS,
        partition_check_s: float = 30.0,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._group = group
        self._start = start or StartAt.beginning()
        self._end = end
        self._paused = paused
        self._stopping = stopping
        self._batch_size = batch_size
        self._partition_check_s = partition_check_s
        self._given_up = threading.Event()

    def list_parts(self) -> list[str]:
        """Name the topic's partitions, as they are now."""
        count = topic_partitions(self._connection, self._topic)
        return [partition_name(self._topic, partition) for partition in range(count)]

    def build_part(
        self, step_id: str, for_part: str, resume_state: int | None
    ) -> LogPartition[int]:
        """Open a partition at its snapshot, or at ``start`` when there is none."""
        partition = partition_number(for_part)
        start = self._start.of(partition)
        cursor = _KafkaCursor(
            self._connection,
            self._topic,
            partition,
            start=start if resume_state is None else Place("offset", resume_state),
            end=None if self._end is None else self._end.of(partition),
            group=self._group,
            watch=self._new_watch() if partition == 0 else None,
            given_up=self._given_up,
        )
        return LogPartition(
            cursor, paused=self._paused, stopping=self._stopping, batch_size=self._batch_size
        )

    def _new_watch(self) -> _PartitionWatch:
        known = topic_partitions(self._connection, self._topic)
        connection = self._connection
        return _PartitionWatch(
            connection.admin(), self._topic, known, self._partition_check_s, connection.patience_s
        )


class KafkaLog:
    """Reads Kafka outside a dataflow: a :class:`connectors.log.LogReader`.

    Raises as :class:`KafkaSource` does. Commits no offsets.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection

    def partitions(self, topic: str) -> int:
        """Count the partitions of a topic."""
        return topic_partitions(self._connection, topic)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Give the offset after the newest record, by partition."""
        return self.offsets(topic, Place("end"))

    def offsets(self, topic: str, place: Place) -> dict[int, int]:
        """Look a place up in every partition. See :class:`connectors.log.LogReader`."""
        return places.offsets(self._connection, topic, place)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Give how far a group has read, by partition. See :class:`connectors.log.LogReader`."""
        return places.committed(self._connection, group, topic)

    def read(self, topic: str, start: StartAt, end: EndAt) -> Iterator[LogRecord]:
        """Read partition by partition. See :class:`connectors.log.LogReader`."""
        for partition in range(self.partitions(topic)):
            yield from drain(
                self.cursor(topic, partition, start=start.of(partition), end=end.of(partition))
            )

    def cursor(
        self, topic: str, partition: int, *, start: Place, end: Place | None
    ) -> _KafkaCursor:
        """Open one partition for reading."""
        return _KafkaCursor(self._connection, topic, partition, start=start, end=end, group=None)

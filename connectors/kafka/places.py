"""Where a topic begins and ends, where a time lies in it, and how far a group has read.

Asked by a consumer of this one look, that reads nothing. An admin client would answer for all
partitions at once; but one whose question about a group ran out of time aborts the process when
the broker is found to be gone (seen with librdkafka 2.16, confluentinc/librdkafka#4605).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.kafka.connection import (
    KafkaConnection,
    kafka_error,
    topic_partitions,
    unavailable,
)
from connectors.log import Place

__all__ = ["committed", "find", "offsets", "settled"]

T = TypeVar("T")

_SETTLE_S = 0.1
_SETTLING = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._UNKNOWN_PARTITION,  # by what this client has heard of it so far
    }
)
_READER = "sediment-reader"
_AS_TIME = {"beginning": -2, "end": -1}
"""What Kafka's ListOffsets takes instead of a time."""


def find(
    consumer: Consumer, partitions: Sequence[TopicPartition], place: Place, timeout_s: float
) -> dict[int, int]:
    """Look a place up in partitions of a topic, in one question to each broker that leads some.

    Always a number: a place that moves could not be resumed from. Raises ``KafkaException``.
    """
    if place.kind == "offset":
        return {at.partition: place.value for at in partitions}
    time_ms = _AS_TIME.get(place.kind, max(0, place.value))
    asked = [TopicPartition(at.topic, at.partition, time_ms) for at in partitions]
    found = consumer.offsets_for_times(asked, timeout=timeout_s)
    for at in found:
        if at.error is not None:
            raise KafkaException(at.error)
    places = {at.partition: at.offset for at in found}
    late = [at for at in found if at.offset < 0 and place.kind == "timestamp"]  # than all there is
    return places | (find(consumer, late, Place("end"), timeout_s) if late else {})


def offsets(connection: KafkaConnection, topic: str, place: Place) -> dict[int, int]:
    """Look a place up in every partition. See :class:`connectors.log.LogReader`."""
    if place.kind == "offset":
        low, high = (offsets(connection, topic, Place(kind)) for kind in ("beginning", "end"))
        return {at: min(max(place.value, low[at]), end) for at, end in high.items()}
    asked = _partitions(connection, topic)
    with _asking(connection, _READER) as consumer:
        return settled(
            connection.request_timeout_s,
            topic,
            partial(find, consumer, asked, place, connection.request_timeout_s),
        )


def committed(connection: KafkaConnection, group: str, topic: str) -> dict[int, int]:
    """Give how far a group has read, by partition. See :class:`connectors.log.LogReader`."""
    asked = _partitions(connection, topic)
    with _asking(connection, group) as consumer:
        # The first question about any group makes the brokers create their topic.
        found = settled(
            connection.request_timeout_s,
            f"{topic}, group {group}",
            lambda: consumer.committed(asked, timeout=connection.request_timeout_s),
        )
    return {at.partition: at.offset for at in found if at.offset >= 0}


def settled(timeout_s: float, about: str, ask: Callable[[], T]) -> T:
    """Ask until the brokers have agreed among themselves who is to answer.

    A topic that was made a moment ago may have no leader yet. Raises
    :class:`~stores.errors.LogAway` for every other ``KafkaException``, and at the end of the time.

    :arg about: what is asked about, for the error: a topic, and what of it.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            reason = kafka_error(error)
            if reason.code() not in _SETTLING or time.monotonic() > deadline:
                message = f"topic {about}: {reason.str()}"
                raise unavailable(message) from None
            time.sleep(_SETTLE_S)


@contextmanager
def _asking(connection: KafkaConnection, group: str) -> Iterator[Consumer]:
    consumer = Consumer(connection.consumer(group))
    try:
        yield consumer
    finally:
        consumer.close()


def _partitions(connection: KafkaConnection, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(topic_partitions(connection, topic))]

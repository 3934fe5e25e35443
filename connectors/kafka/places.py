"""Where a topic begins and ends, where a time lies in it, and how far a group has read.

All partitions are asked about at once, with the client that the process has for the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from connectors.kafka.connection import (
    KafkaConnection,
    kafka_error,
    topic_partitions,
    unavailable,
)
from connectors.log import Place

__all__ = ["NO_LEADER", "SETTLE_S", "committed", "offsets"]

T = TypeVar("T")

SETTLE_S = 0.1
_SETTLING = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
NO_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._UNKNOWN_PARTITION,  # by what this client has heard of it so far
    }
)


def offsets(connection: KafkaConnection, topic: str, place: Place) -> dict[int, int]:
    """Look a place up in every partition. See :class:`connectors.log.LogReader`."""
    if place.kind == "offset":
        low, high = (offsets(connection, topic, Place(kind)) for kind in ("beginning", "end"))
        return {at: min(max(place.value, low[at]), end) for at, end in high.items()}
    asked = dict.fromkeys(_partitions(connection, topic), _spec(place))

    def ask() -> dict[int, int]:
        answers = connection.admin().list_offsets(
            asked,
            isolation_level=IsolationLevel.READ_COMMITTED,  # as what is read
            request_timeout=connection.request_timeout_s,
        )
        return {at.partition: answer.result().offset for at, answer in answers.items()}

    found = _settled(connection, topic, ask)
    if all(offset >= 0 for offset in found.values()):
        return found
    ends = offsets(connection, topic, Place("end"))  # of a time later than every record
    return {at: offset if offset >= 0 else ends[at] for at, offset in found.items()}


def committed(connection: KafkaConnection, group: str, topic: str) -> dict[int, int]:
    """Give how far a group has read, by partition. See :class:`connectors.log.LogReader`."""
    asked = [ConsumerGroupTopicPartitions(group, _partitions(connection, topic))]

    def ask() -> ConsumerGroupTopicPartitions:
        answers = connection.admin().list_consumer_group_offsets(
            asked, request_timeout=connection.request_timeout_s
        )
        found: ConsumerGroupTopicPartitions = answers[group].result()
        return found

    # The first question about any group makes the brokers create their topic.
    answer = _settled(connection, f"{topic}, group {group}", ask)
    return {at.partition: at.offset for at in answer.topic_partitions or () if at.offset >= 0}


def _partitions(connection: KafkaConnection, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(topic_partitions(connection, topic))]


def _spec(place: Place) -> OffsetSpec:
    kinds: dict[str, Callable[[], OffsetSpec]] = {
        "beginning": OffsetSpec.earliest,
        "end": OffsetSpec.latest,
        "timestamp": lambda: OffsetSpec.for_timestamp(place.value),
    }
    return kinds[place.kind]()


def _settled(connection: KafkaConnection, about: str, ask: Callable[[], T]) -> T:
    """Ask until the brokers have agreed among themselves who is to answer."""
    deadline = time.monotonic() + connection.request_timeout_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            reason = kafka_error(error)
            if reason.code() not in _SETTLING | NO_LEADER or time.monotonic() > deadline:
                message = f"topic {about}: {reason.str()}"
                raise unavailable(message) from None
            time.sleep(SETTLE_S)

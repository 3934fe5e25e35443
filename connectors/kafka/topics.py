"""Sediment's topics, declared once: key, content, how long they are kept; and making them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from connectors.kafka.connection import (
    KafkaConnection,
    kafka_error,
    unavailable,
)
from connectors.log import MAX_RECORD_BYTES
from stores.generations import SHARED_TOPICS

__all__ = [
    "DEAD_LETTER_TOPICS",
    "TOPICS",
    "TopicReport",
    "TopicSpec",
    "TopicState",
    "create_topics",
    "delete_topics",
    "describe_topics",
]

_DAY_MS = 24 * 60 * 60 * 1000
_FOR_EVER = -1
_SETTLE_S = 0.1
_SETTLING = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic is for and how it is kept.

    :arg name: without the prefix.
    :arg key: what the record key is.
    :arg retention_ms: how long records are kept; -1 for ever. Unused when compacted.
    """

    name: str
    key: str
    holds: str
    cleanup: Literal["delete", "compact"] = "delete"
    retention_ms: int = _FOR_EVER

    def config(self) -> dict[str, str]:
        """Give the topic's configuration, as Kafka names it."""
        config = {
            "cleanup.policy": self.cleanup,
            # A dead letter is larger than the record it holds, and a record that is too large
            # for an event must still arrive to be refused; see MAX_RECORD_BYTES.
            "max.message.bytes": str(MAX_RECORD_BYTES if self.dead_letters else _EVENT_LIMIT),
        }
        if self.cleanup == "delete":
            config["retention.ms"] = str(self.retention_ms)
        return config

    @property
    def shared(self) -> bool:
        """True when there is one for all generations; of others each generation has its own."""
        return self.name in SHARED_TOPICS

    @property
    def dead_letters(self) -> bool:
        """True when the topic holds dead letters."""
        return self.name.endswith(".dlq")


_EVENT_LIMIT = MAX_RECORD_BYTES // 2

TOPICS: tuple[TopicSpec, ...] = (
    TopicSpec(
        name="l0.events",
        key="scope",
        holds="L0 events, session ends, forget requests; never deleted: a replay starts here",
    ),
    TopicSpec(
        name="l1.atoms",
        key="atom id",
        holds="every version of every atom",
        cleanup="compact",
    ),
    TopicSpec(
        name="l2.jobs",
        key="scope",
        holds="scene jobs",
        retention_ms=7 * _DAY_MS,
    ),
    TopicSpec(
        name="l3.jobs",
        key="scope",
        holds="persona jobs",
        retention_ms=7 * _DAY_MS,
    ),
    TopicSpec(
        name="profiles",
        key="profile id",
        holds="every version of every scene and persona",
        cleanup="compact",
    ),
    TopicSpec(
        name="outcomes",
        key="scope; the outcome id where there is none",
        holds="the one end of every window or refused record; never deleted: the audit reads it",
    ),
    TopicSpec(
        name="answers",
        key="request hash",
        holds="recorded LLM answers, written before they are used; deleted when forgotten",
        cleanup="compact",
    ),
    TopicSpec(
        name="tombstones",
        key="tombstone id",
        holds="ids and hashes of what was forgotten or rejected; kept for ever",
        cleanup="compact",
    ),
    TopicSpec(
        name="generations",
        key="generation; current for the pointer",
        holds="the generations of memory, and which one recall reads",
        cleanup="compact",
    ),
    TopicSpec(
        name="l0.dlq",
        key="the original key",
        holds="records of l0.events that are not events or could not be indexed, as they came",
    ),
    TopicSpec(
        name="l1.dlq",
        key="the original key",
        holds="records of l0.events whose window could not be extracted or stored, as they came",
    ),
    TopicSpec(
        name="l2.dlq",
        key="the original key",
        holds="scene jobs that were given up, as they came",
    ),
    TopicSpec(
        name="l3.dlq",
        key="the original key",
        holds="persona jobs that were given up, as they came",
    ),
)
DEAD_LETTER_TOPICS = tuple(spec.name for spec in TOPICS if spec.dead_letters)


@dataclass(frozen=True, slots=True)
class TopicReport:
    """What :func:`create_topics` found or did for one topic.

    :arg differences: for a topic that was there before, what is not as declared, one line
        each. Sediment changes nothing about an existing topic.
    """

    name: str
    created: bool
    partitions: int
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the cluster has it.

    :arg partitions: 0 when the topic does not exist.
    :arg offsets: (oldest, end) by partition.
    """

    name: str
    spec: TopicSpec
    partitions: int
    replication: int
    config: Mapping[str, str]
    offsets: tuple[tuple[int, int], ...]


def create_topics(
    connection: KafkaConnection,
    prefix: str,
    partitions: int,
    specs: Sequence[TopicSpec] = TOPICS,
) -> list[TopicReport]:
    """Create the topics that do not exist, with the brokers' default replication.

    When it returns, the brokers know the topics. Doing it again changes nothing. Raises
    :class:`~stores.errors.ServiceUnavailable` when no broker answers or one refuses.
    """
    cluster = _Cluster(connection)
    names = [f"{prefix}.{spec.name}" for spec in specs]
    wanted = [
        NewTopic(name, num_partitions=partitions, replication_factor=-1, config=spec.config())
        for name, spec in zip(names, specs, strict=True)
    ]
    created: set[str] = set()
    answers = cluster.admin.create_topics(wanted, request_timeout=connection.request_timeout_s)
    for name, future in answers.items():
        try:
            future.result()
            created.add(name)
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _failed(name, error) from None
    shapes = cluster.wait_for(names)
    return [
        TopicReport(
            name,
            created=name in created,
            partitions=shapes[name].partitions,
            differences=_differences(spec, shapes[name], partitions),
        )
        for name, spec in zip(names, specs, strict=True)
    ]


def delete_topics(
    connection: KafkaConnection, prefix: str, specs: Sequence[TopicSpec] = TOPICS
) -> None:
    """Delete topics with all records; missing ones are no error.

    When it returns, the brokers take no more questions about them. Raises
    :class:`~stores.errors.ServiceUnavailable` when no broker answers or one refuses.
    """
    admin = connection.admin()
    names = [f"{prefix}.{spec.name}" for spec in specs]
    answers = admin.delete_topics(
        names,
        operation_timeout=connection.request_timeout_s,
        request_timeout=connection.request_timeout_s,
    )
    for name, future in answers.items():
        try:
            future.result()
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _failed(name, error) from None


def describe_topics(
    connection: KafkaConnection, prefix: str, specs: Sequence[TopicSpec] = TOPICS
) -> list[TopicState]:
    """Give each topic as the cluster has it. Raises as :func:`create_topics` does."""
    cluster = _Cluster(connection)
    names = [f"{prefix}.{spec.name}" for spec in specs]
    shapes = cluster.shapes(names)
    counts = {name: shape.partitions for name, shape in shapes.items()}
    oldest = cluster.offsets(counts, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    ends = cluster.offsets(counts, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    states = []
    for name, spec in zip(names, specs, strict=True):
        shape = shapes.get(name, _Shape(0, 0, {}))
        offsets = tuple(
            (oldest[name, partition], ends[name, partition])
            for partition in range(shape.partitions)
        )
        states.append(
            TopicState(name, spec, shape.partitions, shape.replication, shape.config, offsets)
        )
    return states


def _differences(spec: TopicSpec, shape: _Shape, partitions: int) -> tuple[str, ...]:
    lines = []
    if shape.partitions != partitions:
        lines.append(f"has {shape.partitions} partitions, not {partitions}")
    lines += [
        f"{name} is {shape.config.get(name, 'unset')}, not {value}"
        for name, value in spec.config().items()
        if shape.config.get(name) != value
    ]
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the cluster says about a topic that exists."""

    partitions: int
    replication: int
    config: Mapping[str, str]


class _Cluster:
    def __init__(self, connection: KafkaConnection) -> None:
        self.admin = connection.admin()
        self._timeout_s = connection.request_timeout_s

    def wait_for(self, names: Sequence[str]) -> dict[str, _Shape]:
        """Wait until the brokers have heard of all these topics from the controller."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            shapes = self.shapes(names)
            unknown = [name for name in names if name not in shapes]
            if not unknown:
                return shapes
            if time.monotonic() > deadline:
                message = f"topic {unknown[0]} was created, but the brokers do not know it yet"
                raise unavailable(message)
            time.sleep(_SETTLE_S)

    def shapes(self, names: Sequence[str]) -> dict[str, _Shape]:
        """Ask for the topics that exist among ``names``."""
        if not names:
            return {}
        topics = TopicCollection(list(names))
        found: dict[str, Any] = {}
        for name, future in self.admin.describe_topics(
            topics, request_timeout=self._timeout_s
        ).items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                if kafka_error(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise _failed(name, error) from None
        configs = self._configs(list(found))
        return {
            name: _Shape(len(topic.partitions), len(topic.partitions[0].replicas), configs[name])
            for name, topic in found.items()
        }

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        answers = self.admin.describe_configs(resources, request_timeout=self._timeout_s)
        configs: dict[str, dict[str, str]] = {}
        for resource, future in answers.items():
            try:
                entries = future.result()
            except KafkaException as error:
                raise _failed(resource.name, error) from None
            configs[resource.name] = {name: entry.value for name, entry in entries.items()}
        return configs

    def offsets(self, counts: Mapping[str, int], at: OffsetSpec) -> dict[tuple[str, int], int]:
        """Ask for one offset of every partition, by (topic, partition)."""
        asked = {
            TopicPartition(name, partition): at
            for name, count in counts.items()
            for partition in range(count)
        }
        if not asked:
            return {}
        deadline = time.monotonic() + self._timeout_s
        offsets: dict[tuple[str, int], int] = {}
        while asked:
            answers = self.admin.list_offsets(asked, request_timeout=self._timeout_s)
            for place, future in answers.items():
                try:
                    offsets[place.topic, place.partition] = future.result().offset
                    del asked[place]
                except KafkaException as error:
                    # A topic that was made a moment ago may have no leader yet.
                    settling = kafka_error(error).code() in _SETTLING
                    if not settling or time.monotonic() > deadline:
                        raise _failed(place.topic, error) from None
                    time.sleep(_SETTLE_S)
        return offsets


def _failed(name: str, error: KafkaException) -> Exception:
    message = f"topic {name}: {kafka_error(error).str()}"
    return unavailable(message)

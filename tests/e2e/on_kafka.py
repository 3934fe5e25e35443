"""One set of topics on a real broker: what to set, what to write, what came out."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from connectors.kafka.connection import KafkaConnection
from connectors.kafka.sink import KafkaAppender
from connectors.kafka.source import KafkaLog
from connectors.kafka.topics import create_topics
from connectors.log import EndAt, StartAt
from stores.records import Atom, LogRecord, Outcome, OutRecord
from tests.rig.kafka import KafkaBroker

__all__ = ["OnKafka"]

_RUN = uuid.uuid4().hex[:6]
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class OnKafka:
    """Topics of their own, made at once; with one partition they have one order."""

    broker: KafkaBroker
    partitions: int = 1
    prefix: str = field(default_factory=lambda: f"e2e-{_RUN}-{next(_NUMBERS)}")

    def __post_init__(self) -> None:
        create_topics(self._connection, self.prefix, self.partitions)

    @property
    def env(self) -> dict[str, str]:
        """Give the settings that name these topics."""
        return {"SEDIMENT_BROKERS": self.broker.bootstrap, "SEDIMENT_TOPIC_PREFIX": self.prefix}

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def append(self, records: Sequence[OutRecord]) -> None:
        KafkaAppender(self._connection).append(records)

    def read(self, name: str) -> list[LogRecord]:
        """Read a topic, partition by partition."""
        log = KafkaLog(self._connection)
        return list(log.read(self.topic(name), StartAt.beginning(), EndAt.latest()))

    def outcomes(self) -> list[Outcome]:
        """Read every outcome as it was written, repeated ones too."""
        return [
            Outcome.model_validate_json(record.value or b"") for record in self.read("outcomes")
        ]

    def atoms(self) -> dict[str, Atom]:
        """Read the last record of every atom, as log compaction leaves it."""
        atoms = [Atom.model_validate_json(record.value or b"") for record in self.read("l1.atoms")]
        return {atom.atom_id: atom for atom in atoms}

    @property
    def _connection(self) -> KafkaConnection:
        return KafkaConnection(self.broker.bootstrap)

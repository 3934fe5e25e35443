"""Both logs behind one face, so that the same tests run over the file log and over Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from bytewax.inputs import FixedPartitionedSource
from bytewax.outputs import FixedPartitionedSink

from connectors.filelog import FileLog, FileLogSink, FileLogSource
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.sink import KafkaAppender, KafkaSink
from connectors.kafka.source import KafkaLog, KafkaSource
from connectors.log import Appender, LogReader
from stores.records import LogRecord, OutRecord
from tests.rig.kafka import KafkaBroker


@dataclass
class LogUnderTest:
    appender: Appender
    reader: LogReader
    sink: FixedPartitionedSink[Sequence[OutRecord], None]
    new_topic: Callable[[int], str]
    source: Callable[..., FixedPartitionedSource[LogRecord, Any]]


class WallClock:
    def now(self) -> datetime:
        return datetime.now(timezone.utc)


@pytest.fixture(params=["file", pytest.param("kafka", marks=pytest.mark.kafka)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogUnderTest]:
    if request.param == "file":
        files = FileLog(tmp_path / "log", WallClock())

        def new_topic(partitions: int) -> str:
            name = f"topic-{len(list((tmp_path / 'log').glob('*')))}"
            files.create_topic(name, partitions)
            return name

        def source(topic: str, **places: Any) -> FileLogSource:
            return FileLogSource(files, topic, group=f"group-of-{topic}", **places)

        yield LogUnderTest(files, files, FileLogSink(files), new_topic, source)
        files.close()
    else:
        broker: KafkaBroker = request.getfixturevalue("kafka_broker")
        connection = KafkaConnection(broker.bootstrap)

        def kafka_source(topic: str, **places: Any) -> KafkaSource:
            return KafkaSource(connection, topic, group=f"group-of-{topic}", **places)

        yield LogUnderTest(
            KafkaAppender(connection),
            KafkaLog(connection),
            KafkaSink(connection),
            broker.create_topic,
            kafka_source,
        )

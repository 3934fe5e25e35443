"""The servers of one worker of the rig: a broker, a Redis, a model; runs use them in turn."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewPartitions, OffsetSpec  # type: ignore[attr-defined]

from connectors.kafka.connection import KafkaConnection
from connectors.kafka.sink import KafkaAppender
from connectors.kafka.topics import TOPICS, create_topics
from stores.records import LogRecord, OutRecord, Position
from tests.faults.flow_process import FlowProcess, run_flow
from tests.faults.unreliable_llm import UnreliableLlm
from tests.rig.kafka import KafkaBroker
from tests.rig.redis import RedisServer, running_redis

__all__ = ["PATIENCE_S", "Servers", "Topics", "running_servers"]

PATIENCE_S = 240.0
"""Seconds that anything may take on a machine with other work; what takes longer hangs."""

_SOON = {"fetch.wait.max.ms": 10}
"""The broker says at once that there is no more, and not after half a second."""
_MANY = ("l0.events", "l1.atoms", "l2.jobs", "l3.jobs", "outcomes")
_SPREAD = tuple(spec for spec in TOPICS if spec.name in _MANY)
_SINGLE = tuple(spec for spec in TOPICS if spec.name not in _MANY)


@dataclass(frozen=True)
class Servers:
    """What a scenario runs on."""

    broker: KafkaBroker
    redis: RedisServer
    llm: UnreliableLlm
    processes: ForkServerContext

    def start_flow(self, what: FlowProcess) -> ForkServerProcess:
        """Start a process of the flow."""
        process = self.processes.Process(target=run_flow, args=(what,))
        process.start()
        return process

    def forget_locks(self, prefix: str) -> None:
        """Take away what a process that was killed still holds, as if its minute were over."""
        with redis.Redis.from_url(self.redis.url) as client:
            held = list(client.scan_iter(match=f"{prefix}.locks:*:owner", count=1000))
            if held:
                client.delete(*held)

    def heal(self) -> None:
        """Start again what a run that broke off has left stopped."""
        if self.broker._process is None:
            self.broker.start()
        if not self._redis_answers():
            self.redis.stop()
            self.redis.start()

    def _redis_answers(self) -> bool:
        with redis.Redis.from_url(self.redis.url) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


@contextmanager
def running_servers(broker: KafkaBroker, folder: Path) -> Iterator[Servers]:
    """Start what is missing beside a broker that runs."""
    processes = mp.get_context("forkserver")
    processes.set_forkserver_preload(["tests.faults.preloaded"])
    llm = UnreliableLlm()
    with running_redis(folder) as redis:
        llm.start()
        try:
            yield Servers(broker, redis, llm, processes)
        finally:
            llm.stop()


@dataclass(frozen=True)
class Topics:
    """The topics of one run."""

    bootstrap: str
    prefix: str

    @property
    def connection(self) -> KafkaConnection:
        return KafkaConnection(self.bootstrap)

    def create(self, partitions: int) -> None:
        create_topics(self.connection, self.prefix, partitions, _SPREAD)
        create_topics(self.connection, self.prefix, 1, _SINGLE)
        # A flow that starts before there are leaders takes that for an outage.
        admin = self.connection.admin()
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        places = {
            TopicPartition(self.name(spec.name), number): latest
            for spec in TOPICS
            for number in range(partitions if spec in _SPREAD else 1)
        }
        deadline = time.monotonic() + PATIENCE_S
        while places:
            for place, answer in admin.list_offsets(places).items():
                try:
                    answer.result(timeout=30)
                    del places[place]
                except KafkaException:
                    if time.monotonic() > deadline:
                        raise
            time.sleep(0.02 if places else 0)

    def delete(self) -> None:
        """Ask for their deletion, and do not wait for it."""
        admin = self.connection.admin()
        for future in admin.delete_topics([self.name(spec.name) for spec in TOPICS]).values():
            with contextlib.suppress(futures.TimeoutError):  # what stays is in nobody's way
                future.exception(timeout=PATIENCE_S)

    def name(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def add_partition(self, partitions: int) -> None:
        """Give the events topic one partition more, and wait until producers can see it."""
        name = self.name("l0.events")
        admin = self.connection.admin()
        wanted = NewPartitions(name, partitions + 1)
        admin.create_partitions([wanted])[name].result(timeout=30)
        while len(admin.list_topics(name, timeout=10).topics[name].partitions) <= partitions:
            time.sleep(0.02)

    def append(self, records: Sequence[OutRecord]) -> None:
        KafkaAppender(self.connection).append(records)

    def read(self, names: Sequence[str]) -> Mapping[str, list[LogRecord]]:
        """Read whole topics with one consumer, each partition in its order."""
        consumer = Consumer({**self.connection.consumer("fault-rig"), **_SOON})
        found: dict[tuple[str, int], list[LogRecord]] = {}
        try:
            known = consumer.list_topics(timeout=15).topics
            places = [
                TopicPartition(self.name(name), number, OFFSET_BEGINNING)
                for name in names
                for number in known[self.name(name)].partitions
            ]
            found = {(place.topic, place.partition): [] for place in places}
            consumer.assign(places)
            left = set(found)
            deadline = time.monotonic() + PATIENCE_S
            while left:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"topics could not be read: {sorted(left)}")
                for message in consumer.consume(1000, timeout=0.01):
                    place = (message.topic() or "", message.partition() or 0)
                    error = message.error()
                    if error is None:
                        found[place].append(_record(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(place)
        finally:
            consumer.close()
        return {
            name: [
                record
                for (topic, _), records in sorted(found.items())
                if topic == self.name(name)
                for record in records
            ]
            for name in names
        }


def _record(message: object) -> LogRecord:
    m: object = message
    return LogRecord(
        position=Position(m.topic(), m.partition(), m.offset()),  # type: ignore[attr-defined]
        timestamp_ms=m.timestamp()[1],  # type: ignore[attr-defined]
        key=m.key(),  # type: ignore[attr-defined]
        value=m.value(),  # type: ignore[attr-defined]
        headers=tuple(m.headers() or ()),  # type: ignore[attr-defined]
    )

"""A real Apache Kafka broker (KRaft, one node) for tests and benchmarks.

The jars come from Maven Central once, into ``.cache/`` at the project root. The broker runs on
free ports of loopback in a folder of its own and is gone at the end.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from tests.rig.needs import missing

__all__ = ["KafkaBroker", "kafka_broker", "real_kafka"]

ROOT = Path(__file__).parents[2]
POM = Path(__file__).parent / "kafka_pom" / "pom.xml"
START_TIMEOUT_S = 180.0

_CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
num.partitions=1
auto.create.topics.enable=true
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=1000
log.initial.task.delay.ms=1000
"""


class KafkaBroker:
    """A broker that can be stopped and started again on the same port, data kept.

    :arg bootstrap: ``host:port`` for clients.
    """

    def __init__(self, folder: Path, jars: Path) -> None:
        self.folder = folder
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count()
        self._name_seed = uuid.uuid4().hex[:6]
        port, controller = _free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        (folder / "server.properties").write_text(
            _CONFIG.format(port=port, controller=controller, folder=folder)
        )
        self._java("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c")

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        with (self.folder / "broker.out").open("ab") as output:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka"), stdout=output, stderr=subprocess.STDOUT
            )
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=2).brokers:
                    return
        self.stop()
        tail = (self.folder / "broker.out").read_text(errors="replace")[-2000:]
        message = f"Kafka did not start:\n{tail}"
        raise RuntimeError(message)

    def stop(self, *, kill: bool = False) -> None:
        """Stop the broker; ``kill`` as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Have it answer nobody: connections stay, as behind a dead network."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)
            self._wait_until_back()

    def _wait_until_back(self) -> None:
        """Wait until it answers: it has been away from itself for longer than its session lasts."""
        admin = self.admin()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                admin.list_topics(timeout=10)
                break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise

    def create_topic(self, partitions: int = 1, **config: str) -> str:
        """Create a topic with a name of its own; underscores in ``config`` stand for dots."""
        name = f"test-{self._name_seed}-{next(self._names)}"
        properties = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=properties)
        admin = self.admin()  # alive until the answer is there
        admin.create_topics([topic])[name].result(timeout=60)
        _wait_until_led(admin, name)
        return name

    def replace_topic(self, name: str) -> None:
        """Delete a topic and create it again, empty, with one partition."""
        admin = self.admin()
        admin.delete_topics([name])[name].result(timeout=60)
        while True:
            try:
                topic = NewTopic(name, num_partitions=1, replication_factor=1)
                admin.create_topics([topic])[name].result(timeout=60)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                time.sleep(0.05)  # the old one is still on its way out
            else:
                _wait_until_led(admin, name)
                return

    def delete_before(self, topic: str, offset: int) -> None:
        """Delete the records of partition 0 before ``offset``, as retention does."""
        admin = self.admin()
        place = TopicPartition(topic, 0, offset)
        admin.delete_records([place])[place].result(timeout=60)

    def admin(self) -> AdminClient:
        """Give a client that changes and describes the cluster."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def _command(self, main: str, *arguments: str) -> list[str]:
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        classpath = ["-cp", f"{self._jars}/*"]
        config = str(self.folder / "server.properties")
        return ["java", *options, *classpath, main, *arguments, config]

    def _java(self, main: str, *arguments: str) -> None:
        subprocess.run(self._command(main, *arguments), check=True, capture_output=True)


@contextlib.contextmanager
def real_kafka() -> Iterator[KafkaBroker]:
    """Run a broker for the length of a ``with`` block. Raises when Java or Maven is missing."""
    jars = _fetch_jars()
    folder = Path(tempfile.mkdtemp(prefix="sediment-kafka-"))
    broker = None
    try:
        broker = KafkaBroker(folder, jars)
        broker.start()
        yield broker
    finally:
        if broker is not None:
            broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """One broker for all tests of a session; every test makes topics of its own."""
    for program, package in (("java", "Java 17 or newer"), ("mvn", "Apache Maven")):
        if shutil.which(program) is None:
            missing(f"{package}, to run a real Apache Kafka")
    with real_kafka() as broker:
        yield broker


def _fetch_jars() -> Path:
    """Fetch the broker's jars once; several test processes may ask at the same time."""
    version = ET.parse(POM).findtext(".//{*}kafka.version")
    home = ROOT / ".cache" / f"kafka-{version}"
    jars = home / "lib"
    if not jars.is_dir():
        draft = home / f"lib.{os.getpid()}"
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={draft}"], check=True)
        try:
            draft.rename(jars)
        except OSError:  # another process was first
            shutil.rmtree(draft)
    return jars


def _wait_until_led(admin: AdminClient, topic: str) -> None:
    """Wait until the broker has heard from the controller that it leads the new topic."""
    places = {TopicPartition(topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        (answer,) = admin.list_offsets(places).values()
        try:
            answer.result(timeout=60)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _cluster_id() -> str:
    # Kafka's id is 22 characters; one that begins with a hyphen its tool takes for an option.
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return made.replace("-", "A", 1) if made.startswith("-") else made

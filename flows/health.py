"""What a flow tells those who watch it: metrics, whether it lives, whether it reads, its lag.

| path | answers |
|---|---|
| ``/metrics`` | Prometheus' text format |
| ``/healthz`` | 200 while the process runs |
| ``/readyz`` | 200 while every partition is read, snapshots loaded; 503 before and in a stop |
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bytewax.inputs import FixedPartitionedSource, Source, StatefulSourcePartition
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from connectors.log import LogReader, Place
from connectors.metrics import LOG_LAG
from stores.errors import SedimentError, SettingsError
from stores.records import LogRecord

__all__ = ["FlowHealth", "lag_measured", "served", "watched"]

_LAG_EVERY_S = 10.0

_log = logging.getLogger(__name__)


@dataclass
class FlowHealth:
    """How far a flow has come with its start. Thread-safe: each field is only ever replaced.

    :arg stopping: true once the flow was asked to stop.
    :arg shared: other processes read the rest of the partitions, so that one is enough here.
    """

    stopping: Callable[[], bool]
    shared: bool = False
    listed: frozenset[str] = frozenset()
    opened: frozenset[str] = field(default_factory=frozenset)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def list(self, partitions: list[str]) -> None:
        """Note which partitions there are."""
        with self._guard:
            self.listed = frozenset(partitions)

    def open(self, partition: str) -> None:
        """Note that one is read from its place in the snapshot on."""
        with self._guard:
            self.opened |= {partition}

    @property
    def ready(self) -> bool:
        """Whether every partition of this process is read."""
        if self.stopping() or not self.listed:
            return False
        return bool(self.opened) if self.shared else self.listed <= self.opened


def watched(source: Source[LogRecord], health: FlowHealth) -> Source[LogRecord]:
    """Give a source that tells ``health`` which partitions are open."""
    return _Watched(source, health) if isinstance(source, FixedPartitionedSource) else source


class _Watched(FixedPartitionedSource[LogRecord, Any]):
    def __init__(self, source: FixedPartitionedSource[LogRecord, Any], health: FlowHealth) -> None:
        self._source = source
        self._health = health

    def list_parts(self) -> list[str]:
        partitions = self._source.list_parts()
        self._health.list(partitions)
        return partitions

    def build_part(
        self, step_id: str, for_part: str, resume_state: Any
    ) -> StatefulSourcePartition[LogRecord, Any]:
        # Bytewax calls this once it has read the recovery store.
        partition = self._source.build_part(step_id, for_part, resume_state)
        self._health.open(for_part)
        return partition


@contextmanager
def served(host: str, port: int, health: FlowHealth) -> Iterator[int]:
    """Serve the three paths for as long as the block runs; give the port.

    Raises :class:`~stores.errors.SettingsError` when the port cannot be had.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is the base class's
            status, kind, body = _answer(self.path.partition("?")[0], health)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: probes ask all the time."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        message = f"SEDIMENT_METRICS_PORT: cannot listen on {host}:{port}: {error.strerror}"
        raise SettingsError(message) from None
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(path: str, health: FlowHealth) -> tuple[HTTPStatus, str, bytes]:
    if path in ("/metrics", "/"):
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest()
    if path == "/healthz":
        return HTTPStatus.OK, "application/json", b'{"status":"ok"}'
    if path == "/readyz":
        if health.ready:
            return HTTPStatus.OK, "application/json", b'{"ready":true}'
        return HTTPStatus.SERVICE_UNAVAILABLE, "application/json", b'{"ready":false}'
    return HTTPStatus.NOT_FOUND, "application/json", b'{"error":"no such path"}'


# --- lag -------------------------------------------------------------------------------------


@contextmanager
def lag_measured(
    flow: str, reader: LogReader, topic: str, group: str, every_s: float = _LAG_EVERY_S
) -> Iterator[None]:
    """Measure the lag of a flow, now and then, in a thread of its own.

    Lag is what came into the topic and was not read by the last snapshot. While the log does not
    answer, the figures stay as they were.
    """
    over = threading.Event()

    def measure() -> None:
        while True:
            try:
                for partition, lag in lags(reader, topic, group).items():
                    LOG_LAG.labels(flow, topic, str(partition)).set(lag)
            except SedimentError as error:
                _log.info("lag cannot be measured: %s", error.message)
            if over.wait(every_s):
                return

    thread = threading.Thread(target=measure, name="lag", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def lags(reader: LogReader, topic: str, group: str) -> dict[int, int]:
    """Count the records of each partition that a group has not read."""
    ends = reader.end_offsets(topic)
    read = reader.committed(group, topic)
    oldest = reader.offsets(topic, Place("beginning")) if ends.keys() - read.keys() else {}
    return {
        partition: max(0, end - read.get(partition, oldest.get(partition, 0)))
        for partition, end in ends.items()
    }

"""What a flow tells those who watch it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from bytewax.dataflow import Dataflow
from bytewax.operators import input as source_of
from bytewax.operators import output
from bytewax.testing import TestingSink, run_main
from prometheus_client import REGISTRY

from connectors.filelog import FileLog, FileLogSource
from connectors.log import EndAt, StartAt
from flows.health import FlowHealth, lag_measured, lags, served, watched
from flows.runner import StopSignal, SystemClock
from stores.errors import ServiceUnavailable, SettingsError
from stores.records import LogRecord, OutRecord

TOPIC, GROUP = "t.events", "t-all"


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    log = FileLog(tmp_path / "log", SystemClock())
    log.append([OutRecord(TOPIC, b"k", b"{}") for _ in range(5)])
    return log


@pytest.fixture
def asked() -> Iterator[tuple[httpx.Client, FlowHealth, StopSignal]]:
    stop = StopSignal()
    health = FlowHealth(stop)
    with (
        served("127.0.0.1", 0, health) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client, health, stop


def test_a_flow_is_ready_once_every_partition_is_read_and_not_when_it_stops(
    asked: tuple[httpx.Client, FlowHealth, StopSignal],
) -> None:
    client, health, stop = asked

    def status() -> list[int]:
        return [client.get(path).status_code for path in ("/healthz", "/readyz")]

    assert status() == [200, 503]
    health.list(["a", "b"])
    health.open("a")
    assert status() == [200, 503]
    health.open("b")
    assert status() == [200, 200]
    stop.set()
    assert status() == [200, 503]


def test_metrics_are_there_and_nothing_else(
    asked: tuple[httpx.Client, FlowHealth, StopSignal], capfd: pytest.CaptureFixture[str]
) -> None:
    client, _, _ = asked
    page = client.get("/metrics?name[]=x")
    assert page.headers["content-type"].startswith("text/plain")
    assert "sediment_stage_pending" in page.text
    assert client.get("/other").status_code == 404
    assert capfd.readouterr() == ("", "")  # probes ask all the time


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(SettingsError, match=f"SEDIMENT_METRICS_PORT: .*:{port}"),
            served("127.0.0.1", port, FlowHealth(StopSignal())),
        ):
            pass


def test_a_source_tells_what_it_has_opened(log: FileLog) -> None:
    health = FlowHealth(lambda: False)
    source = FileLogSource(log, TOPIC, group=GROUP, start=StartAt.beginning(), end=EndAt.latest())
    read: list[LogRecord] = []
    flow = Dataflow("f")
    output("out", source_of("in", flow, watched(source, health)), TestingSink(read))
    assert not health.ready
    run_main(flow)
    assert health.ready
    assert len(read) == 5


def test_a_source_without_partitions_is_left_as_it_is() -> None:
    class Other:
        pass

    plain = Other()
    assert watched(plain, FlowHealth(lambda: False)) is plain  # type: ignore[arg-type,comparison-overlap]


def test_lag_is_what_no_snapshot_has_read(log: FileLog) -> None:
    assert lags(log, TOPIC, GROUP) == {0: 5}
    source = FileLogSource(log, TOPIC, group=GROUP, start=StartAt.beginning(), end=None)
    [name] = source.list_parts()
    partition = source.build_part("in", name, None)
    assert len(list(partition.next_batch())) == 5
    assert lags(log, TOPIC, GROUP) == {0: 5}
    partition.snapshot()
    partition.close()
    log.append([OutRecord(TOPIC, b"k", b"{}")])
    assert lags(log, TOPIC, GROUP) == {0: 1}


def test_lag_is_measured_again_and_again_also_after_the_log_was_away(log: FileLog) -> None:
    class Flaky:
        def __init__(self) -> None:
            self.asked = 0
            self.twice = threading.Event()

        def __getattr__(self, name: str) -> object:
            return getattr(log, name)

        def end_offsets(self, topic: str) -> dict[int, int]:
            self.asked += 1
            if self.asked == 1:
                service = "kafka"
                raise ServiceUnavailable(service, "away")
            if self.asked > 2:
                self.twice.set()
            return log.end_offsets(topic)

    reader = Flaky()
    with lag_measured("all", reader, TOPIC, GROUP, every_s=0.01):  # type: ignore[arg-type]
        assert reader.twice.wait(10)
    labels = {"flow": "all", "topic": TOPIC, "partition": "0"}
    assert REGISTRY.get_sample_value("sediment_log_lag", labels) == 5

"""The pipeline's speed, freshness and memory, each beside its ceiling in the same run.

    python -m benchmarks.pipeline [window|index|freshness|memory ...] [--json]

- ``window``: decode and window, no model, no index, one worker; beside the same flow that only
  hands the records through.
- ``index``: file log to L0 index on milvus-lite with instant embeddings; beside the bare store
  taking the same rows in the same batches.
- ``freshness``: real Kafka, milvus-lite, embeddings by a scripted server over HTTP; from an
  event's production to the first keyword search that finds it, at 200 events/s.
- ``memory``: peak resident memory of the L1 flow with a scripted model that takes 2 s, on a
  backlog of 200,000 events and of 20,000.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import bytewax.operators as op
import numpy as np
import orjson
from bytewax.dataflow import Dataflow, Stream
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import TestingSource, run_main
from confluent_kafka import Producer

from benchmarks.figures import Figure, tell
from connectors.embeddings import make_embedder
from connectors.filelog import FileLog
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.topics import create_topics
from connectors.settings import Settings, load_settings
from flows.cli.run import process
from flows.decode import by_scope, decode
from flows.parts import flow_parts, open_store
from flows.runner import FlowRun, StopSignal, SystemClock, rare_gc
from flows.topology import Progress, build_flow
from flows.window import WindowPolicy, window
from stores.errors import ServiceUnavailable
from stores.protocols import Filter, Vectors
from stores.records import IndexedEvent, LogRecord, OutRecord, Position, SourcedEvent
from tests.rig.extraction_script import answer
from tests.rig.kafka import real_kafka
from tests.rig.scripted_llm import Step, scripted_llm

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SCOPE_FIELDS = ("tenant", "agent", "user")
SENTENCE = "I moved to Lisbon last month and it has been raining ever since, how about you?"


# --- events ------------------------------------------------------------------------------------


def event_bytes(number: int, users: int = 500, text: str = SENTENCE) -> tuple[str, bytes]:
    """Make event ``number`` of a conversation of many users: (scope key, value)."""
    user = f"u{number % users}"
    turn = number // users
    value = orjson.dumps(
        {
            "v": 1,
            "event_id": f"e{number}",
            "type": "message",
            "tenant_id": "acme",
            "agent_id": "helper",
            "user_id": user,
            "session_id": f"s{turn // 40}",
            "role": "assistant" if turn % 2 else "user",
            "content": f"{text} Remark {number}.",
            "occurred_at": (START + timedelta(seconds=turn * 20)).isoformat(),
        }
    )
    return f"acme/helper/{user}", value


def log_records(count: int) -> list[LogRecord]:
    """Make records as a source would read them."""
    stamp = int(START.timestamp() * 1000) + 10**9
    return [
        LogRecord(Position("events", 0, number), stamp, key.encode(), value)
        for number, (key, value) in enumerate(map(event_bytes, range(count)))
    ]


# --- window ------------------------------------------------------------------------------------


class _Nowhere(DynamicSink[object]):
    def build(
        self, step_id: str, worker_index: int, worker_count: int
    ) -> StatelessSinkPartition[object]:
        return _NowherePartition()


class _NowherePartition(StatelessSinkPartition[object]):
    def write_batch(self, items: list[object]) -> None:
        pass


def _rate(
    records: Sequence[LogRecord], wire: Callable[[Stream[LogRecord]], Stream[object]]
) -> float:
    flow = Dataflow("window_bench")
    up = op.input("in", flow, TestingSource(records, batch_size=500))
    op.output("out", wire(up), _Nowhere())
    began = time.perf_counter()
    run_main(flow)
    return len(records) / (time.perf_counter() - began)


def _through(up: Stream[LogRecord]) -> Stream[object]:
    return op.map("through", up, lambda record: record)


def _decode_and_window(up: Stream[LogRecord]) -> Stream[object]:
    def scopes(records: Sequence[LogRecord]) -> Iterable[tuple[str, list[SourcedEvent]]]:
        decoded = (decode(record, SCOPE_FIELDS) for record in records)
        return by_scope(one for one in decoded if isinstance(one, SourcedEvent)).items()

    events = op.flat_map_batch("decode", up, scopes)
    cut = window("window", events, WindowPolicy(), SystemClock(), live=True, stopping=lambda: False)
    return op.map("any", cut, lambda item: item)


def window_rate(count: int = 100_000, rounds: int = 3) -> Figure:
    """Measure decode and window against the same flow without them, in turn."""
    rare_gc()  # as a run does
    records = log_records(count)
    pairs = [(_rate(records, _decode_and_window), _rate(records, _through)) for _ in range(rounds)]
    measured, beside = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Figure(
        "decode and window",
        measured,
        "events/s",
        beside,
        "30,000 events/s",
        "beside: the same flow, records handed through",
    )


# --- index -------------------------------------------------------------------------------------


class _InstantEmbedder:
    name = "instant"
    dimension = 384

    def __init__(self) -> None:
        vectors = np.random.default_rng(1).standard_normal((4096, self.dimension))
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self._vectors: Vectors = unit.astype(np.float32)

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        vectors: Vectors = self._vectors[np.arange(len(texts)) % len(self._vectors)]
        return vectors

    async def embed_query(self, text: str) -> Vectors:
        vector: Vectors = self._vectors[0]
        return vector


def _settings(folder: Path, **overrides: object) -> Settings:
    return load_settings(data_dir=folder, **overrides)


def _flow_index_rate(count: int) -> float:
    embedder = _InstantEmbedder()
    with tempfile.TemporaryDirectory() as name:
        settings = _settings(Path(name))
        _append(FileLog(settings.data_dir / "log", SystemClock()).append, range(count))
        stop = StopSignal()
        with (
            open_store(settings, embedder, write=True) as store,
            flow_parts(settings, "l0", stop, follow=False, opened=(store, embedder)) as parts,
        ):
            run = FlowRun(
                lambda: build_flow("l0", parts), settings.data_dir / "rec", timedelta(seconds=2)
            )
            began = time.perf_counter()
            run.start()
            run.wait()
            return count / (time.perf_counter() - began)


def _raw_index_rate(count: int, batch: int) -> float:
    embedder = _InstantEmbedder()
    events = [
        IndexedEvent.of(sourced)
        for sourced in (decode(record, SCOPE_FIELDS) for record in log_records(count))
        if isinstance(sourced, SourcedEvent)
    ]
    with (
        tempfile.TemporaryDirectory() as name,
        open_store(_settings(Path(name)), embedder, write=True) as store,
    ):
        began = time.perf_counter()
        for at in range(0, count, batch):
            some = events[at : at + batch]
            store.upsert_events(some, asyncio.run(embedder.embed_passages([""] * len(some))))
        return count / (time.perf_counter() - began)


def _append(append: Callable[[Sequence[OutRecord]], object], numbers: range) -> None:
    for at in range(0, len(numbers), 1000):
        append(
            [
                OutRecord("sediment.l0.events", key.encode(), value)
                for key, value in map(event_bytes, numbers[at : at + 1000])
            ]
        )


def index_rate(count: int = 10_000, rounds: int = 3) -> Figure:
    """Measure the index flow against the bare store, in turn."""
    batch = Settings().embeddings_batch
    pairs = [(_flow_index_rate(count), _raw_index_rate(count, batch)) for _ in range(rounds)]
    measured, beside = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Figure(
        "L0 index",
        measured,
        "events/s",
        beside,
        "0.8 of the store",
        f"beside: the store alone, batches of {batch}",
        ratio=statistics.median(mine / raw for mine, raw in pairs),
    )


# --- freshness ---------------------------------------------------------------------------------


def freshness(rate: int = 200, seconds: int = 40, sampled: int = 100) -> Figure:
    """Measure from production to the first search that finds the event.

    Flow, scripted embeddings and the one who looks are processes of their own, as in life.
    """
    with (
        real_kafka() as broker,
        scripted_llm(dimension=384) as server,
        tempfile.TemporaryDirectory() as name,
    ):
        settings = _settings(
            Path(name),
            brokers=broker.bootstrap,
            embeddings_base_url=server.url,
            embeddings_dimension=384,
        )
        create_topics(KafkaConnection(broker.bootstrap), settings.topic_prefix, 4)
        embeddings = {
            "SEDIMENT_EMBEDDINGS_BASE_URL": server.url,
            "SEDIMENT_EMBEDDINGS_DIMENSION": "384",
        }
        with (
            following_flow("l0", Path(name), broker.bootstrap, embeddings),
            guest_look_up(settings, "events") as found,
        ):
            ages = _produce_and_look(broker.bootstrap, found, rate, seconds, sampled)
    ages.sort()
    p50, p95 = ages[len(ages) // 2], ages[int(len(ages) * 0.95)]
    return Figure(
        "produced to recallable, p95",
        p95,
        "s",
        p50,
        "at most 1 s",
        f"beside: the median; {len(ages)} events looked for, of {rate * seconds} at {rate}/s",
    )


@contextmanager
def following_flow(
    flow: str, folder: Path, bootstrap: str, settings: Mapping[str, str]
) -> Iterator[None]:
    """Run a flow on Kafka and the embedded store as a process of its own, until the block ends.

    :arg settings: further ones, by name of the environment variable.
    """
    environment = {
        **os.environ,
        "SEDIMENT_DATA_DIR": str(folder),
        "SEDIMENT_BROKERS": bootstrap,
        **settings,
    }
    command = [sys.executable, "-m", "flows.cli.main", "run", flow, "--follow"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (folder / "milvus" / "owner.json").exists():
            if process.poll() is not None:
                message = f"the flow ended with {process.returncode}"
                raise RuntimeError(message)
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def guest_look_up(settings: Settings, layer: str) -> Iterator[Callable[[str, str], bool]]:
    """Open the store as a guest of the flow; give a look for a word in the texts of a scope."""
    with open_store(settings, make_embedder(settings), write=False) as store:

        def found(scope: str, token: str) -> bool:
            try:
                hits = store.search_keyword(layer, scope, token, 3, Filter())
            except ServiceUnavailable:  # a look that was not answered found nothing
                return False
            return any(token in getattr(hit.record, "text", "") for hit in hits)

        yield found


def _produce_and_look(
    bootstrap: str,
    found: Callable[[str, str], bool],
    rate: int,
    seconds: int,
    sampled: int,
) -> list[float]:
    producer = Producer({"bootstrap.servers": bootstrap})
    rng = random.Random(7)
    waiting: dict[str, tuple[str, float]] = {}
    ages: list[float] = []
    produced = threading.Event()

    def look() -> None:
        while not (produced.is_set() and not waiting):
            for token, (scope, at) in list(waiting.items()):
                if found(scope, token):
                    ages.append(time.perf_counter() - at)
                    del waiting[token]
            time.sleep(0.01)

    looker = threading.Thread(target=look)
    began = time.perf_counter()
    for number in range(rate * seconds):
        due = began + number / rate
        if due > time.perf_counter():
            time.sleep(due - time.perf_counter())
        token = f"mark{number}x{rng.randrange(10**6)}"
        key, value = event_bytes(number, users=50, text=f"{SENTENCE} {token}")
        at = time.perf_counter()
        producer.produce("sediment.l0.events", value, key)
        producer.poll(0)
        # The first two seconds are start-up: topics, consumers, connections.
        if number % sampled == 0 and number >= 2 * rate:
            waiting[token] = (key, at)
        if number == 2 * rate:
            looker.start()
    producer.flush()
    produced.set()
    looker.join(timeout=30)
    if waiting:
        message = f"{len(waiting)} events were not found within 30 s"
        raise RuntimeError(message)
    return ages


# --- memory ------------------------------------------------------------------------------------


def memory(small: int = 20_000, large: int = 200_000, seconds: int = 40) -> Figure:
    """Compare peak memory of the L1 flow on two backlogs, each in a process of its own."""
    with scripted_llm(script=lambda _: Step(latency_s=2.0), answer=answer) as server:
        peaks = [_peak(count, seconds, server.url) for count in (large, small)]
    return Figure(
        "peak memory, large backlog",
        peaks[0],
        "MB",
        peaks[1],
        "at most 1.2 of the small one",
        f"{large:,} events beside {small:,}, model of 2 s, {seconds} s each",
    )


def _peak(count: int, seconds: int, url: str) -> float:
    with tempfile.TemporaryDirectory() as name:
        _append(FileLog(Path(name) / "log", SystemClock()).append, range(count))
        environment = {
            **os.environ,
            "SEDIMENT_DATA_DIR": name,
            "SEDIMENT_LLM_BASE_URL": url,
            "SEDIMENT_LLM_MODEL": "scripted",
            "SEDIMENT_EMBEDDINGS_BASE_URL": url,
            "SEDIMENT_EMBEDDINGS_DIMENSION": "64",
        }
        command = [sys.executable, "-m", "benchmarks.pipeline", "--run-for", str(seconds)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return float(done.stdout.split()[-1])


def _run_for(seconds: float) -> None:
    """Run the L1 flow here for a while and print this process's peak memory in MB."""
    stop = StopSignal()
    threading.Timer(seconds, stop.set).start()
    process(load_settings(), "l1", stop, Progress(), follow=False)
    # Not ru_maxrss: that one is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text()
    print(next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024)


# --- output ------------------------------------------------------------------------------------

MEASURES: dict[str, Callable[[], Figure]] = {
    "window": window_rate,
    "index": index_rate,
    "freshness": freshness,
    "memory": memory,
}


def main() -> None:
    """Measure what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.pipeline")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(MEASURES)}; all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--run-for", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_for:
        _run_for(options.run_for)
        return
    figures = [MEASURES[name]() for name in options.what or MEASURES]
    tell("pipeline", figures, as_json=options.json)


if __name__ == "__main__":
    main()

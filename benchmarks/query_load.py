"""Recall under load, beside the bare searches it is made of, in the same run.

    python -m benchmarks.query_load [latency] [throughput] [growth] [--lite] [--json]

A real Milvus server (2.3.5, dense only) unless ``--lite``. Vectors are random, of length 1; the
embedder answers at once, so embedding is left out. Nothing is said about quality.

What recall is held against is what it must do at least: the searches of all three layers, each
arm, all at once in as many threads (``raw``). On a server without full-text search that is three
dense searches, on milvus-lite six. Recall takes scenes from the scope's profiles, which it reads
instead of the dense search for them, asks once more for what stands beside the best events, ranks,
counts tokens and renders. A scope talks in sessions of twenty messages, half a minute apart, so
that up to 240 events stand beside the best twelve.

- ``latency``: 50,000 atoms and 10,000 events in 1,000 scopes; each question is asked raw and as
  recall, in turn, so that both see the same machine. Target: p95 at most raw + 10 ms. With
  ``--lite`` 10,000 memories in 10 scopes. Target: p95 at most 80 ms.
- ``throughput``: the same store; 16 clients over HTTP on loopback, against a service in a process
  of its own, and 16 threads that make the raw searches. Target: 0.7 of raw.
- ``growth``: one scope of 100 memories, alone among 1,000 and among 100,000, asked in turn. Once
  straight after all was written, when no row lies in a sealed segment yet: what a server searches
  slowest, and the most that a busy collection may have of it. Once sealed, as a server does it with
  what rests for ten minutes. Target: recall p95 within 1.5 in both, and what raw does beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pymilvus import MilvusClient
from rich.console import Console
from rich.table import Table

from benchmarks.recall import DIMENSION, START, InstantEmbedder, make_text, percentiles
from connectors.query.question import RecallQuery
from connectors.query.recall import Recall
from flows.cli.serving import run_http
from flows.runner import SystemClock
from stores.embedded import open_embedded
from stores.milvus import MilvusStore
from stores.milvus_base import Reads
from stores.milvus_schema import collection_name
from stores.protocols import Filter, Hit, Vectors
from stores.records import Atom, IndexedEvent, Position
from tests.rig.milvus_server import milvus_server

FETCH = 30  # what recall asks of each arm at its default limit
CLIENTS = 16
SERVER_TARGET_MS, LITE_TARGET_MS = 10.0, 80.0
THROUGHPUT_TARGET, GROWTH_TARGET = 0.7, 1.5
BATCH = 1000
SESSION = 20  # messages
WARM_UP = 10
PARTS = ("latency", "throughput", "growth")

Searches = Callable[[str, str, Vectors], list[Callable[[], list[Hit]]]]


class Draw:
    """Vectors and texts, the same in every run."""

    def __init__(self, seed: int) -> None:
        self.numbers = np.random.default_rng(seed)
        self.words = random.Random(seed)
        self.texts = [make_text(self.words) for _ in range(2000)]

    def vectors(self, count: int) -> Vectors:
        """Draw vectors of length 1."""
        drawn = self.numbers.standard_normal((count, DIMENSION)).astype(np.float32)
        unit: Vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        return unit

    def question(self) -> str:
        """Take some words of some text."""
        words = self.words.choice(self.texts).split()
        return " ".join(self.words.sample(words, min(5, len(words))))


def scope_name(number: int) -> str:
    """Name a scope."""
    return f"bench/agent/user-{number}"


def fill(
    store: MilvusStore, draw: Draw, atoms: int, events: int, scopes: int, first: int = 0
) -> None:
    """Write memories, spread evenly over the scopes ``first`` and following.

    A scope talks once a day: a session of twenty messages, one every half minute.
    """

    def said(i: int) -> tuple[str, datetime]:
        day, message = divmod(i // scopes, SESSION)
        return f"s{day}", START + timedelta(days=day, seconds=30 * message)

    def atom(i: int) -> Atom:
        session_id, when = said(i)
        return Atom(
            atom_id=f"{first:08x}{i:024x}", scope=scope_name(first + i % scopes),
            session_id=session_id, type="episodic", text=draw.texts[i % len(draw.texts)],
            priority=50, source_event_ids=(f"e{i}",), window_id="w", extractor="bench/1",
            occurred_at=when, valid_from=when,
        )  # fmt: skip

    def event(i: int) -> IndexedEvent:
        session_id, when = said(i)
        return IndexedEvent(
            scope_name(first + i % scopes), f"e{i}", session_id, "user",
            draw.texts[i % len(draw.texts)], when, Position("l0", 0, i),
        )  # fmt: skip

    for at in range(0, atoms, BATCH):
        rows = [atom(i) for i in range(at, min(atoms, at + BATCH))]
        store.upsert_atoms(rows, draw.vectors(len(rows)))
    for at in range(0, events, BATCH):
        told = [event(i) for i in range(at, min(events, at + BATCH))]
        store.upsert_events(told, draw.vectors(len(told)))


def searches_of(store: MilvusStore) -> Searches:
    """Give the searches that any recall is made of."""

    def searches(scope: str, text: str, vector: Vectors) -> list[Callable[[], list[Hit]]]:
        calls: list[Callable[[], list[Hit]]] = []
        for layer in ("profiles", "atoms", "events"):
            where = Filter(types=("scene",)) if layer == "profiles" else Filter()
            calls.append(partial(store.search_dense, layer, scope, vector, FETCH, where))
            if store.full_text:
                calls.append(partial(store.search_keyword, layer, scope, text, FETCH, where))
        return calls

    return searches


@dataclass(frozen=True, slots=True)
class Asked:
    """A store, which scopes of it are asked, and what came of it; milliseconds."""

    store: MilvusStore
    scopes: Sequence[str]
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def told(self) -> dict[str, Any]:
        """Give the figures."""
        return {
            "questions": len(self.took["recall"]),
            "ms": {way: percentiles(values) for way, values in self.took.items()},
            "own_cpu_ms": {
                way: round(float(np.mean(values)), 2) for way, values in self.cpu.items()
            },
            "steps_ms": {step: percentiles(values) for step, values in self.steps.items()},
        }


async def latency(draw: Draw, questions: int, *asked: Asked) -> None:
    """Ask each question raw and as recall, of every store, in turn."""
    embedder = InstantEmbedder(draw.vectors(1)[0])
    recalls = [
        Recall(one.store, embedder, SystemClock(), full_text=one.store.full_text) for one in asked
    ]
    vectors = draw.vectors(questions + WARM_UP)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        for number in range(questions + WARM_UP):
            text, vector = draw.question(), vectors[number]
            embedder.vector = vector
            for one, recall in zip(asked, recalls, strict=True):
                scope = draw.words.choice(one.scopes)
                started = time.perf_counter()
                one.store.search_dense("atoms", scope, vector, FETCH, Filter())
                single = time.perf_counter() - started
                calls = searches_of(one.store)(scope, text, vector)
                started, spent = time.perf_counter(), time.process_time()
                await asyncio.gather(*(loop.run_in_executor(pool, call) for call in calls))
                raw, raw_cpu = time.perf_counter() - started, time.process_time() - spent
                started, spent = time.perf_counter(), time.process_time()
                answer = await recall.recall(RecallQuery(scope, text))
                whole, whole_cpu = time.perf_counter() - started, time.process_time() - spent
                if answer.degraded:
                    message = f"a part failed, so the figures mean nothing: {answer.degraded}"
                    raise RuntimeError(message)
                if number < WARM_UP:
                    continue
                for way, value in (("one dense search", single), ("raw", raw), ("recall", whole)):
                    one.took[way].append(value * 1000)
                one.cpu["raw"].append(raw_cpu * 1000)
                one.cpu["recall"].append(whole_cpu * 1000)
                for step, value in answer.timings_ms.items():
                    one.steps[step].append(value)
    for recall in recalls:
        recall.close()


# --- throughput ------------------------------------------------------------------------------


def raw_rate(store: MilvusStore, draw: Draw, scopes: Sequence[str], asked: int) -> float:
    """Give sets of raw searches a second: 16 threads, the searches of a set at once in a pool."""
    searches = searches_of(store)
    questions = [(draw.words.choice(scopes), draw.question()) for _ in range(asked)]
    vectors = draw.vectors(asked)
    with ThreadPoolExecutor(CLIENTS) as clients, ThreadPoolExecutor(CLIENTS) as pool:

        def one(number: int) -> None:
            calls = searches(*questions[number], vectors[number])
            for result in [pool.submit(call) for call in calls]:
                result.result()

        list(clients.map(one, range(CLIENTS)))
        started = time.perf_counter()
        list(clients.map(one, range(asked)))
        return asked / (time.perf_counter() - started)


def http_rate(url: str, draw: Draw, scopes: int, asked: int) -> tuple[float, list[float]]:
    """Give recalls a second over HTTP, 16 clients, and how long each took in milliseconds.

    A client is a thread that keeps its connection, by the standard library: what the load
    generator takes of the two cores is not the service's.
    """
    questions = [(draw.words.randrange(scopes), draw.question()) for _ in range(asked)]
    address = url.removeprefix("http://")
    mine = threading.local()

    def ask(question: tuple[int, str]) -> float:
        started = time.perf_counter()
        if not hasattr(mine, "connection"):
            mine.connection = HTTPConnection(address, timeout=60.0)
        body = {"query": question[1], "tenant": "bench", "agent": "agent",
                "user": f"user-{question[0]}"}  # fmt: skip
        mine.connection.request(
            "POST", "/v1/recall", orjson.dumps(body), {"content-type": "application/json"}
        )
        answer = mine.connection.getresponse()
        told = orjson.loads(answer.read())
        if answer.status != HTTPStatus.OK or told["degraded"]:
            message = f"a part failed: {told}"
            raise RuntimeError(message)
        return (time.perf_counter() - started) * 1000

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ask, [(0, "warm up")] * (4 * CLIENTS)))
        started = time.perf_counter()
        took = list(clients.map(ask, questions))
        return asked / (time.perf_counter() - started), took


def throughput(store: MilvusStore, uri: str, draw: Draw, scopes: int, asked: int) -> dict[str, Any]:
    """Measure the raw searches, the service, and the raw searches again."""
    names = [scope_name(number) for number in range(scopes)]
    before = raw_rate(store, draw, names, asked)
    with served(uri) as url:
        rate, took = http_rate(url, draw, scopes, asked)
    after = raw_rate(store, draw, names, asked)
    raw = (before + after) / 2
    return {
        "clients": CLIENTS,
        "requests": asked,
        "raw_per_s": [round(before, 1), round(after, 1)],
        "recall_per_s": round(rate, 1),
        "recall_ms": percentiles(took),
        "ratio": round(rate / raw, 2),
    }


@contextlib.contextmanager
def served(uri: str) -> Iterator[str]:
    """Run the query service over a store in a process of its own; give its URL."""
    command = [sys.executable, "-m", "benchmarks.query_load", "--serve", uri]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if not port:
                message = "the service did not start"
                raise RuntimeError(message)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.stdin.close()


def serve(uri: str) -> None:
    """Serve recall over a store until standard input ends."""
    import uvicorn

    from connectors.query.app import create_app, server_config
    from connectors.query.service import open_service
    from connectors.settings import Settings

    store = opened(uri)
    settings = Settings(host="127.0.0.1", port=0, rate_limit=0)
    with open_service(
        settings,
        store=store,
        embedder=InstantEmbedder(Draw(3).vectors(1)[0]),
        append=lambda records: None,
        checks={},
        clock=SystemClock(),
        pipeline="bench",
    ) as service:
        server = uvicorn.Server(server_config(create_app(service), settings))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = partial(server.serve, sockets=[listener])
            thread = threading.Thread(target=run_http, args=(serving,))
            thread.start()
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            print(listener.getsockname()[1], flush=True)
            sys.stdin.read()
            server.should_exit = True
            thread.join()
    store.close()


# --- stores ----------------------------------------------------------------------------------


def opened(
    uri: str, token: str = "", prefix: str = "bench", reads: Reads | None = None
) -> MilvusStore:
    """Open a store and make its collections."""
    store = MilvusStore(
        uri, token=token, prefix=prefix, dimension=DIMENSION, embedding_name="instant",
        timeout_s=60.0, reads=reads,
    )  # fmt: skip
    store.ensure_collections()
    return store


def growth(uri: str, draw: Draw, questions: int, most: int) -> dict[str, Any]:
    """Ask one small scope, alone among few memories and among many, in turn."""
    stores: dict[int, MilvusStore] = {}
    for size in (1000, most):
        store = stores[size] = opened(uri, prefix=f"grow{size}")
        fill(store, draw, 50, 50, 1)  # scope 0: 100 memories
        fill(store, draw, size // 2 - 50, size // 2 - 50, max(1, size // 100), first=1)
    time.sleep(2)
    unsealed = in_turn(draw, questions, stores)
    for size in stores:
        seal(uri, f"grow{size}", size // 2)
    sealed = in_turn(draw, questions, stores)
    for store in stores.values():
        store.close()
    reached = max(unsealed["p95_ratio"]["recall"], sealed["p95_ratio"]["recall"]) <= GROWTH_TARGET
    return {**unsealed, "sealed": sealed, "reached": reached}


def in_turn(draw: Draw, questions: int, stores: Mapping[int, MilvusStore]) -> dict[str, Any]:
    """Ask the small scope of each store, in turn, so that all see the same machine."""
    asked = {size: Asked(store, [scope_name(0)]) for size, store in stores.items()}
    asyncio.run(latency(draw, questions, *asked.values()))
    sizes = {str(size): one.told() for size, one in asked.items()}
    few, many = (found["ms"] for found in sizes.values())
    return {
        "sizes": sizes,
        **{
            f"{p}_ratio": {way: round(many[way][p] / few[way][p], 2) for way in ("raw", "recall")}
            for p in ("p50", "p95")
        },
    }


def seal(uri: str, prefix: str, rows: int) -> None:
    """Have the server seal what was written, and wait until it searches the sealed segments."""
    client: Any = MilvusClient(uri)
    for layer in ("atoms", "events"):
        name = collection_name(prefix, layer)
        client.flush(name, timeout=300)
        while sum(segment.num_rows for segment in client.list_loaded_segments(name)) < rows:
            time.sleep(0.2)
    client.close()


def on_server(parts: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """Measure on a real Milvus server."""
    result: dict[str, Any] = {"store": "Milvus 2.3.5, a real server, dense only"}
    draw = Draw(1)
    with tempfile.TemporaryDirectory() as folder, milvus_server(Path(folder)) as uri:
        if {"latency", "throughput"} & set(parts):
            store = opened(uri)
            fill(store, draw, given.atoms, given.atoms // 5, given.scopes)
            time.sleep(3)
            names = [scope_name(number) for number in range(given.scopes)]
            result |= {"atoms": given.atoms, "scopes": given.scopes}
            if "latency" in parts:
                asked = Asked(store, names)
                asyncio.run(latency(draw, given.questions, asked))
                found = asked.told()
                over = found["ms"]["recall"]["p95"] - found["ms"]["raw"]["p95"]
                found |= {"p95_over_raw_ms": round(over, 2), "reached": over <= SERVER_TARGET_MS}
                result["latency"] = found
            if "throughput" in parts:
                done = throughput(store, uri, draw, given.scopes, given.requests)
                result["throughput"] = done | {"reached": done["ratio"] >= THROUGHPUT_TARGET}
            store.close()
        if "growth" in parts:
            result["growth"] = growth(uri, draw, given.questions, given.most)
    return result


def on_lite(given: argparse.Namespace) -> dict[str, Any]:
    """Measure latency on milvus-lite."""
    draw = Draw(1)
    with tempfile.TemporaryDirectory() as folder, open_embedded(Path(folder)) as embedded:
        store = opened(embedded.uri, embedded.token, reads=embedded.reads)
        fill(store, draw, given.memories // 2, given.memories // 2, 10)
        time.sleep(3)  # the last flush and compaction
        names = [scope_name(number) for number in range(10)]
        asked = Asked(store, names)
        asyncio.run(latency(draw, given.questions, asked))
        found = asked.told()
        store.close()
    reached = found["ms"]["recall"]["p95"] <= LITE_TARGET_MS
    return {
        "store": "milvus-lite",
        "memories": given.memories,
        "scopes": 10,
        "latency": found | {"reached": reached},
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures as tables."""
    console = Console()
    console.print(result["store"])
    asked = {"": result.get("latency")}
    grown = result.get("growth", {})
    for state, found in (("", grown), ("sealed, ", grown.get("sealed", {}))):
        asked |= {f"{state}among {size} ": one for size, one in found.get("sizes", {}).items()}
    for title, found in asked.items():
        if found is None:
            continue
        table = Table(title=f"{title}latency, {found['questions']} questions")
        for heading in ("", "p50 ms", "p95 ms", "own cpu ms"):
            table.add_column(heading, justify="right" if heading else "left")
        for way, value in found["ms"].items():
            spent = str(found["own_cpu_ms"].get(way, ""))
            table.add_row(way, str(value["p50"]), str(value["p95"]), spent)
        for step, value in found["steps_ms"].items():
            table.add_row(f"  {step}", str(value["p50"]), str(value["p95"]))
        console.print(table)
    for part in PARTS:
        found = result.get(part)
        if found is not None:
            told = {
                name: value
                for name, value in found.items()
                if name not in ("ms", "steps_ms", "sizes", "own_cpu_ms", "sealed")
            }
            if "sealed" in found:
                told |= {f"sealed {p}_ratio": found["sealed"][f"{p}_ratio"] for p in ("p50", "p95")}
            console.print(part, told)


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--lite", action="store_true", help="latency on milvus-lite")
    parser.add_argument("--json", action="store_true", help="print JSON only; both stores")
    parser.add_argument("--atoms", type=int, default=50_000)
    parser.add_argument("--scopes", type=int, default=1000)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--requests", type=int, default=1000, help="of the load generator")
    parser.add_argument("--most", type=int, default=100_000, help="memories that growth ends with")
    parser.add_argument("--memories", type=int, default=10_000, help="on milvus-lite")
    parser.add_argument("--serve", metavar="URI", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    if given.json:
        print(
            json.dumps({"server": on_server(given.parts or PARTS, given), "lite": on_lite(given)})
        )
        return
    show(on_lite(given) if given.lite else on_server(given.parts or PARTS, given))


if __name__ == "__main__":
    main()

"""How fast the embedded store takes rows and answers searches.

``python -m benchmarks.store [--json] [--rows 10000] [--flush-seconds 1.0]``

- Upserts: our store with its flush policy against bare pymilvus upserts of the same rows to
  milvus-lite that never flushes, in batches of 64, in the same run. Ceiling: 1.0.
- Searches at 1,000, 5,000 and 10,000 rows, of which the searched scope owns half: one arm alone,
  both at once in two threads. Target: both at once p95 at most 60 ms at 5,000 rows.
- The same while 200 rows/s come in.
- Deleting a tenth of all rows, 100 a call, and the searches afterwards: at once, after a flush,
  and after opening the folder again.
- Two neighbours on each side of an event, among the same rows.

Vectors are random, of length 1; texts are 20 words of a 2,000-word vocabulary.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
from pymilvus import MilvusClient

from stores.embedded import FlushPolicy, open_embedded
from stores.milvus import MilvusStore
from stores.milvus_schema import event_row
from stores.protocols import Filter, Span, Vectors
from stores.records import IndexedEvent, Position

DIMENSION = 384
BATCH = 64
NEAR = timedelta(minutes=10)  # as recall looks around a hit
SCOPE = "acme/helper/ana"
NEVER = FlushPolicy(seconds=1e6)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def make_rows(count: int, seed: int) -> tuple[list[IndexedEvent], Vectors]:
    """Make events, every second one in the searched scope, and their vectors."""
    rng = np.random.default_rng(seed)
    words = rng.zipf(1.3, size=(count, 20)) % 2000
    events = [
        IndexedEvent(
            scope=SCOPE if at % 2 else f"acme/helper/user-{at % 20}",
            event_id=f"e{at}",
            session_id=f"s{at // 50}",
            role="user",
            text=" ".join(f"word{word}" for word in words[at]),
            occurred_at=START + timedelta(seconds=at),
            position=Position("l0.events", 0, at),
        )
        for at in range(count)
    ]
    vectors = rng.normal(size=(count, DIMENSION)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return events, vectors


@contextmanager
def opened(
    policy: FlushPolicy, folder: Path | None = None
) -> Iterator[tuple[MilvusStore, MilvusClient]]:
    """Open a store and a bare client on a folder; on a fresh one if none is given."""
    with (
        tempfile.TemporaryDirectory() as fresh,
        open_embedded(folder or Path(fresh), policy=policy) as lite,
    ):
        store = MilvusStore(
            lite.uri, token=lite.token, prefix="bench", dimension=DIMENSION, embedding_name="random"
        )
        store.ensure_collections()
        client = MilvusClient(lite.uri, token=lite.token)
        warm, vector = make_rows(1, seed=9)
        store.upsert_events(warm, vector)
        yield store, client
        client.close()
        store.close()


def upsert_rate(events: list[IndexedEvent], write: Callable[[int, int], None]) -> float:
    """Write all in batches; give rows per second."""
    started = time.perf_counter()
    for at in range(0, len(events), BATCH):
        write(at, at + BATCH)
    return len(events) / (time.perf_counter() - started)


def search_times(store: MilvusStore, rounds: int = 40) -> dict[str, dict[str, float]]:
    """Time each arm alone, and both at once, in milliseconds."""
    rng = np.random.default_rng(5)
    queries = rng.normal(size=(rounds, DIMENSION)).astype(np.float32)
    texts = [f"word{rng.integers(2, 200)} word{rng.integers(200, 2000)}" for _ in range(rounds)]

    def dense(at: int) -> None:
        store.search_dense("events", SCOPE, queries[at], 30, Filter())

    def keyword(at: int) -> None:
        store.search_keyword("events", SCOPE, texts[at], 30, Filter())

    with ThreadPoolExecutor(2) as pool:

        def both(at: int) -> None:
            for call in [pool.submit(dense, at), pool.submit(keyword, at)]:
                call.result()

        measured = {}
        for name, call in (("dense", dense), ("keyword", keyword), ("both", both)):
            call(0)
            times = []
            for at in range(rounds):
                started = time.perf_counter()
                call(at)
                times.append((time.perf_counter() - started) * 1000)
            measured[name] = {
                "p50_ms": float(np.percentile(times, 50)),
                "p95_ms": float(np.percentile(times, 95)),
            }
    return measured


@contextmanager
def steady_ingest(store: MilvusStore, first: int, per_second: int = 200) -> Iterator[None]:
    """Write ``per_second`` new rows each second from another thread, 20 at a time."""
    events, vectors = make_rows(first + 30 * per_second, seed=3)
    stop = threading.Event()

    def ingest() -> None:
        due = time.perf_counter()
        for at in range(first, len(events), 20):
            store.upsert_events(events[at : at + 20], vectors[at : at + 20])
            due += 20 / per_second
            if stop.wait(max(0.0, due - time.perf_counter())):
                return

    thread = threading.Thread(target=ingest)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def deletion(rows: int, policy: FlushPolicy) -> dict[str, Any]:
    """Time deletions and the searches around them, in one collection of ``rows`` events."""
    events, vectors = make_rows(rows, seed=1)
    gone = [event for event in events if event.scope == SCOPE][: rows // 10]
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with opened(policy, folder) as (store, _):
            for at in range(0, rows, 1000):
                store.upsert_events(events[at : at + 1000], vectors[at : at + 1000])
            time.sleep(policy.seconds + 1.0)
            measured["before"] = search_times(store)
            times = []
            for event in events[-40:]:
                started = time.perf_counter()
                spans = [Span(event.session_id, event.occurred_at - NEAR, event.occurred_at + NEAR)]
                store.events_within(event.scope, spans, Filter())
                times.append((time.perf_counter() - started) * 1000)
            measured["events_within"] = {
                "p50_ms": float(np.percentile(times, 50)),
                "p95_ms": float(np.percentile(times, 95)),
            }
            started = time.perf_counter()
            for at in range(0, len(gone), 100):
                store.delete_events(SCOPE, [event.event_id for event in gone[at : at + 100]])
            measured["rows_per_s"] = len(gone) / (time.perf_counter() - started)
            measured["deleted"] = search_times(store)
            time.sleep(policy.seconds + 1.0)
            measured["flushed"] = search_times(store)
        with opened(policy, folder) as (store, _):
            measured["opened_again"] = search_times(store)
            left = sum(1 for _ in store.events_of(SCOPE))
            expected = sum(1 for event in events if event.scope == SCOPE) - len(gone)
            if left != expected:
                message = f"{left} events left, {expected} expected"
                raise RuntimeError(message)
    return measured


def run(rows: int, policy: FlushPolicy) -> dict[str, Any]:
    """Run all measurements."""
    events, vectors = make_rows(rows, seed=1)
    half = rows // 2
    with opened(NEVER) as (_, client):
        raw_rows = [
            event_row(event, vector, with_text=True)
            for event, vector in zip(events[:half], vectors[:half], strict=True)
        ]
        raw = upsert_rate(
            events[:half],
            lambda a, b: client.upsert("bench_events", raw_rows[a:b]) and None,
        )
    result: dict[str, Any] = {"raw_rows_per_s": raw, "searches": {}, "searches_while_ingesting": {}}
    with opened(policy) as (store, _):
        steps = [step for step in (1000, 5000, 10_000) if step <= rows]
        done, seconds = 0, 0.0
        for step in steps:
            part, part_vectors = events[done:step], vectors[done:step]
            rate = upsert_rate(
                part,
                lambda a, b, e=part, v=part_vectors: store.upsert_events(e[a:b], v[a:b]),  # type: ignore[misc]
            )
            if done < half:
                seconds += len(part) / rate
                result["our_rows_per_s"] = step / seconds
            done = step
            time.sleep(policy.seconds + 1.0)  # the policy's own flush, and the compaction
            result["searches"][step] = search_times(store)
            if step >= 5000:
                with steady_ingest(store, step):
                    time.sleep(1.0)
                    result["searches_while_ingesting"][step] = search_times(store)
    result["ratio"] = result["our_rows_per_s"] / raw
    result["deletion"] = deletion(rows, policy)
    return result


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--flush-seconds", type=float, default=FlushPolicy().seconds)
    given = parser.parse_args()
    result = run(given.rows, FlushPolicy(seconds=given.flush_seconds))
    if given.json:
        print(json.dumps(result))
        return
    print(
        f"upserts: raw {result['raw_rows_per_s']:.0f} rows/s, ours "
        f"{result['our_rows_per_s']:.0f} rows/s, ratio {result['ratio']:.2f}"
    )
    for title in ("searches", "searches_while_ingesting"):
        print(title.replace("_", " "))
        for step, arms in result[title].items():
            for arm, times in arms.items():
                print(
                    f"  {step:>6} rows  {arm:<8} p50 {times['p50_ms']:6.1f} ms"
                    f"  p95 {times['p95_ms']:6.1f} ms"
                )
    deleted = result["deletion"]
    print(f"deletion: {deleted['rows_per_s']:.0f} rows/s")
    for when in ("before", "deleted", "flushed", "opened_again"):
        both = deleted[when]["both"]
        print(f"  {when:<13} both p50 {both['p50_ms']:6.1f} ms  p95 {both['p95_ms']:6.1f} ms")
    near = deleted["events_within"]
    print(f"  events_within      p50 {near['p50_ms']:6.1f} ms  p95 {near['p95_ms']:6.1f} ms")


if __name__ == "__main__":
    main()

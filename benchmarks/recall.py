"""How long a recall takes beside the bare searches it is made of, on milvus-lite.

    python -m benchmarks.recall [--memories 5000] [--questions 200] [--json]

Half atoms, half events, in several scopes; vectors are random and of length 1, texts are made
of a fixed vocabulary. Query embedding is left out: the embedder answers at once. Each question
is asked in turn by every way, so that all see the same machine:

- ``raw in turn``: the four searches (atoms and events, dense and keyword) one after the other;
- ``raw at once``: the same four in four threads, the floor of what recall can reach;
- ``recall``: everything, from the question to the rendered answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from connectors.query.question import RecallQuery
from connectors.query.recall import Recall
from flows.runner import SystemClock
from stores.embedded import open_embedded
from stores.milvus import MilvusStore
from stores.protocols import Filter, Hit, Vectors
from stores.records import Atom, IndexedEvent, Position

DIMENSION = 384
SCOPES = 10
FETCH = 30  # what recall asks of each arm at its default limit of 10
TARGET_P95_MS = 60.0
START = datetime(2024, 1, 1, tzinfo=timezone.utc)
SYLLABLES = ["ka", "lo", "mi", "ru", "ten", "sol", "va", "ner", "pi", "dor", "sha", "qui"]
HAN = "我你他她住在喜欢城市工作朋友学习电影音乐火锅爬山游泳周末去年春天猫狗书桌窗外雨天"


class InstantEmbedder:
    """Gives the vector that was put in, at once."""

    name = "instant"
    dimension = DIMENSION

    def __init__(self, vector: Vectors) -> None:
        self.vector = vector

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Give it once for each text."""
        return np.tile(self.vector, (len(texts), 1))

    async def embed_query(self, text: str) -> Vectors:
        """Give it."""
        return self.vector


def unit_vectors(rng: np.random.Generator, count: int) -> Vectors:
    """Draw vectors of length 1."""
    vectors = rng.standard_normal((count, DIMENSION)).astype(np.float32)
    unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def make_text(rng: random.Random) -> str:
    """Make up a text of 8 to 30 words, a third of them with some Chinese."""
    words = [
        "".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(rng.randint(8, 30))
    ]
    if rng.random() < 0.3:
        words.append("".join(rng.choices(HAN, k=12)))
    return " ".join(words)


def fill(store: MilvusStore, memories: int, rng: random.Random) -> list[tuple[str, str]]:
    """Write the memories; give the scope and text of each event."""
    numbers = np.random.default_rng(1)
    events: list[IndexedEvent] = []
    atoms: list[Atom] = []
    for i in range(memories // 2):
        scope, when = f"bench/agent/user-{i % SCOPES}", START + timedelta(minutes=i)
        events.append(
            IndexedEvent(
                scope, f"e{i}", f"s{i % 50}", "user", make_text(rng), when, Position("l0", 0, i)
            )
        )
        atoms.append(
            Atom(
                atom_id=f"{i:032x}",
                scope=scope,
                session_id=f"s{i % 50}",
                type="episodic",
                text=make_text(rng),
                priority=50,
                source_event_ids=(f"e{i}",),
                window_id="w",
                extractor="bench/1",
                occurred_at=when,
                valid_from=when,
            )
        )
    for at in range(0, len(events), 100):
        part = slice(at, at + 100)
        store.upsert_events(events[part], unit_vectors(numbers, len(events[part])))
        store.upsert_atoms(atoms[part], unit_vectors(numbers, len(atoms[part])))
    return [(event.scope, event.text) for event in events]


async def measure(memories: int, questions: int, folder: Path) -> dict[str, Any]:
    """Fill a new store and time every way to ask it; all times are milliseconds."""
    rng = random.Random(1)
    vectors = unit_vectors(np.random.default_rng(2), questions)
    with open_embedded(folder) as embedded:
        store = MilvusStore(
            embedded.uri,
            token=embedded.token,
            prefix="bench",
            dimension=DIMENSION,
            embedding_name="instant",
            reads=embedded.reads,
        )
        store.ensure_collections()
        written = fill(store, memories, rng)
        await asyncio.sleep(3)  # the last flush and compaction
        embedder = InstantEmbedder(vectors[0])
        recall = Recall(store, embedder, SystemClock())
        pool = ThreadPoolExecutor(4)
        took: dict[str, list[float]] = {"raw in turn": [], "raw at once": [], "recall": []}
        steps: dict[str, list[float]] = {}
        found = 0

        def searches(scope: str, text: str, vector: Vectors) -> list[Callable[[], list[Hit]]]:
            return [
                call
                for layer in ("atoms", "events")
                for call in (
                    partial(store.search_dense, layer, scope, vector, FETCH, Filter()),
                    partial(store.search_keyword, layer, scope, text, FETCH, Filter()),
                )
            ]

        async def in_turn(calls: list[Callable[[], list[Hit]]]) -> None:
            for call in calls:
                call()

        async def at_once(calls: list[Callable[[], list[Hit]]]) -> None:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(pool, call) for call in calls))

        async def timed(way: str, work: Awaitable[Any], *, warm: bool) -> Any:
            started = time.perf_counter()
            result = await work
            if warm:
                took[way].append((time.perf_counter() - started) * 1000)
            return result

        for number in range(-10, questions):  # the first ten warm up
            warm = number >= 0
            scope, text = rng.choice(written)
            question = " ".join(rng.sample(text.split(), 5))
            vector = embedder.vector = vectors[number]
            calls = searches(scope, question, vector)
            await timed("raw in turn", in_turn(calls), warm=warm)
            await timed("raw at once", at_once(calls), warm=warm)
            query = RecallQuery(scope, question)
            answer = await timed("recall", recall.recall(query), warm=warm)
            if answer.degraded:
                message = f"a part failed, so the figures mean nothing: {answer.degraded}"
                raise RuntimeError(message)
            if warm:
                found += len(answer.items)
                for step, value in answer.timings_ms.items():
                    steps.setdefault(step, []).append(value)
        recall.close()
        pool.shutdown()
        store.close()
    p95 = float(np.percentile(took["recall"], 95))
    return {
        "memories": memories,
        "scopes": SCOPES,
        "questions": questions,
        "items_per_answer": round(found / questions, 1),
        "ms": {way: percentiles(values) for way, values in took.items()},
        "recall_steps_ms": {step: percentiles(values) for step, values in steps.items()},
        "target_p95_ms": TARGET_P95_MS,
        "reached": p95 <= TARGET_P95_MS,
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """Give the median and the 95th percentile."""
    return {f"p{p}": round(float(np.percentile(values, p)), 2) for p in (50, 95)}


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    table = Table(
        title=f"{result['memories']} memories, {result['scopes']} scopes, milvus-lite, "
        f"{result['questions']} questions, query embedding excluded"
    )
    for heading in ("", "p50 ms", "p95 ms"):
        table.add_column(heading, justify="right" if heading else "left")
    for way, value in result["ms"].items():
        table.add_row(way, str(value["p50"]), str(value["p95"]))
    table.add_section()
    for step, value in result["recall_steps_ms"].items():
        table.add_row(f"  recall: {step}", str(value["p50"]), str(value["p95"]))
    Console().print(table)
    verdict = "reached" if result["reached"] else "missed"
    Console().print(f"target: recall p95 at most {result['target_p95_ms']:g} ms: {verdict}")


def main() -> None:
    """Run the benchmark as the arguments say."""
    parser = argparse.ArgumentParser(description="Recall against bare searches, on milvus-lite.")
    parser.add_argument("--memories", type=int, default=5000)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(arguments.memories, arguments.questions, Path(folder)))
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()

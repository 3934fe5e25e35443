"""Speed and memory of the bundled embedding model, through :class:`OfflineEmbedder`.

    python -m benchmarks.embeddings [--seconds 5]

The baseline is the engine called directly with the same texts in one batch, in the same run:
what our thread, pieces of eight and cleaning cost is the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Callable, Coroutine
from typing import Any

from connectors.embeddings import MAX_OFFLINE_CHARS, OfflineEmbedder

_SENTENCE = "On day {n} the user moved from Lisbon to Porto and began as a nurse near the river. "
_CHINESE = "第{n}天用户从里斯本搬到了波尔图,在河边的医院当护士。"


def _texts(kind: str, count: int) -> list[str]:
    if kind == "short":
        return [_SENTENCE.format(n=n) for n in range(count)]
    if kind == "short_chinese":
        return [_CHINESE.format(n=n) for n in range(count)]
    return [(_SENTENCE.format(n=n) * 50)[:MAX_OFFLINE_CHARS] for n in range(count)]


def _rate(seconds: float, count: int, work: Callable[[], object]) -> dict[str, float]:
    started, cpu, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        work()
        done += count
    wall = time.perf_counter() - started
    return {
        "texts_per_s": round(done / wall, 1),
        "cpu_ms_per_text": round((time.process_time() - cpu) / done * 1000, 1),
    }


def measure(seconds: float) -> dict[str, Any]:
    """Run everything once; ``seconds`` each."""
    loop = asyncio.new_event_loop()

    def run(call: Coroutine[Any, Any, object]) -> object:
        return loop.run_until_complete(call)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    embedder = OfflineEmbedder()
    run(embedder.embed_query("warm up"))
    result: dict[str, Any] = {"model": embedder.name}
    for kind, count in (("short", 64), ("short_chinese", 64), ("long", 8)):
        texts = _texts(kind, count)
        result[kind] = _rate(seconds, count, lambda t=texts: run(embedder.embed_passages(t)))  # type: ignore[misc]
        result[f"{kind}_engine_alone"] = _rate(
            seconds,
            count,
            lambda t=texts: embedder._model.passage(t),  # type: ignore[misc]
        )
    took = []
    for number in range(50):
        started = time.perf_counter()
        run(embedder.embed_query(f"where does the user live now, question {number}?"))
        took.append((time.perf_counter() - started) * 1000)
    took.sort()
    result["query_ms"] = {"p50": round(took[25], 1), "p95": round(took[47], 1)}
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result["memory_mb"] = {"before": before // 1024, "peak": after // 1024}
    loop.close()
    return result


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="time of each measurement")
    parser.add_argument("--json", action="store_true", help="as it is without: all that it prints")
    print(json.dumps(measure(parser.parse_args().seconds), indent=2))


if __name__ == "__main__":
    main()

"""The side of mem0: runs in its own environment, so it imports nothing of this project.

    PEER_PYTHON benchmarks/peer_mem0_worker.py < job.json > figures.json

The job (see ``benchmarks/peer_mem0.py``) names a folder, the endpoint of model and embeddings,
the conversations and the questions. Telemetry is off before mem0 is imported.
"""

# The peer's Python has no type information for us, and this file no reader but it.
from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def opened(job: dict[str, Any], name: str) -> Any:
    """Open mem0 on a Milvus file of its own in the job's folder."""
    from mem0 import Memory  # type: ignore[import-not-found,unused-ignore]

    folder = Path(job["folder"])
    endpoint = {"api_key": "none", "openai_base_url": job["base_url"], "model": "scripted"}
    return Memory.from_config(
        {
            "vector_store": {
                "provider": "milvus",
                "config": {
                    "url": str(folder / f"{name}.db"),
                    "token": "",
                    "collection_name": name,
                    "embedding_model_dims": job["dimension"],
                    "metric_type": "COSINE",
                },
            },
            "llm": {"provider": "openai", "config": endpoint},
            "embedder": {
                "provider": "openai",
                "config": {**endpoint, "embedding_dims": job["dimension"]},
            },
            "history_db_path": str(folder / f"{name}-history.sqlite"),
        }
    )


def add_all(memory: Any, adds: list[dict[str, Any]], threads: int) -> tuple[int, int]:
    """Add every exchange, users in parallel, one user's in order; (memories, errors raised)."""
    by_user: dict[str, list[Any]] = {}
    for one in adds:
        by_user.setdefault(one["user"], []).append(one["messages"])

    def one_user(item: tuple[str, list[Any]]) -> tuple[int, int]:
        user, exchanges = item
        made = raised = 0
        for messages in exchanges:
            try:
                made += len(memory.add(messages, user_id=user)["results"])
            except Exception:
                raised += 1
        return made, raised

    with ThreadPoolExecutor(threads) as pool:
        counted = list(pool.map(one_user, by_user.items()))
    return sum(made for made, _ in counted), sum(raised for _, raised in counted)


def stored(memory: Any, users: list[str]) -> int:
    """Count what is stored for all users."""
    return sum(
        len(memory.get_all(filters={"user_id": user}, top_k=1000)["results"]) for user in users
    )


def main() -> None:
    """Run the job."""
    job = json.load(sys.stdin)
    os.environ["MEM0_TELEMETRY"] = "False"
    os.environ["MEM0_DIR"] = job["folder"]
    from importlib.metadata import version

    result: dict[str, Any] = {
        "versions": {name: version(name) for name in ("mem0ai", "pymilvus", "milvus-lite")}
    }
    memory = opened(job, job["name"])
    users = sorted({one["user"] for one in job["adds"]})
    started = time.perf_counter()
    result["made"], result["raised"] = add_all(memory, job["adds"], job["threads"])
    result["seconds"] = time.perf_counter() - started
    result["stored"] = stored(memory, users)
    took = []
    for user, text in job["questions"]:
        started = time.perf_counter()
        found = memory.search(text, filters={"user_id": user}, top_k=10)["results"]
        took.append((time.perf_counter() - started) * 1000)
        result["found"] = result.get("found", 0) + len(found)
    result["search_ms"] = took
    if job["again"]:
        add_all(memory, job["adds"], job["threads"])
        result["stored_after_adding_again"] = stored(memory, users)
    sys.stdout.flush()
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()

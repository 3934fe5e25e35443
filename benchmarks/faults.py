"""What faults cost the healthy, and how soon a killed flow is back.

    python -m benchmarks.faults [poison restart] [--json]

- ``poison``: sessions at a steady rate on real Kafka and milvus-lite, a scripted model of 0.3 to
  0.5 s; p95 from a window's last event to its outcome, of healthy sessions alone, with one
  session in a hundred poisoned; beside the same without poison. In turn, three times.
- ``restart``: 100,000 open sessions, each in a scope of its own, real Kafka, rules in the place of
  a model; kill -9; from the start of the next process to the first new outcome.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from zlib import crc32

import orjson
from confluent_kafka import Producer

from benchmarks.figures import Figure, tell
from benchmarks.pipeline import START
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.source import KafkaLog
from connectors.kafka.topics import create_topics
from connectors.log import EndAt, Place, StartAt
from connectors.settings import load_settings
from flows.parts import consumer_group, recovery_folder
from flows.recovery import resume_epoch
from stores.ids import scope_key
from stores.records import Outcome
from tests.rig.extraction_script import answer, shown_lines
from tests.rig.kafka import real_kafka
from tests.rig.scripted_llm import (
    CHAT,
    Received,
    Step,
    broken_json,
    hang,
    scripted_llm,
    server_error,
)

TURNS = 5  # user messages of a window, the default
PARTITIONS = 4
POISON = "poison"
_LONGEST_S = 300.0


def event(user: str, number: int, text: str, **fields: object) -> tuple[bytes, bytes]:
    """Make one event of a user's only session: (scope key, value)."""
    value = {
        "v": 1,
        "event_id": f"{user}-{number}",
        "type": "message",
        "tenant_id": "acme",
        "agent_id": "helper",
        "user_id": user,
        "session_id": "talk",
        "role": "user",
        "content": text,
        "occurred_at": (START + timedelta(seconds=number)).isoformat(),
        **fields,
    }
    present = {name: given for name, given in value.items() if given is not None}
    return scope_key(["acme", "helper", user]).encode(), orjson.dumps(present)


@contextmanager
def flow_running(environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the L1 flow as its users do."""
    command = [sys.executable, "-m", "flows.cli.main", "run", "l1", "--follow"]
    with log.open("ab") as output:
        flow = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output
        )
    try:
        yield flow
    finally:
        if flow.poll() is None:
            flow.terminate()
            flow.wait()


def outcomes(broker: str, start: StartAt) -> list[tuple[Outcome, int]]:
    """Read the outcomes from a place on, each with the log's time in milliseconds."""
    log = KafkaLog(KafkaConnection(broker))
    return [
        (Outcome.model_validate_json(record.value or b""), record.timestamp_ms)
        for record in log.read("sediment.outcomes", start, EndAt.latest())
    ]


def wait(condition: Callable[[], bool], what: str, every_s: float) -> None:
    """Wait for something that comes within five minutes."""
    deadline = time.monotonic() + _LONGEST_S
    while not condition():
        if time.monotonic() > deadline:
            message = f"waited {_LONGEST_S:g} s for {what}"
            raise TimeoutError(message)
        time.sleep(every_s)


# --- poison ------------------------------------------------------------------------------------


def poison(per_second: int = 25, sessions: int = 1000, rounds: int = 3) -> Figure:
    """Compare the p95 lag of healthy sessions with and without one poisoned in a hundred."""
    pairs = [
        (_p95(per_second, sessions, poisoned=sessions // 100), _p95(per_second, sessions))
        for _ in range(rounds)
    ]
    measured, beside = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Figure(
        "healthy sessions, p95 lag",
        measured,
        "s",
        beside,
        "at most 1.1 of none",
        f"1 % poison (hangs, 500, broken JSON) beside none; {sessions} sessions, {per_second}/s",
        ratio=statistics.median(mine / none for mine, none in pairs),
    )


def _p95(per_second: int, sessions: int, poisoned: int = 0) -> float:
    """Measure from a window's last event to its outcome, by the log's own times."""
    rng = Random(11)
    # Early ones, so that they are in the way for as long as possible.
    cursed = {f"u{number}" for number in rng.sample(range(sessions // 2), poisoned)}

    def script(request: Received) -> Step:
        if request.path != CHAT:
            return Step()
        said = " ".join(text for _, _, _, text in shown_lines(request.body))
        if POISON in said:
            return (hang, server_error, broken_json)[crc32(said.encode()) % 3]()
        return Step(latency_s=rng.uniform(0.3, 0.5))

    with (
        real_kafka() as broker,
        scripted_llm(script=script, answer=answer) as server,
        tempfile.TemporaryDirectory() as name,
    ):
        create_topics(KafkaConnection(broker.bootstrap), "sediment", PARTITIONS)
        environment = {
            "SEDIMENT_DATA_DIR": name,
            "SEDIMENT_BROKERS": broker.bootstrap,
            "SEDIMENT_LLM_BASE_URL": server.url,
            "SEDIMENT_LLM_MODEL": "scripted",
            "SEDIMENT_LLM_TIMEOUT_S": "20",
            "SEDIMENT_EMBEDDINGS_BASE_URL": server.url,
            "SEDIMENT_EMBEDDINGS_DIMENSION": "64",
        }
        with flow_running(environment, Path(name) / "flow.log"):
            closed_at = _talk(broker.bootstrap, per_second, sessions, cursed)
            healthy = {user for user in closed_at if user.rpartition("/")[2] not in cursed}

            def ended() -> dict[str, int]:
                found = outcomes(broker.bootstrap, StartAt.beginning())
                return {outcome.scope or "": at for outcome, at in found}

            wait(lambda: ended().keys() >= healthy, "every healthy session to end", 2.0)
            done = ended()
    lags = sorted((done[user] - at) / 1000 for user, at in closed_at.items() if user in healthy)
    return lags[int(len(lags) * 0.95)]


def _talk(bootstrap: str, per_second: int, sessions: int, cursed: set[str]) -> dict[str, int]:
    """Let one session after the other say all of its window; give when each had, by scope."""
    closed_at: dict[str, int] = {}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    # Not measured: the first window opens connections, the store and the prompt.
    for number in range(TURNS):
        key, value = event("first", number, f"FACT: first tells thing {number}.")
        producer.produce("sediment.l0.events", value, key)
    producer.flush()
    wait(lambda: bool(outcomes(bootstrap, StartAt.beginning())), "the flow to start", 0.5)
    began = time.perf_counter()
    for session in range(sessions):
        due = began + session / per_second
        time.sleep(max(0.0, due - time.perf_counter()))
        user = f"u{session}"
        word = f" {POISON}" if user in cursed else ""
        for number in range(TURNS):
            key, value = event(user, number, f"FACT: {user} tells thing {number}.{word}")
            producer.produce("sediment.l0.events", value, key)
        closed_at[key.decode()] = int(time.time() * 1000)
        producer.poll(0)
    producer.flush()
    return closed_at


# --- restart -----------------------------------------------------------------------------------


def restart(sessions: int = 100_000) -> Figure:
    """Measure the way back from kill -9 with many open sessions."""
    with real_kafka() as broker, tempfile.TemporaryDirectory() as name:
        create_topics(KafkaConnection(broker.bootstrap), "sediment", PARTITIONS)
        environment = {"SEDIMENT_DATA_DIR": name, "SEDIMENT_BROKERS": broker.bootstrap}
        settings = load_settings(data_dir=Path(name), brokers=broker.bootstrap)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
        for number in range(sessions):
            key, value = event(f"u{number}", 0, f"I live in Lisbon, house {number}.")
            producer.produce("sediment.l0.events", value, key)
            producer.poll(0)
        producer.flush()
        log = KafkaLog(KafkaConnection(broker.bootstrap))
        group = consumer_group(settings, "l1")

        def all_read() -> bool:
            return sum(log.committed(group, "sediment.l0.events").values()) >= sessions

        recovery = recovery_folder(settings, "l1")
        with flow_running(environment, Path(name) / "flow.log") as flow:
            wait(all_read, "the backlog to be read", 1.0)
            wait(lambda: _windows_kept(recovery) >= sessions, "the snapshot to close", 1.0)
            flow.send_signal(signal.SIGKILL)
            flow.wait()
        ends = log.end_offsets("sediment.outcomes")
        for number in range(0, sessions, sessions // 10):
            key, value = event(f"u{number}", 1, "", type="session_end", role=None, content=None)
            producer.produce("sediment.l0.events", value, key)
        producer.flush()
        start = StartAt(partitions={part: Place("offset", end) for part, end in ends.items()})
        began = time.perf_counter()
        with flow_running(environment, Path(name) / "flow.log"):
            wait(lambda: bool(outcomes(broker.bootstrap, start)), "an outcome", 0.05)
            took = time.perf_counter() - began
        size = sum(file.stat().st_size for file in recovery.glob("*.sqlite3")) / 1e6
    return Figure(
        "kill -9 to the first new outcome",
        took,
        "s",
        _bare_start(),
        "at most 15 s",
        f"{sessions:,} open sessions, recovery store of {size:,.0f} MB; beside: an empty flow",
    )


def _bare_start() -> float:
    """Measure the same from the start of a flow that has no state at all."""
    with real_kafka() as broker, tempfile.TemporaryDirectory() as name:
        create_topics(KafkaConnection(broker.bootstrap), "sediment", PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(TURNS):
            key, value = event("u", number, f"I live in Lisbon, house {number}.")
            producer.produce("sediment.l0.events", value, key)
        producer.flush()
        environment = {"SEDIMENT_DATA_DIR": name, "SEDIMENT_BROKERS": broker.bootstrap}
        began = time.perf_counter()
        with flow_running(environment, Path(name) / "flow.log"):
            everything = StartAt.beginning()
            wait(lambda: bool(outcomes(broker.bootstrap, everything)), "an outcome", 0.05)
            return time.perf_counter() - began


def _windows_kept(recovery: Path) -> int:
    """Count the scopes whose windows are in a snapshot that has closed."""
    epoch = resume_epoch(recovery) or 0
    sql = "SELECT COUNT(*) FROM snaps WHERE step_id LIKE '%.window%' AND snap_epoch < ?"
    total = 0
    for part in recovery.glob("part-*.sqlite3"):
        with closing(sqlite3.connect(part)) as connection:
            total += connection.execute(sql, (epoch,)).fetchone()[0]
    return total


MEASURES: dict[str, Callable[[], Figure]] = {"poison": poison, "restart": restart}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.faults")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(MEASURES)}; all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    figures = [MEASURES[name]() for name in options.what or MEASURES]
    tell("faults", figures, as_json=options.json)


if __name__ == "__main__":
    main()

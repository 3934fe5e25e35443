"""Replay with recorded answers on real Kafka, beside a plain read of the same topic.

    python -m benchmarks.replay [--events N] [--workers N] [--json]

Decode, window, extract, gate, reconcile, outcomes and atoms to Kafka: the flow ``l1``, which has
no index, since the dense index has a benchmark of its own. Then the flow ``all``, with the index
stage and its batches, scenes switched off. Store and embedding model are stand-ins that do
nothing. Answers come from the SQLite journal; they are recorded by a first replay, with a
scripted model, which is not measured.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.figures import Figure, tell
from benchmarks.pipeline import event_bytes
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.sink import KafkaAppender
from connectors.kafka.topics import create_topics
from connectors.log import EndAt, Place, StartAt
from connectors.settings import Settings, load_settings
from flows.parts import generation_log, in_generation, open_log, prepare_topics
from flows.progress import FlowName
from flows.replay.counts import Counts
from flows.replay.plan import span_of
from flows.replay.processes import run_processes
from flows.replay.running import Opened, Share, run_share
from flows.runner import StopSignal
from stores.generations import MAIN, AnswerMode, Generation
from stores.protocols import Vectors
from stores.records import Atom, IndexedEvent, OutRecord
from tests.rig import reconcile_script
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import real_kafka
from tests.rig.scripted_llm import CHAT, scripted_llm

_FLOWS: dict[FlowName, str] = {"l1": "without index", "all": "with the index stage"}
_PARTITIONS = 4
_CHUNK = 2000
_DIMENSION = 64
_MEMORIES = 2  # of one window: what a model finds in ten ordinary messages
_WORDS = tuple(f"{first}{last}" for first in "bdfgklmnprst" for last in (
    "arel", "ivon", "ostep", "ulan", "erim", "inka", "oba", "yrt", "emil", "andu", "oxi", "ephan",
))  # fmt: skip


class _NoStore:
    """Takes everything and keeps nothing: what a store costs is measured elsewhere."""

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        pass

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        pass

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        return []


class _NoModel:
    """Embeds a text as the bytes of its hash: no two texts are near."""

    name = "none"
    dimension = _DIMENSION

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        drawn = b"".join(blake2b(text.encode(), digest_size=_DIMENSION).digest() for text in texts)
        # Not of length 1, which nobody here needs: to make them so would be 2 % of a window.
        return np.frombuffer(drawn, np.uint8).reshape(-1, _DIMENSION).astype(np.float32) - 127.5

    async def embed_query(self, text: str) -> Vectors:
        vector: Vectors = (await self.embed_passages([text]))[0]
        return vector


def _short_answer(body: dict[str, Any]) -> str:
    if reconcile_script.is_asked(body):
        return reconcile_script.answer(body)
    found = orjson.loads(answer(body))
    found["memories"] = found["memories"][:_MEMORIES]
    return orjson.dumps(found).decode()


def _produce(settings: Settings, events: int) -> None:
    rng = random.Random(7)
    appender = KafkaAppender(KafkaConnection(settings.brokers))
    topic = settings.topic("l0.events")
    for start in range(0, events, _CHUNK):
        records = []
        for number in range(start, min(events, start + _CHUNK)):
            said = " ".join(rng.choices(_WORDS, k=12))
            key, value = event_bytes(number, text=f"{said}.")
            records.append(OutRecord(topic, key.encode(), value))
        appender.append(records)


@contextmanager
def _nothing(settings: Settings) -> Iterator[Opened]:
    """Give the stand-ins. Called in each process."""
    del settings
    opened: Any = (_NoStore(), _NoModel())
    yield opened


def _replayed(
    settings: Settings, answers: AnswerMode, workers: int, name: FlowName = "l1"
) -> Counts:
    """Replay the whole topic into the settings' generation, as ``sediment replay`` would."""
    prepare_topics(settings)
    topic = settings.topic("l0.events")
    reader = open_log(settings).reader
    span = span_of(reader, topic, Place("beginning"), Place("end"))
    share = Share(settings, name, span, {}, answers)
    stop = StopSignal()
    if workers > 1:
        counts = run_processes(share, _nothing, workers, stop, lambda now: None)
    else:
        with _nothing(settings) as opened:
            counts = run_share(share, opened, stop, lambda now: None)
    assert counts.read == span.records
    assert answers != "recorded" or counts.asked == 0
    return counts


def _raw_read(settings: Settings) -> float:
    reader = open_log(settings).reader
    began = time.perf_counter()
    count = sum(
        1 for _ in reader.read(settings.topic("l0.events"), StartAt.beginning(), EndAt.latest())
    )
    return count / (time.perf_counter() - began)


@contextmanager
def prepared(events: int) -> Iterator[Settings]:
    """Give settings of a broker that holds events, whose answers are recorded."""
    with (
        real_kafka() as broker,
        scripted_llm(answer=_short_answer) as model,
        tempfile.TemporaryDirectory() as name,
    ):
        settings = load_settings(
            data_dir=Path(name),
            brokers=broker.bootstrap,
            topic_partitions=_PARTITIONS,
            scene_writer="off",
            llm_base_url=model.url,
            llm_model=SCRIPTED_MODEL,
        )
        create_topics(KafkaConnection(broker.bootstrap), settings.topic_prefix, _PARTITIONS)
        _produce(settings, events)
        _replayed(in_generation(settings, MAIN), "missing", 1)
        asked = model.count(CHAT)
        yield settings
        assert model.count(CHAT) == asked, "the measured replay asked the model"


def measure(events: int, workers: int) -> list[Figure]:
    """Replay with recorded answers, without the index and with it, beside the raw read."""
    figures = []
    with prepared(events) as settings:
        raw = _raw_read(settings)
        for name, what in _FLOWS.items():
            generation_log(settings).write(Generation(name=name, answers="recorded"))
            done = _replayed(in_generation(settings, name), "recorded", workers, name)
            rate = events / done.seconds
            figures.append(
                Figure(
                    f"replay, recorded answers, {workers} workers, {what}",
                    rate,
                    "events/s",
                    raw,
                    "10,000 events/s",
                    f"beside: plain read of the topic; {events:,} events, {done.ended:,} "
                    f"windows, {events / done.processor_s:,.0f} events for each second of "
                    "processor time",
                )
            )
    return figures


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.replay")
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    figures = measure(options.events, options.workers)
    tell("replay", figures, as_json=options.json)


if __name__ == "__main__":
    main()

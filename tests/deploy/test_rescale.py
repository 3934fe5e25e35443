"""Rescale as ``docs/deploy.md`` says: stop the process, start it with another ``--workers``."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from stores.ids import scope_key
from stores.records import Outcome, OutRecord
from tests.e2e.cli import Sediment
from tests.e2e.on_kafka import OnKafka
from tests.rig.events import at, body
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import Step, scripted_llm

USERS = tuple(f"user-{n}" for n in range(8))
WINDOWS = 6
"""Of each user; a window is five messages."""
STEPS = ((1, 7, 8, 9), (4, 18, 16, 23), (2, 30, len(USERS) * WINDOWS, 30))
"""Workers; how far every user has talked before the windows in the third place are awaited; how
far when the flow is stopped. So each stop finds sessions open and windows on their way."""


def said(topic: str, user: str, n: int) -> OutRecord:
    event = body(
        f"{user}-{n}",
        user_id=user,
        content=f"FACT: {user} likes dish {n}.",
        occurred_at=at(10 * n).isoformat(),
    )
    return OutRecord(topic, scope_key(["acme", "helper", user]).encode(), orjson.dumps(event))


def wait_for(there: Callable[[], bool], process_ended: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert process_ended() is None, "the flow has ended"
        assert time.monotonic() < deadline, "the flow does not get on"
        time.sleep(0.2)


@pytest.mark.kafka
@pytest.mark.slow
def test_one_worker_then_four_then_two_lose_and_repeat_nothing(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    kafka = OnKafka(kafka_broker, partitions=4)
    events = [said(kafka.topic("l0.events"), user, n) for n in range(5 * WINDOWS) for user in USERS]
    told = 0

    def windows() -> dict[str, Outcome]:
        return {one.outcome_id: one for one in kafka.outcomes() if one.kind == "window"}

    def talk(until: int) -> None:
        nonlocal told
        kafka.append(events[told * len(USERS) : until * len(USERS)])
        told = until

    with scripted_llm(script=lambda _: Step(latency_s=0.1), answer=answer, dimension=32) as server:

        def installation(name: str, topics: OnKafka) -> Sediment:
            settings = {
                **topics.env,
                "SEDIMENT_LLM_BASE_URL": server.url,
                "SEDIMENT_LLM_MODEL": SCRIPTED_MODEL,
                "SEDIMENT_EMBEDDINGS_BASE_URL": server.url,
                "SEDIMENT_EMBEDDINGS_DIMENSION": "32",
                "SEDIMENT_CONCURRENCY": "2",
                "SEDIMENT_SCENE_WRITER": "off",
                "SEDIMENT_SNAPSHOT_INTERVAL_S": "0.2",
            }
            return Sediment(tmp_path / name, settings)

        sediment = installation("rescaled", kafka)
        for workers, before, awaited, after in STEPS:
            flow = sediment.start("run", "all", "--follow", "--workers", str(workers))
            try:
                talk(before)
                wait_for(lambda awaited=awaited: len(windows()) >= awaited, flow.poll)  # type: ignore[misc]
                talk(after)
                flow.send_signal(signal.SIGTERM)
                out, err = flow.communicate(timeout=60)
            finally:
                flow.kill()
                flow.wait()
            assert flow.returncode == 0, err
            assert out.startswith("stopped")
        undisturbed = OnKafka(kafka_broker, partitions=4)
        topic = undisturbed.topic("l0.events")
        undisturbed.append([replace(event, topic=topic) for event in events])
        installation("undisturbed", undisturbed).here.run("run", "all", "--to-end")

    ended = windows()
    assert {one.result for one in ended.values()} == {"extracted"}
    ends = Counter(event_id for one in ended.values() for event_id in one.event_ids)
    expected = Counter(f"{user}-{n}" for user in USERS for n in range(5 * WINDOWS))
    assert ends == expected, "every event in exactly one window"
    assert kafka.atoms() == undisturbed.atoms(), "the memories of a run that nobody stopped"
    sediment.here.run("audit")

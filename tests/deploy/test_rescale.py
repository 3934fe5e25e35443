"""Rescale as ``docs/deploy.md`` says: stop all processes of a flow, start another number."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pytest

from stores.errors import Transient
from stores.ids import scope_key
from stores.records import Outcome, OutRecord
from tests.e2e.cli import Sediment
from tests.e2e.on_kafka import OnKafka
from tests.rig.events import at, body
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import KafkaBroker
from tests.rig.milvus_server import milvus_server, waits_its_turn
from tests.rig.redis import RedisServer
from tests.rig.scripted_llm import ScriptedLlm, Step, scripted_llm

USERS = tuple(f"user-{n}" for n in range(8))
WINDOWS = 6
"""Of each user; a window is five messages."""
STEPS = ((1, 7, 8, 9), (4, 18, 16, 23), (2, 30, len(USERS) * WINDOWS, 30))
"""Processes; how far every user has talked before the windows in the third place are
awaited; how far when the flow is stopped. So each stop finds sessions open and windows on their
way."""


def said(topic: str, user: str, n: int) -> OutRecord:
    event = body(
        f"{user}-{n}",
        user_id=user,
        content=f"FACT: {user} likes dish {n}.",
        occurred_at=at(10 * n).isoformat(),
    )
    return OutRecord(topic, scope_key(["acme", "helper", user]).encode(), orjson.dumps(event))


READ = re.compile(r"(\d+) events read")
Running = Sequence[subprocess.Popen[str]]


def wait_for(there: Callable[[], bool], flow: Running) -> None:
    deadline = time.monotonic() + 120
    while True:
        with suppress(Transient):  # topics that were made a moment ago
            if there():
                return
        for one in flow:
            assert one.poll() is None, one.communicate()[1]
        assert time.monotonic() < deadline, "the flow does not get on"
        time.sleep(0.2)


@dataclass
class Talk:
    """What is said to one installation, and what became of it."""

    kafka: OnKafka
    told: int = 0

    @property
    def events(self) -> list[OutRecord]:
        topic = self.kafka.topic("l0.events")
        return [said(topic, user, n) for n in range(5 * WINDOWS) for user in USERS]

    def until(self, turn: int) -> None:
        self.kafka.append(self.events[self.told * len(USERS) : turn * len(USERS)])
        self.told = turn

    def windows(self) -> dict[str, Outcome]:
        return {one.outcome_id: one for one in self.kafka.outcomes() if one.kind == "window"}


def rescaled(
    talk: Talk,
    start: Callable[[int], Running],
    hurt: Callable[[Running], None],
) -> None:
    """Go through the steps: each starts the flow, talks to it and stops it cleanly.

    :arg hurt: done to the four; then they are started again, as a cluster does.
    """
    for number, before, awaited, after in STEPS:
        done = len(talk.windows()) if talk.told else 0
        flow = start(number)
        try:
            talk.until(before)
            wait_for(lambda awaited=awaited: len(talk.windows()) >= awaited, flow)  # type: ignore[misc]
            if number == 4:
                hurt(flow)
                flow = start(number)
                talk.until(after)
                # More than could have ended before: so they have begun, and a signal is heard.
                could = before // 5 * len(USERS)
                wait_for(lambda could=could: len(talk.windows()) > could, flow)  # type: ignore[misc]
            else:
                talk.until(after)
            for one in flow:
                one.send_signal(signal.SIGTERM)
            said = [one.communicate(timeout=60) for one in flow]
        finally:
            for one in flow:
                one.kill()
                one.wait()
        for one, (out, err) in zip(flow, said, strict=True):
            assert one.returncode == 0, err
            assert "stopped" in out
        read = sum(int(found) for out, _ in said for found in READ.findall(out))
        assert read <= after * len(USERS) - 5 * done, (
            "the snapshots of the step before are not used"
        )


def assert_nothing_lost_or_repeated(talk: Talk, undisturbed: OnKafka) -> None:
    ended = talk.windows()
    assert {one.result for one in ended.values()} == {"extracted"}
    ends = Counter(event_id for one in ended.values() for event_id in one.event_ids)
    expected = Counter(f"{user}-{n}" for user in USERS for n in range(5 * WINDOWS))
    assert ends == expected, "every event in exactly one window"
    assert talk.kafka.atoms() == undisturbed.atoms(), "the memories of a run that nobody stopped"


def undisturbed_by(talk: Talk) -> OnKafka:
    """Give the same events in topics of their own."""
    other = OnKafka(talk.kafka.broker, partitions=4)
    topic = other.topic("l0.events")
    other.append([replace(event, topic=topic) for event in talk.events])
    return other


def settings_on(server: ScriptedLlm, topics: OnKafka) -> dict[str, str]:
    return {
        **topics.env,
        "SEDIMENT_LLM_BASE_URL": server.url,
        "SEDIMENT_LLM_MODEL": SCRIPTED_MODEL,
        "SEDIMENT_EMBEDDINGS_BASE_URL": server.url,
        "SEDIMENT_EMBEDDINGS_DIMENSION": "32",
        "SEDIMENT_CONCURRENCY": "2",
        "SEDIMENT_SCENE_WRITER": "off",
        "SEDIMENT_SNAPSHOT_INTERVAL_S": "0.2",
    }


def lose_one(flow: Running) -> None:
    """Kill one of several with -9; the others end by themselves and say why."""
    lost, *others = reversed(flow)
    lost.kill()
    for one in others:
        _, err = one.communicate(timeout=60)
        # At times the interpreter aborts on its way out, with threads of Bytewax in it.
        assert one.returncode in (3, -signal.SIGABRT), err
        assert "another of the 4 processes of this flow is gone" in err
        assert "Traceback" not in err
    lost.communicate()


def free_port() -> int:
    """Give a port for processes whose addresses differ, as those of pods do."""
    with socket.create_server(("127.0.1.0", 0)) as held:
        return int(held.getsockname()[1])


@waits_its_turn
@pytest.mark.kafka
@pytest.mark.slow
def test_one_process_then_four_then_two_lose_and_repeat_nothing(
    kafka_broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Each with a data folder of its own, as pods have: the first one's holds the snapshots."""
    talk = Talk(OnKafka(kafka_broker, partitions=4))
    with (
        scripted_llm(script=lambda _: Step(latency_s=0.1), answer=answer, dimension=32) as server,
        milvus_server(tmp_path / "milvus") as milvus,
    ):

        def installation(folder: str, topics: OnKafka, prefix: str) -> Sediment:
            stores = {
                "SEDIMENT_MILVUS_URI": milvus,
                "SEDIMENT_REDIS_URL": redis_server.url,
                "SEDIMENT_COLLECTION_PREFIX": prefix,
            }
            return Sediment(tmp_path / folder, settings_on(server, topics) | stores)

        def start(processes: int) -> Running:
            port = free_port()
            return [
                installation(f"pod-{number}", talk.kafka, "rescaled").start(
                    *("run", "l1", "--follow", "--processes", str(processes)),
                    *("--process", str(number), "--peers", f"127.0.1.{{}}:{port}"),
                )
                for number in range(processes)
            ]

        rescaled(talk, start, lose_one)
        undisturbed = undisturbed_by(talk)
        installation("undisturbed", undisturbed, "undisturbed").here.run("run", "l1", "--to-end")
    assert_nothing_lost_or_repeated(talk, undisturbed)
    holding = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("part-*.sqlite3")}
    assert holding == {"pod-0", "undisturbed"}

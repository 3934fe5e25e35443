"""Forgetting over the file log and over Kafka: the topic of tombstones, and a whole flow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from bytewax.testing import cluster_main

from connectors.log import EndAt, StartAt
from connectors.tombstones_topic import TombstonesTopic
from flows.async_stage import AsyncStage, PendingWork, StageSpec
from flows.extract.work import ExtractWork
from flows.forget.events import EventForgetter
from flows.forget.work import ForgettingWork
from flows.index import Indexer
from flows.outputs import Topics
from flows.reconcile import Reconciler
from flows.rules import RuleExtractor
from flows.topology import Parts, Progress, build_flow
from flows.window import WindowPolicy
from stores.errors import StoreMismatch, Terminal
from stores.records import Outcome, OutRecord, Tombstone
from stores.tombstones import MAX_KEYS, Tombstones, tombstone_of
from tests.contract.conftest import LogUnderTest, WallClock
from tests.rig.events import at, body, sourced
from tests.rig.memory_world import MemoryWorld
from tests.rig.still import OnesEmbedder

SCOPE = "acme/helper/ana"


def topic_of(log: LogUnderTest, topic: str) -> TombstonesTopic:
    return TombstonesTopic(log.reader, log.appender, topic, Tombstones())


def asks(request_id: str = "r", seconds: float = 100, **request: Any) -> dict[str, Any]:
    fields = {"type": "forget", "role": None, "content": None, "request": request}
    return body(request_id, occurred_at=at(seconds).isoformat(), **fields)


def forgetting(*event_ids: str) -> Tombstone:
    request = {"target": "event", "event_ids": event_ids}
    named = f"r-{event_ids[0]}"
    return tombstone_of(sourced(named, type="forget", role=None, content=None, request=request))


# --- the topic -------------------------------------------------------------------------------


def test_what_one_publishes_all_others_read(log: LogUnderTest) -> None:
    topic = log.new_topic(2)
    mine, other = topic_of(log, topic), topic_of(log, topic)
    other.refresh()
    for number in range(5):
        mine.publish([forgetting(f"e{number}")])
    event = sourced("e3")
    assert mine.known.covers_event(event)
    assert not other.known.covers_event(event)
    other.refresh()
    assert list(other.known) != []
    assert all(other.known.covers_event(sourced(f"e{number}")) for number in range(5))
    assert not other.known.covers_event(sourced("e9"))


def test_a_large_tombstone_goes_through_in_parts(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    ids = [f"e{number}" for number in range(MAX_KEYS + 1)]
    topic_of(log, topic).publish([forgetting(*ids)])
    assert sum(log.reader.end_offsets(topic).values()) == 2
    other = topic_of(log, topic)
    other.refresh()
    assert other.known.covers_event(sourced(ids[0])) and other.known.covers_event(sourced(ids[-1]))


def test_a_record_that_is_no_tombstone_stops_whoever_reads_it(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    log.appender.append([OutRecord(topic, b"k", b'{"v":9}')])
    with pytest.raises(StoreMismatch, match=f"{topic}, partition 0, offset 0"):
        topic_of(log, topic).refresh()


def test_a_follower_hears_of_it_within_seconds(log: LogUnderTest) -> None:
    topic = log.new_topic(2)
    follower = topic_of(log, topic)
    follower.refresh()
    follower.follow()
    topic_of(log, topic).publish([forgetting("e1")])
    until = time.monotonic() + 60
    while not follower.known.covers_event(sourced("e1")) and time.monotonic() < until:
        time.sleep(0.05)
    follower.close()
    assert follower.known.covers_event(sourced("e1"))


# --- a whole flow ----------------------------------------------------------------------------


class OnLog:
    """Topics of their own, and flows over them that keep what they make in memory."""

    def __init__(self, log: LogUnderTest) -> None:
        self.log = log
        self.events = log.new_topic(1)
        self.topics = Topics("unused")
        for name in vars(self.topics):
            setattr(self.topics, name, log.new_topic(1))

    def say(self, *events: dict[str, Any]) -> None:
        self.log.appender.append(
            [OutRecord(self.events, SCOPE.encode(), orjson.dumps(one)) for one in events]
        )

    def run(self, world: MemoryWorld) -> None:
        """Read everything from offset 0, as after a wipe."""
        clock, pending = WallClock(), PendingWork(1000)
        tombstones = topic_of(self.log, self.topics.tombstones)
        tombstones.refresh()
        world.known = tombstones.known

        def stage(name: str, work: Any, **limits: Any) -> AsyncStage[Any, Any]:
            return AsyncStage(StageSpec(name, work, clock, pending, **limits))

        with (
            stage(
                "index",
                Indexer(world, OnesEmbedder(), clock, EventForgetter(world, tombstones)),
                batch_max=10,
            ) as indexing,
            stage(
                "extract", ExtractWork(RuleExtractor(), kept_out=tombstones.known), per_key=10
            ) as extracting,
            stage(
                "reconcile",
                ForgettingWork(
                    Reconciler(world, OnesEmbedder(), clock, kept_out=tombstones.known),
                    atoms=world,
                    index=world,
                    journal=world,
                    log=tombstones,
                ),
            ) as reconciling,
        ):
            parts = Parts(
                source=self.log.source(self.events, end=EndAt.latest()),
                sink=self.log.sink,
                topics=self.topics,
                scope_fields=("tenant", "agent", "user"),
                window=WindowPolicy(user_turns=2),
                clock=clock,
                live=False,
                stopping=lambda: False,
                progress=Progress(),
                indexing=indexing,
                extracting=extracting,
                reconciling=reconciling,
                kept_out=tombstones.known,
            )
            cluster_main(build_flow("all", parts), [], 0, worker_count_per_proc=1)

    def outcomes(self) -> list[Outcome]:
        records = self.log.reader.read(self.topics.outcomes, StartAt.beginning(), EndAt.latest())
        return [Outcome.model_validate_json(one.value or b"") for one in records]


def conversation() -> list[dict[str, Any]]:
    facts = ["My sister is called Ada.", "My brother is called Bo.", "My wife is called Cleo."]
    return [
        body(f"e{n}", content=text, session_id=f"s{n % 2}", occurred_at=at(n).isoformat())
        for n, text in enumerate(facts)
    ]


def told(world: MemoryWorld) -> tuple[Sequence[str], Sequence[str]]:
    return sorted(world.events), sorted({one for a in world.atoms.values()
                                         for one in a.source_event_ids})  # fmt: skip


def test_a_request_is_carried_out_behind_what_came_before_it(log: LogUnderTest) -> None:
    on_log, world = OnLog(log), MemoryWorld()
    late = body("late", session_id="s0", content="My aunt is called Dora.")
    on_log.say(*conversation(), asks(target="session", seconds=50) | {"session_id": "s0"}, late)
    on_log.run(world)
    assert told(world) == (["e1"], ["e1"])
    ends = {one.event_ids: one.result for one in on_log.outcomes()}
    assert ends[("r",)] == "applied"
    assert ends[("late",)] == "forgotten"
    assert sorted(name for ids in ends for name in ids) == ["e0", "e1", "e2", "late", "r"]
    anew = MemoryWorld()
    on_log.run(anew)
    assert told(anew) == (["e1"], ["e1"])
    again = [one for one in on_log.outcomes() if one.event_ids == ("r",)]
    assert len(again) == 2
    assert again[0].result == again[1].result == "applied"


def test_without_the_request_all_of_it_is_there(log: LogUnderTest) -> None:
    on_log, world = OnLog(log), MemoryWorld()
    on_log.say(*conversation())
    on_log.run(world)
    assert told(world) == (["e0", "e1", "e2"], ["e0", "e1", "e2"])


def test_a_request_that_fails_is_a_dead_letter_and_not_lost(log: LogUnderTest) -> None:
    on_log, world = OnLog(log), MemoryWorld()

    def broken(about: Sequence[str]) -> int:
        message = "refused"
        raise Terminal(message)

    on_log.say(*conversation(), asks(target="user", seconds=50))
    world.forget = broken  # type: ignore[method-assign]
    on_log.run(world)
    ends = {one.event_ids: one.result for one in on_log.outcomes()}
    assert ends[("r",)] == "dead_lettered"
    (letter,) = log.reader.read(on_log.topics.l1_dead, StartAt.beginning(), EndAt.latest())
    assert orjson.loads(letter.value or b"")["event_id"] == "r"
    # Its tombstone stands all the same: nothing of it comes back in the meantime.
    on_log.run(again := MemoryWorld())
    assert told(again) == ([], [])

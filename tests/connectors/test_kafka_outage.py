"""Brokers that are away: how long is waited, and how it is told."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from connectors.kafka import sink
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.outage import Outage
from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import _PartitionWatch
from connectors.metrics import LOG_AWAY_SECONDS
from stores.errors import LogAway, SedimentError
from stores.records import OutRecord


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def gauge() -> float:
    value: float = LOG_AWAY_SECONDS.labels("reading")._value.get()
    return value


def test_patience_is_counted_from_the_first_silence() -> None:
    clock = Clock()
    outage = Outage("reading", 10.0, clock)
    for passed in (0.0, 6.0, 10.0):
        clock.now = 1000.0 + passed
        outage.goes_on("no answer")
        assert gauge() == passed
    clock.now = 1010.1
    with pytest.raises(LogAway, match="no answer; reading waited for 10 s"):
        outage.goes_on("no answer")


def test_silence_that_began_before_it_was_noted_counts() -> None:
    outage = Outage("reading", 10.0, Clock())
    with pytest.raises(LogAway, match="waited for 11 s"):
        outage.goes_on("no answer", since=989.0)


def test_an_answer_in_between_gives_all_patience_back(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outage = Outage("reading", 10.0, clock)
    outage.goes_on("no answer")
    clock.now += 9.0
    outage.goes_on("no answer")
    outage.over()
    assert gauge() == 0
    assert "answers again, after 9 s; reading goes on" in caplog.text
    clock.now += 9.0
    outage.goes_on("no answer")
    assert gauge() == 0


def test_it_is_told_once_a_minute_not_each_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outage = Outage("reading", 1000.0, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(130):
            outage.goes_on("no answer")
            clock.now += 1.0
    assert [record.getMessage().split("; ")[1] for record in caplog.records] == [
        "reading waits for it, for 1000 s at most",
        "reading has waited for 61 s",
        "reading has waited for 122 s",
    ]
    outage.over()
    caplog.clear()
    outage.over()
    assert not caplog.records


def test_a_question_that_took_longer_than_patience_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The silence began when it was asked, not when it failed."""
    asked: list[str] = []

    def no_answer(_: KafkaConnection, topic: str) -> int:
        asked.append(topic)
        time.sleep(0.01)
        service = "kafka"
        raise LogAway(service, f"topic {topic}: no answer")

    monkeypatch.setattr(sink, "topic_partitions", no_answer)
    nobody = KafkaConnection("127.0.0.1:1", patience_s=0.001)
    writer = KafkaSink(nobody).build_part("out", "0", None)
    with pytest.raises(SedimentError, match="no answer; writing waited"):
        writer.write_batch([[OutRecord("t", b"k", b"v")]])
    writer.close()
    assert asked == ["t"]


def test_the_watch_of_partitions_counts_silence_from_its_question_too() -> None:
    class Admin:
        def describe_topics(self, topics: object, **_: float) -> dict[str, Future[None]]:
            answer: Future[None] = Future()
            answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            return {"t": answer}

    patience_s = 0.001
    watch = _PartitionWatch(cast(AdminClient, Admin()), "t", 1, 0.0, patience_s)
    watch.look()  # asks
    time.sleep(2 * patience_s)
    with pytest.raises(LogAway, match="reading waited"):
        watch.look()

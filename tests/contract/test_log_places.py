"""Looking places up, reading at one's own pace, and the register of generations, on both logs."""

from __future__ import annotations

import time

import pytest

from connectors.log import Place
from flows.generations import GenerationLog, PointerWatch
from stores.errors import ServiceUnavailable
from stores.generations import MAIN, Generation, Pointer
from stores.records import OutRecord
from tests.contract.conftest import LogUnderTest


def append(log: LogUnderTest, topic: str, *values: bytes) -> list[int]:
    return [
        position.offset
        for position in log.appender.append([OutRecord(topic, b"k", value) for value in values])
    ]


def test_places_are_looked_up_and_never_lie_beyond_the_end(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    append(log, topic, b"a", b"b")
    time.sleep(0.01)
    later = int(time.time() * 1000)
    append(log, topic, b"c")
    offsets = log.reader.offsets
    assert offsets(topic, Place("beginning")) == {0: 0}
    assert offsets(topic, Place("end")) == {0: 3}
    assert offsets(topic, Place("offset", 2)) == {0: 2}
    assert offsets(topic, Place("offset", 99)) == {0: 3}
    assert offsets(topic, Place("timestamp", later)) == {0: 2}
    assert offsets(topic, Place("timestamp", later + 10**6)) == {0: 3}
    assert offsets(topic, Place("timestamp", -1)) == {0: 0}  # before 1970, and no word of Kafka's


def test_every_partition_has_its_own_place(log: LogUnderTest) -> None:
    topic = log.new_topic(3)
    append(log, topic, b"a", b"b")
    assert sorted(log.reader.offsets(topic, Place("offset", 1)).values()) == [0, 0, 1]
    assert sorted(log.reader.offsets(topic, Place("end")).values()) == [0, 0, 2]
    late = Place("timestamp", int(time.time() * 1000) + 10**6)
    assert sorted(log.reader.offsets(topic, late).values()) == [0, 0, 2]
    early = Place("timestamp", 1)
    assert sorted(log.reader.offsets(topic, early).values()) == [0, 0, 0]


def test_a_cursor_gives_what_came_since(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    cursor = log.reader.cursor(topic, 0, start=Place("beginning"), end=None)
    try:
        for value in (b"a", b"b"):
            append(log, topic, value)
            found: list[bytes | None] = []
            while not found:
                found = [record.value for record in cursor.fetch(10)]
            assert found == [value]
    finally:
        cursor.close()


def look_until(watch: PointerWatch, wanted: str) -> None:
    deadline = time.monotonic() + 30
    while watch.look() != wanted:
        assert time.monotonic() < deadline, f"the watch never saw {wanted}"
        time.sleep(0.02)


def test_the_register_keeps_what_is_written_and_a_watch_sees_the_pointer_move(
    log: LogUnderTest,
) -> None:
    register = GenerationLog(log.reader, log.appender, log.new_topic(3))
    watch = register.watch()
    assert watch.look() == MAIN
    register.write(Generation(name="v2", state="ready"))
    register.point(Pointer().to("v2"))
    look_until(watch, "v2")
    known = register.read()
    assert (known.current, known.state("v2"), known.state(MAIN)) == ("v2", "promoted", "ready")
    register.point(known.pointer.back())
    look_until(watch, MAIN)
    watch.close()
    register.point(Pointer().to("v2"))
    look_until(watch, "v2")  # it opens another reader by itself
    watch.close()


@pytest.mark.parametrize("log", ["kafka"], indirect=True)
@pytest.mark.kafka
def test_a_topic_that_was_never_made_means_the_first_generation(log: LogUnderTest) -> None:
    register = GenerationLog(log.reader, log.appender, "never-made.generations")
    assert register.read().current == MAIN
    assert register.watch().look() == MAIN


def test_a_log_that_is_away_leaves_the_pointer_where_it_was(
    log: LogUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    topic = log.new_topic(1)
    register = GenerationLog(log.reader, log.appender, topic)
    register.point(Pointer().to("v2"))
    watch = register.watch()
    look_until(watch, "v2")

    class Away:
        def fetch(self, limit: int) -> list[object]:
            raise ServiceUnavailable("kafka", "away")

        def close(self) -> None:
            pass

    watch._cursor.close()  # type: ignore[union-attr]
    watch._cursor = Away()  # type: ignore[assignment]
    assert watch.look() == "v2"
    assert "cannot be followed" in caplog.text

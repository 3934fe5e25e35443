"""What every log promises a reader: order, places, resuming, back-pressure, stopping."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from connectors.log import EndAt, Place, StartAt, partition_of
from stores.records import LogRecord, OutRecord
from tests.contract.conftest import LogUnderTest
from tests.contract.flows_on_logs import AbortOnce, read_into, recovery_store, values

AWKWARD: list[OutRecord] = [
    OutRecord("", b"k", b"plain"),
    OutRecord("", "作用域/🙂".encode(), '记忆\n\u2028\x00"quote"'.encode()),
    OutRecord("", b"\xff\xfe", b"\x80\x81\n\x00"),
    OutRecord("", None, b"no key"),
    OutRecord("", b"", b""),
    OutRecord("", b"no value", None),
    OutRecord("", b"k", b"v", (("a", b"1"), ("a", b"\xff"), ("", b""), ("名", "头".encode()))),
    OutRecord("", b"looks encoded", b'{"base64":"AA=="}'),
]


def fill(log: LogUnderTest, topic: str, count: int, *, key: bytes = b"k", first: int = 0) -> None:
    log.appender.append(
        [OutRecord(topic, key, f"{first + index}".encode()) for index in range(count)]
    )


def numbers(records: list[LogRecord]) -> list[int]:
    return [int(record.value or b"") for record in records]


def test_every_kind_of_bytes_comes_back(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    log.appender.append([OutRecord(topic, each.key, each.value, each.headers) for each in AWKWARD])
    read = read_into([], log.source(topic, end=EndAt.latest()))
    assert [(r.key, r.value, r.headers) for r in read] == [
        (each.key, each.value, each.headers) for each in AWKWARD
    ]
    assert [r.position.offset for r in read] == list(range(len(AWKWARD)))


def test_keys_split_over_partitions_the_same_way_and_in_order(log: LogUnderTest) -> None:
    topic = log.new_topic(3)
    keys = [b"", *(f"tenant/agent/user-{index}".encode() for index in range(60))]
    out = [OutRecord(topic, key, b"%d" % turn) for turn in range(3) for key in keys]
    positions = log.appender.append(out)
    assert [p.partition for p in positions] == [partition_of(r.key, 3) for r in out]
    assert {p.partition for p in positions} == {0, 1, 2}
    read = read_into([], log.source(topic, end=EndAt.latest()))
    assert {r.position: r.value for r in read} == dict(
        zip(positions, [r.value for r in out], strict=True)
    )
    for partition in range(3):
        offsets = [r.position.offset for r in read if r.position.partition == partition]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (StartAt.beginning(), EndAt.latest(), range(10)),
        (StartAt.end(), EndAt.latest(), range(0)),
        (StartAt.offset(4), EndAt.latest(), range(4, 10)),
        (StartAt.beginning(), EndAt.offset(4), range(4)),
        (StartAt.offset(4), EndAt.offset(7), range(4, 7)),
        (StartAt.offset(7), EndAt.offset(4), range(0)),
        (StartAt(partitions={0: Place("offset", 9)}), EndAt.latest(), range(9, 10)),
        (StartAt(), EndAt(partitions={0: Place("offset", 1)}), range(1)),
    ],
)
def test_places(log: LogUnderTest, start: StartAt, end: EndAt, expected: range) -> None:
    topic = log.new_topic(1)
    fill(log, topic, 10)
    read = read_into([], log.source(topic, start=start, end=end, batch_size=3))
    assert numbers(read) == list(expected)
    assert numbers(list(log.reader.read(topic, start, end))) == list(expected)


def test_places_by_time(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    fill(log, topic, 2)
    second = 0
    while not second:  # the log's clock counts milliseconds: append until a later one begins
        fill(log, topic, 1, first=2)
        stamped = list(log.reader.read(topic, StartAt(), EndAt()))
        if stamped[-1].timestamp_ms > stamped[0].timestamp_ms:
            second = stamped[-1].timestamp_ms
    fill(log, topic, 1, first=3)
    stamped = list(log.reader.read(topic, StartAt(), EndAt()))
    later = [r for r in stamped if r.timestamp_ms >= second]
    earlier = [r for r in stamped if r.timestamp_ms < second]
    assert earlier and later
    source = log.source(topic, start=StartAt.timestamp(second), end=EndAt.latest())
    assert read_into([], source) == later
    assert read_into([], log.source(topic, end=EndAt.timestamp(second))) == earlier
    far = stamped[-1].timestamp_ms + 1_000_000
    source = log.source(topic, start=StartAt.timestamp(far), end=EndAt.latest())
    assert read_into([], source) == []
    assert read_into([], log.source(topic, end=EndAt.timestamp(far))) == stamped


def test_an_empty_topic_ends(log: LogUnderTest) -> None:
    topic = log.new_topic(2)
    assert read_into([], log.source(topic, end=EndAt.latest())) == []
    assert log.reader.partitions(topic) == 2
    assert log.reader.end_offsets(topic) == {0: 0, 1: 0}


def test_end_offsets_count_records(log: LogUnderTest) -> None:
    topic = log.new_topic(2)
    fill(log, topic, 3, key=b"k")
    expected = {0: 0, 1: 0, partition_of(b"k", 2): 3}
    assert log.reader.end_offsets(topic) == expected


@pytest.mark.parametrize("after", [5, 10])
def test_an_abort_loses_nothing_and_keeps_order(
    log: LogUnderTest, tmp_path: Path, after: int
) -> None:
    topic = log.new_topic(2)
    keys = [b"k", b"other-key"]
    assert {partition_of(key, 2) for key in keys} == {0, 1}
    for key in keys:
        fill(log, topic, 8, key=key)
    recovery = recovery_store(tmp_path / "recovery")
    source = AbortOnce(log.source(topic, end=EndAt.latest(), batch_size=2), after)
    seen: list[LogRecord] = []
    read_into(seen, source, recovery)
    before = len(seen)
    assert before < 16
    read_into(seen, source, recovery)
    for partition in (0, 1):
        again = [r for r in seen[before:] if r.position.partition == partition]
        assert numbers(again) == list(range(8))[8 - len(again) :]
        first = [r for r in seen[:before] if r.position.partition == partition]
        assert set(numbers(first)) | set(numbers(again)) == set(range(8))
    assert len(seen) < 16 + before  # it resumed, it did not begin anew
    assert read_into([], source, recovery) == []


def test_a_snapshot_goes_before_start(log: LogUnderTest, tmp_path: Path) -> None:
    topic = log.new_topic(1)
    fill(log, topic, 3)
    recovery = recovery_store(tmp_path / "recovery")
    source = log.source(topic, start=StartAt.end(), end=EndAt.latest())
    assert read_into([], source, recovery) == []
    fill(log, topic, 2, first=3)
    # "end" was pinned to a number at the first run: what came since is not skipped
    assert numbers(read_into([], source, recovery)) == [3, 4]
    assert read_into([], source, recovery) == []


def test_while_paused_nothing_is_read(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    fill(log, topic, 6)
    seen: list[LogRecord] = []
    asked: list[int] = []

    def paused() -> bool:
        """Pause at two records until asked five times more."""
        if len(seen) == 2 and len(asked) < 5:
            asked.append(len(seen))
            return True
        return False

    read_into(seen, log.source(topic, end=EndAt.latest(), paused=paused, batch_size=2))
    assert asked == [2, 2, 2, 2, 2]
    assert numbers(seen) == list(range(6))


def test_a_stop_ends_the_flow_and_the_next_run_goes_on(log: LogUnderTest, tmp_path: Path) -> None:
    topic = log.new_topic(1)
    fill(log, topic, 6)
    recovery = recovery_store(tmp_path / "recovery")
    seen: list[LogRecord] = []
    follows = log.source(topic, stopping=lambda: len(seen) >= 2, batch_size=2)
    read_into(seen, follows, recovery)
    assert numbers(seen) == [0, 1]
    read_into(seen, log.source(topic, end=EndAt.latest()), recovery)
    assert numbers(seen) == list(range(6))


def test_following_sees_what_is_appended_later(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    fill(log, topic, 2)
    seen: list[LogRecord] = []

    def appends() -> None:
        while len(seen) < 2:
            threading.Event().wait(0.005)
        fill(log, topic, 2, first=2)

    thread = threading.Thread(target=appends)
    thread.start()
    read_into(seen, log.source(topic, stopping=lambda: len(seen) >= 4))
    thread.join()
    assert numbers(seen) == [0, 1, 2, 3]


def test_an_offset_that_is_not_there_means_the_beginning_and_a_warning(
    log: LogUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    topic = log.new_topic(1)
    fill(log, topic, 3)
    seen = read_into([], log.source(topic, start=StartAt.offset(50), end=EndAt.latest()))
    assert values(seen) == [b"0", b"1", b"2"]
    assert "offset 50" in caplog.text

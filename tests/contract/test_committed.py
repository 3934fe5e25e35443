"""How far a group has read: noted by snapshots, by partition, for lag and audit alone."""

from __future__ import annotations

from connectors.log import EndAt, StartAt
from stores.records import OutRecord
from tests.contract.conftest import LogUnderTest
from tests.contract.flows_on_logs import read_into


def test_a_group_notes_how_far_it_has_read(log: LogUnderTest) -> None:
    topic = log.new_topic(2)
    group = f"group-of-{topic}"
    assert log.reader.committed(group, topic) == {}
    log.appender.append([OutRecord(topic, b"user-%d" % n, b"v") for n in range(20)])
    assert len(read_into([], log.source(topic, end=EndAt.latest()))) == 20
    ends = log.reader.end_offsets(topic)
    assert sum(ends.values()) == 20
    assert log.reader.committed(group, topic) == ends
    assert log.reader.committed("another", topic) == {}


def test_nothing_resumes_from_it(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    log.appender.append([OutRecord(topic, b"k", b"v")] * 3)
    for _ in range(2):
        assert len(read_into([], log.source(topic, end=EndAt.latest()))) == 3


def test_a_part_that_was_read_counts_up_to_its_end(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    group = f"group-of-{topic}"
    assert log.reader.committed(group, topic) == {}  # waits until the brokers keep groups
    log.appender.append([OutRecord(topic, b"k", b"v")] * 5)
    read_into([], log.source(topic, start=StartAt.beginning(), end=EndAt.offset(2)))
    assert log.reader.committed(group, topic) == {0: 2}

"""What every log promises a writer."""

from __future__ import annotations

import threading
from pathlib import Path

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, cluster_main

from connectors.dataflow import write_records
from connectors.log import MAX_RECORD_BYTES, EndAt, StartAt
from stores.errors import OversizedInput
from stores.records import LogRecord, OutRecord, Position
from tests.contract.conftest import LogUnderTest
from tests.contract.flows_on_logs import read_into, recovery_store, values, write
from tests.rig.thread_states import ThreadStates


def test_what_a_sink_writes_can_be_read(log: LogUnderTest, tmp_path: Path) -> None:
    first, second = log.new_topic(2), log.new_topic(1)
    out = [
        OutRecord(topic, key, f"{topic} {key!r} {turn}".encode(), (("turn", b"%d" % turn),))
        for turn in range(20)
        for topic in (first, second)
        for key in (b"a", b"b", b"\xff", None)
    ]
    write(out, log.sink, recovery_store(tmp_path / "recovery"))
    for topic in (first, second):
        read = read_into([], log.source(topic, end=EndAt.latest()))
        expected = [record for record in out if record.topic == topic]
        assert len(read) == len(expected)
        for key in (b"a", b"b", b"\xff"):  # order is promised per key
            assert [(r.value, r.headers) for r in read if r.key == key] == [
                (r.value, r.headers) for r in expected if r.key == key
            ]


def test_positions_are_given_in_the_order_of_the_records(log: LogUnderTest) -> None:
    first, second = log.new_topic(1), log.new_topic(1)
    out = [OutRecord(t, b"k", b"v") for t in (first, second, first)]
    assert log.appender.append(out) == [
        Position(first, 0, 0),
        Position(second, 0, 0),
        Position(first, 0, 1),
    ]
    assert log.appender.append([]) == []


def test_an_oversized_record_is_named_and_its_content_is_not(log: LogUnderTest) -> None:
    topic = log.new_topic(1)
    secret = b"secret " * (MAX_RECORD_BYTES // 7 + 100_000)
    with pytest.raises(OversizedInput, match=f"record 1 for topic {topic}") as caught:
        log.appender.append([OutRecord(topic, b"k", b"v"), OutRecord(topic, b"k", secret)])
    assert "secret" not in str(caught.value)


def test_threads_append_side_by_side(log: LogUnderTest) -> None:
    topic = log.new_topic(1)

    def append(name: str) -> None:
        for turn in range(10):
            log.appender.append([OutRecord(topic, b"k", f"{name}{turn}".encode())])

    threads = [threading.Thread(target=append, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = list(log.reader.read(topic, StartAt(), EndAt()))
    assert [r.position.offset for r in read] == list(range(30))
    for name in "abc":
        own = [value for value in values(read) if value and value.startswith(name.encode())]
        assert own == [f"{name}{turn}".encode() for turn in range(10)]


def test_workers_keep_their_thread_state_between_two_calls(log: LogUnderTest) -> None:
    """Two workers run in threads of Bytewax's; what is local to a thread shows its state."""
    source = log.new_topic(2)
    log.appender.append([OutRecord(source, b"%d" % number, b"") for number in range(100)])
    states = ThreadStates()

    def look(batch: list[LogRecord]) -> list[LogRecord]:
        states.look()
        return batch

    flow = Dataflow("look")
    records = op.input("log", flow, log.source(source, end=EndAt.latest(), batch_size=7))
    op.output("seen", op.flat_map_batch("look", records, look), TestingSink([]))
    cluster_main(flow, [], 0, worker_count_per_proc=2)
    assert len(states.calls) > len(set(states.calls))
    assert sorted(states.begun) == sorted(set(states.calls))


def test_two_workers_copy_a_topic_whole_and_in_order(log: LogUnderTest) -> None:
    source, target = log.new_topic(3), log.new_topic(3)
    keys = [f"user-{number}".encode() for number in range(20)]
    out = [OutRecord(source, key, b"%d" % turn) for turn in range(10) for key in keys]
    log.appender.append(out)
    flow = Dataflow("copy")
    records = op.input("log", flow, log.source(source, end=EndAt.latest(), batch_size=7))
    copies = op.map(
        "copy",
        records,
        lambda record: (str(record.key), [OutRecord(target, record.key, record.value)]),
    )
    write_records("sink", copies, log.sink)
    cluster_main(flow, [], 0, worker_count_per_proc=2)
    read = list(log.reader.read(target, StartAt(), EndAt()))
    assert len(read) == len(out)
    for key in keys:
        assert [r.value for r in read if r.key == key] == [b"%d" % turn for turn in range(10)]

"""What only the file log has: torn tails, several processes, its own files."""

from __future__ import annotations

import json
import multiprocessing
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from connectors.dataflow import partition_name
from connectors.filelog import FileLog, FileLogSource
from connectors.log import EndAt, Place, StartAt
from stores.errors import ServiceUnavailable, SettingsError, UserError
from stores.records import OutRecord

TOPIC = "sediment.l0.events"
START = datetime(2025, 6, 1, tzinfo=timezone.utc)


class Clock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> datetime:
        return self.time


def records(*values: bytes) -> list[OutRecord]:
    return [OutRecord(TOPIC, b"k", value) for value in values]


def read(log: FileLog) -> list[tuple[int, bytes | None]]:
    everything = log.read(TOPIC, StartAt(), EndAt())
    return [(record.position.offset, record.value) for record in everything]


def file_of(root: Path) -> Path:
    return root / TOPIC / "partition-0.jsonl"


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    return FileLog(tmp_path, Clock())


def test_a_line_is_json_that_a_person_can_read(log: FileLog, tmp_path: Path) -> None:
    log.append([OutRecord(TOPIC, b"\xff", "记忆".encode(), (("h", b"x"),))])
    assert json.loads(file_of(tmp_path).read_text()) == {
        "offset": 0,
        "timestamp_ms": int(START.timestamp() * 1000),
        "key": {"base64": "/w=="},
        "value": "记忆",
        "headers": [["h", "x"]],
    }


@pytest.mark.parametrize("torn", [b"{", b'{"offset":2,"value":"half', b"\x00" * 5000])
def test_a_torn_last_line_is_not_read_and_the_next_append_repairs_it(
    log: FileLog, tmp_path: Path, torn: bytes
) -> None:
    log.append(records(b"a", b"b"))
    following = log.cursor(TOPIC, 0, start=Place("beginning"), end=None)
    with file_of(tmp_path).open("ab") as file:
        file.write(torn)
    assert len(following.fetch(10)) == 2
    assert following.fetch(10) == []
    assert read(log) == [(0, b"a"), (1, b"b")]
    assert log.end_offsets(TOPIC) == {0: 2}
    log.append(records(b"c"))
    assert [record.value for record in following.fetch(10)] == [b"c"]
    following.close()
    assert read(FileLog(tmp_path, Clock())) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert file_of(tmp_path).read_bytes().endswith(b"\n")  # nothing of the torn line is left


def test_a_file_that_is_only_a_torn_line_begins_anew(log: FileLog, tmp_path: Path) -> None:
    log.create_topic(TOPIC, 1)
    file_of(tmp_path).write_bytes(b'{"offset":0')
    log.append(records(b"a"))
    assert read(log) == [(0, b"a")]


def test_a_long_line_is_read_whole(log: FileLog) -> None:
    long = b"x" * 3_000_000
    log.append(records(b"a", long, b"b"))
    assert read(log) == [(0, b"a"), (1, long), (2, b"b")]


def _append_many(root: Path, name: bytes, count: int) -> None:
    log = FileLog(root, Clock())
    for index in range(count):
        log.append(records(b"%s-%d" % (name, index), b"%s-%d again" % (name, index)))


def test_two_processes_append_without_mixing(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_append_many, args=(tmp_path, n, 100)) for n in (b"a", b"b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    found = read(FileLog(tmp_path, Clock()))
    assert [offset for offset, _ in found] == list(range(400))
    for name in (b"a", b"b"):
        own = [value for _, value in found if value and value.startswith(name)]
        assert own == [
            value
            for index in range(100)
            for value in (b"%s-%d" % (name, index), b"%s-%d again" % (name, index))
        ]


def test_the_first_partition_count_stays(log: FileLog, tmp_path: Path) -> None:
    assert log.create_topic(TOPIC, 3) == 3
    assert FileLog(tmp_path, Clock(), partitions=5).partitions(TOPIC) == 3
    source = FileLogSource(log, TOPIC)
    assert source.list_parts() == [partition_name(TOPIC, number) for number in range(3)]


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "记忆", "x" * 250])
def test_a_topic_name_that_kafka_refuses_is_refused(log: FileLog, name: str) -> None:
    with pytest.raises(SettingsError, match="topic name"):
        log.append([OutRecord(name, None, b"v")])


def test_a_snapshot_of_a_replaced_file_is_found_again_by_its_offset(
    log: FileLog, tmp_path: Path
) -> None:
    log.append(records(b"a", b"b", b"c"))
    cursor = log.cursor(TOPIC, 0, start=Place("beginning"), end=None)
    cursor.fetch(2)
    snapshot = cursor.snapshot()
    cursor.close()
    lines = file_of(tmp_path).read_bytes().splitlines(keepends=True)
    file_of(tmp_path).write_bytes(lines[0].replace(b'"a"', b'"much longer"') + b"".join(lines[1:]))
    resumed = log.cursor(TOPIC, 0, start=Place("end"), end=None, resume=snapshot)
    assert [record.value for record in resumed.fetch(10)] == [b"c"]
    resumed.close()


def test_times_find_records(tmp_path: Path) -> None:
    clock = Clock()
    log = FileLog(tmp_path, clock)
    for second in range(5):
        clock.time = START.replace(second=second)
        log.append(records(b"%d" % second))
    at = int(START.timestamp() * 1000)
    found = log.read(TOPIC, StartAt.timestamp(at + 1500), EndAt.timestamp(at + 3001))
    assert [record.value for record in found] == [b"2", b"3"]


def test_a_damaged_line_is_named(log: FileLog, tmp_path: Path) -> None:
    log.append(records(b"a", b"b"))
    path = file_of(tmp_path)
    path.write_bytes(b"garbage" + path.read_bytes()[7:])
    with pytest.raises(UserError, match=r"partition-0\.jsonl: the line at byte 0"):
        read(log)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error_that_names_the_record(log: FileLog, tmp_path: Path) -> None:
    log.create_topic(TOPIC, 1)
    file_of(tmp_path).unlink()
    file_of(tmp_path).symlink_to("/dev/full")
    with pytest.raises(ServiceUnavailable, match=f"record 0 for topic {TOPIC}.*No space left"):
        log.append(records(b"a"))

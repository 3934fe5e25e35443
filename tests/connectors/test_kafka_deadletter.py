"""Dead letters carry the original untouched and say what happened to it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from connectors.kafka.connection import KafkaConnection
from connectors.kafka.deadletter import HEADER_NAMES, dead_letter, parse_dead_letter
from connectors.kafka.sink import KafkaAppender
from connectors.kafka.source import KafkaLog
from connectors.kafka.topics import create_topics
from connectors.log import EndAt, StartAt
from stores.errors import InvalidEvent
from stores.records import MAX_EVENT_BYTES, LogRecord, OutRecord, Position
from tests.rig.kafka import KafkaBroker

ORIGINAL = LogRecord(
    Position("sediment.l0.events", 3, 4711),
    1_750_000_000_123,
    b"acme/\xff",
    b"\x80 not an event",
    (("trace", b"\x01\xff"), ("trace", b"again")),
)
FIRST = datetime(2025, 6, 1, 8, 0, 0, 123456, tzinfo=timezone.utc)
LAST = FIRST + timedelta(seconds=65)


def letter_for(record: LogRecord, error: str = "502 from the gateway") -> OutRecord:
    return dead_letter(
        record,
        topic="sediment.l1.dlq",
        stage="l1",
        error_class="ServiceUnavailable",
        reason="unavailable",
        error=error,
        attempt=4,
        first_failed_at=FIRST,
        last_failed_at=LAST,
        pipeline="0.1.0",
        window_id="w1",
    )


def as_read(out: OutRecord) -> LogRecord:
    return LogRecord(Position(out.topic, 0, 9), 1, out.key, out.value, out.headers)


def test_a_dead_letter_reads_back_as_it_was_written() -> None:
    out = letter_for(ORIGINAL)
    assert (out.topic, out.key, out.value) == ("sediment.l1.dlq", ORIGINAL.key, ORIGINAL.value)
    assert out.headers[:2] == ORIGINAL.headers
    assert tuple(name for name, _ in out.headers[2:]) == HEADER_NAMES
    letter = parse_dead_letter(as_read(out))
    assert letter.record == ORIGINAL
    assert (letter.stage, letter.attempt, letter.pipeline) == ("l1", 4, "0.1.0")
    assert letter.window_id == "w1"
    assert (letter.error_class, letter.reason) == ("ServiceUnavailable", "unavailable")
    assert letter.error == "502 from the gateway"
    assert (letter.first_failed_at, letter.last_failed_at) == (FIRST, LAST)


@pytest.mark.parametrize("part", [None, b""])
def test_missing_and_empty_stay_apart(part: bytes | None) -> None:
    record = replace(ORIGINAL, key=part, value=part, headers=())
    assert parse_dead_letter(as_read(letter_for(record))).record == record


def test_a_long_error_text_is_cut() -> None:
    assert parse_dead_letter(as_read(letter_for(ORIGINAL, "错" * 5000))).error == "错" * 1000


def test_a_dead_letter_of_a_dead_letter_keeps_the_first_one() -> None:
    first = as_read(letter_for(ORIGINAL))
    second = parse_dead_letter(as_read(letter_for(first)))
    assert second.record == first
    assert parse_dead_letter(second.record).record == ORIGINAL


@pytest.mark.parametrize("name", HEADER_NAMES)
def test_a_record_without_one_of_the_headers_is_not_a_dead_letter(name: str) -> None:
    whole = as_read(letter_for(ORIGINAL))
    lacking = replace(whole, headers=tuple(h for h in whole.headers if h[0] != name))
    with pytest.raises(InvalidEvent, match=f"lacks the header {name}"):
        parse_dead_letter(lacking)


def test_a_header_of_the_wrong_kind_is_an_error() -> None:
    whole = as_read(letter_for(ORIGINAL))
    wrong = replace(whole, headers=(*whole.headers, ("sediment-offset", b"\xff")))
    with pytest.raises(InvalidEvent, match="not of its kind"):
        parse_dead_letter(wrong)


@pytest.mark.kafka
def test_an_event_too_large_to_be_one_fits_with_its_headers(kafka_broker: KafkaBroker) -> None:
    connection = KafkaConnection(kafka_broker.bootstrap)
    prefix = kafka_broker.create_topic()
    create_topics(connection, prefix, 1)
    # random-looking, so that compression does not help it through
    value = b"".join(str(number * 7919 % 10**9).encode() for number in range(900_000))
    assert value and len(value) > 7 * MAX_EVENT_BYTES
    appender, reader = KafkaAppender(connection), KafkaLog(connection)
    appender.append([OutRecord(f"{prefix}.l0.events", b"k", value)])
    (record,) = reader.read(f"{prefix}.l0.events", StartAt(), EndAt())
    letter = letter_for(record)
    appender.append([replace(letter, topic=f"{prefix}.l0.dlq")])
    (found,) = reader.read(f"{prefix}.l0.dlq", StartAt(), EndAt())
    assert parse_dead_letter(found).record == record
    assert parse_dead_letter(found).record.value == value

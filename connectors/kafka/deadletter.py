"""Dead letters: the original record, untouched, with headers that say what happened to it.

Key, value and headers of the original stay as they were. Ours come after them, under the
prefix ``sediment-``, as text. They hold no payload: the caller gives an error text that never
quotes conversation text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from stores.errors import InvalidEvent
from stores.records import Headers, LogRecord, OutRecord, Position

__all__ = ["HEADER_NAMES", "DeadLetter", "dead_letter", "parse_dead_letter", "split_headers"]

_PREFIX = "sediment-"
_MAX_ERROR_CHARS = 1000

HEADER_NAMES: tuple[str, ...] = tuple(
    _PREFIX + name
    for name in (
        "stage",
        "topic",
        "partition",
        "offset",
        "timestamp-ms",
        "attempt",
        "error-class",
        "reason",
        "error",
        "first-failed-at",
        "last-failed-at",
        "pipeline",
        "window-id",
    )
)
"""Every header we add, in the order of writing."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, read back.

    :arg record: the original record as it was, with the place it came from.
    :arg attempt: how many times it was tried.
    :arg reason: machine-readable, the ``reason`` of the error.
    :arg error: what was wrong, for a person; at most 1000 characters.
    :arg pipeline: version of the pipeline that gave up.
    :arg window_id: the window that was given up; empty for a record that never reached one.
    """

    record: LogRecord
    stage: str
    attempt: int
    error_class: str
    reason: str
    error: str
    first_failed_at: datetime
    last_failed_at: datetime
    pipeline: str
    window_id: str


def dead_letter(
    record: LogRecord,
    *,
    topic: str,
    stage: str,
    error_class: str,
    reason: str,
    error: str,
    attempt: int,
    first_failed_at: datetime,
    last_failed_at: datetime,
    pipeline: str,
    window_id: str = "",
) -> OutRecord:
    """Build the record that goes to the dead-letter ``topic``; same input, same bytes.

    It has the original key, so one scope's dead letters keep their order.

    :arg error: what was wrong, for a person, without conversation text; cut at 1000 characters.
    :arg window_id: the window that was given up; empty for a record that never reached one.
    """
    values = (
        stage,
        record.position.topic,
        str(record.position.partition),
        str(record.position.offset),
        str(record.timestamp_ms),
        str(attempt),
        error_class,
        reason,
        error[:_MAX_ERROR_CHARS],
        first_failed_at.isoformat(),
        last_failed_at.isoformat(),
        pipeline,
        window_id,
    )
    added = tuple((name, value.encode()) for name, value in zip(HEADER_NAMES, values, strict=True))
    return OutRecord(topic, record.key, record.value, record.headers + added)


def parse_dead_letter(record: LogRecord) -> DeadLetter:
    """Read a dead letter back.

    The last header of each of our names counts: ours come after the original ones.

    Raises :class:`~stores.errors.InvalidEvent` when a header is missing or not of its kind.
    """
    ours, original = split_headers(record.headers, HEADER_NAMES)
    missing = [name for name in HEADER_NAMES if name not in ours]
    if missing:
        raise _not_a_dead_letter(record.position, f"lacks the header {missing[0]}", missing[0])
    try:
        stage, topic, partition, offset, timestamp_ms, attempt, *texts = (
            ours[name].decode() for name in HEADER_NAMES
        )
        error_class, reason, error, first, last, pipeline, window_id = texts
        return DeadLetter(
            record=LogRecord(
                Position(topic, int(partition), int(offset)),
                int(timestamp_ms),
                record.key,
                record.value,
                original,
            ),
            stage=stage,
            attempt=int(attempt),
            error_class=error_class,
            reason=reason,
            error=error,
            first_failed_at=datetime.fromisoformat(first),
            last_failed_at=datetime.fromisoformat(last),
            pipeline=pipeline,
            window_id=window_id,
        )
    except ValueError:
        problem = "has a header that is not of its kind"
        raise _not_a_dead_letter(record.position, problem, "") from None


def split_headers(headers: Headers, names: Collection[str]) -> tuple[dict[str, bytes], Headers]:
    """Take the last header of each of ``names``, which are ours, from the original ones."""
    ours: dict[str, bytes] = {}
    original: list[tuple[str, bytes]] = []
    for name, value in reversed(headers):
        if name in names and name not in ours:
            ours[name] = value
        else:
            original.append((name, value))
    return ours, tuple(reversed(original))


def _not_a_dead_letter(position: Position, problem: str, field: str) -> InvalidEvent:
    message = (
        f"{position.topic}, partition {position.partition}, offset {position.offset}: "
        f"not a dead letter, it {problem}"
    )
    reason = "invalid_schema"
    return InvalidEvent(reason, message, field=field)

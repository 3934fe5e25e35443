"""Redriven records: a dead letter produced again, and how a flow knows it.

The original key, value and headers come again. Ours stand after them, as text: which dead
letter this is, where the original stands, and, for a window that was given up as a whole, its
place in that window. With them the flow handles the record as what it is, the original come
again: same position, same time, same window id, so the same atoms and the same outcome ids.
"""

from __future__ import annotations

import re

from connectors.kafka.deadletter import DeadLetter, split_headers
from stores.records import LogRecord, OutRecord, Position, Redriven

__all__ = ["REDRIVE_HEADER", "REDRIVE_HEADERS", "as_it_was", "redriven_from", "redriven_record"]

REDRIVE_HEADER = "sediment-redrive"
"""Its value is the place of the dead letter, as ``l1.dlq/0/17``. Only redriven records have it."""

_PLACE = (
    "sediment-stage",
    "sediment-topic",
    "sediment-partition",
    "sediment-offset",
    "sediment-timestamp-ms",
)
_WINDOW = ("sediment-window-id", "sediment-window-size", "sediment-window-index")
REDRIVE_HEADERS: tuple[str, ...] = (REDRIVE_HEADER, *_PLACE, *_WINDOW)
"""Every header a redriven record may have, in the order of writing; those about a window are
left out where there is none."""

_STAGES = frozenset({"decode", "index", "extract", "reconcile", "scenes", "persona"})
_WINDOWS_ONLY = "extract"  # what fails here is a window; behind it a request may fail as well
_WINDOW_ID = re.compile(r"[0-9a-f]{32}")
_MAX_INT = 2**63 - 1
_MAX_TIMESTAMP_MS = 253_402_300_799_999  # the last moment of year 9999


def redriven_record(
    letter: DeadLetter, place: str, *, window_size: int = 0, window_index: int = 0
) -> OutRecord:
    """Build the record that goes to the original topic again; same input, same bytes.

    :arg place: where the dead letter stands.
    :arg window_size: events of the window that was given up; 0 for a record that reached none.
    """
    position = letter.record.position
    values = [
        place,
        letter.stage,
        position.topic,
        str(position.partition),
        str(position.offset),
        str(letter.record.timestamp_ms),
    ]
    if letter.window_id:
        values += [letter.window_id, str(window_size), str(window_index)]
    added = tuple((name, value.encode()) for name, value in zip(REDRIVE_HEADERS, values))  # noqa: B905  # the window's are left out where there is none
    record = letter.record
    return OutRecord(position.topic, record.key, record.value, record.headers + added)


def redriven_from(record: LogRecord) -> str:
    """Give the place of the dead letter that ``record`` came from; empty for any other record."""
    for name, value in reversed(record.headers):
        if name == REDRIVE_HEADER:
            return value.decode("utf-8", "replace")
    return ""


def as_it_was(record: LogRecord) -> tuple[LogRecord, Redriven] | None:
    """Give the original of a redriven record; ``None`` for any other one.

    Headers that are not what :func:`redriven_record` writes make a record like any other: it
    is handled, not refused.
    """
    letter = redriven_from(record)
    if not letter:
        return None
    ours, original = split_headers(record.headers, REDRIVE_HEADERS)
    try:
        stage, topic, partition, offset, timestamp_ms = (ours[name].decode() for name in _PLACE)
        position = Position(topic, int(partition), int(offset))
        redriven = Redriven(letter, stage)
        if _WINDOW[0] in ours:
            window_id, size, index = (ours[name].decode() for name in _WINDOW)
            redriven = Redriven(letter, stage, window_id, int(size), int(index))
        was = LogRecord(position, int(timestamp_ms), record.key, record.value, original)
    except (KeyError, ValueError):
        return None
    return (was, redriven) if _possible(was, redriven) else None


def _possible(record: LogRecord, redriven: Redriven) -> bool:
    _, partition, offset = record.position
    if redriven.window_id:
        placed = _WINDOW_ID.fullmatch(redriven.window_id) is not None
    else:
        placed = redriven.stage != _WINDOWS_ONLY
    return (
        placed
        and redriven.stage in _STAGES
        and 0 <= partition <= _MAX_INT
        and 0 <= offset <= _MAX_INT
        and -1 <= record.timestamp_ms <= _MAX_TIMESTAMP_MS
        and 0 <= redriven.window_index < (redriven.window_size or 1)
    )

"""What a replay reads: which part of history, of whom, how fast. Pure but for the log's offsets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from connectors.log import EndAt, LogReader, Place, StartAt
from connectors.settings import ScopeField
from flows.decode import decode
from flows.replay.answers import AnswerTally
from stores.errors import UserError
from stores.generations import AnswerMode
from stores.ids import scope_parts
from stores.records import LogRecord, SourcedEvent

__all__ = ["Pace", "Reached", "ReplayPlan", "SharedTime", "Span", "in_scope", "place_of", "span_of"]

Wanted = Callable[[LogRecord], bool]
_MOST_AT_ONCE = 2000


def place_of(option: str, text: str) -> Place:
    """Read a place of the events topic as people write it.

    >>> place_of("--from", "beginning").kind, place_of("--from", "17")
    ('beginning', Place(kind='offset', value=17))
    >>> place_of("--to", "2026-03-01T00:00:00Z")
    Place(kind='timestamp', value=1772323200000)
    """
    if text == "beginning":
        return Place("beginning")
    if text == "end":
        return Place("end")
    if text.isdecimal():
        return Place("offset", int(text))
    try:
        # Python 3.10 does not know the Z of RFC 3339.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("z", "Z") else text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        message = (
            f"{option}: {text or 'nothing'} is none of beginning, end, an offset, "
            "a time as 2026-03-01T00:00:00Z"
        )
        raise UserError(message)
    return Place("timestamp", int(moment.timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the events topic: offsets by partition, ``ends`` exclusive."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def records(self) -> int:
        """Count the offsets in it."""
        return sum(max(0, end - self.starts[at]) for at, end in self.ends.items())

    def start_at(self) -> StartAt:
        """Give where reading begins."""
        return StartAt(partitions={at: Place("offset", one) for at, one in self.starts.items()})

    def end_at(self) -> EndAt:
        """Give where reading ends."""
        ends = {at: max(one, self.starts[at]) for at, one in self.ends.items()}
        return EndAt(partitions={at: Place("offset", one) for at, one in ends.items()})


def span_of(reader: LogReader, topic: str, start: Place, end: Place) -> Span:
    """Look both ends up as the topic is now, so that a replay always ends."""
    return Span(reader.offsets(topic, start), reader.offsets(topic, end))


def in_scope(fields: Sequence[ScopeField], ids: Mapping[str, str]) -> Wanted | None:
    """Tell the records of scopes that have these ids; ``None`` when all records are wanted.

    A record that is not an event has no scope: it is not wanted then.
    """
    if not ids:
        return None
    if unknown := sorted(set(ids) - set(fields)):
        message = f"--{unknown[0]}: the scope is made of {', '.join(fields)}"
        raise UserError(message)

    def wanted(record: LogRecord) -> bool:
        decoded = decode(record, fields)
        if not isinstance(decoded, SourcedEvent):
            return False
        parts = dict(zip(fields, scope_parts(decoded.scope), strict=True))
        return all(parts[name] == value for name, value in ids.items())  # type: ignore[index]

    return wanted


class SharedTime(Protocol):
    """A time that several share, behind a lock: a ``multiprocessing.Value`` is one."""

    value: float

    def get_lock(self) -> AbstractContextManager[Any]:
        """Give the lock to hold from reading to writing."""
        ...


class _OwnTime:
    """A time of one process."""

    def __init__(self) -> None:
        self.value = 0.0
        self._lock = threading.Lock()

    def get_lock(self) -> AbstractContextManager[Any]:
        return self._lock


class Pace:
    """Holds reading back to so many events per second, over all partitions. Thread-safe.

    :arg rate: events per second; 0 is as fast as it goes.
    :arg monotonic: seconds; where processes share a pace, from the same beginning in all.
    :arg free_at: when something may be read again; processes that share it keep to one pace.
    """

    def __init__(
        self, rate: float, monotonic: Callable[[], float], free_at: SharedTime | None = None
    ) -> None:
        self.rate = rate
        self._monotonic = monotonic
        self._free_at = free_at or _OwnTime()

    def wait_s(self) -> float:
        """Give the seconds until something may be read again; 0 for now."""
        if not self.rate:
            return 0.0
        with self._free_at.get_lock():
            return max(0.0, self._free_at.value - self._monotonic())

    def spend(self, events: int) -> None:
        """Count events that were read."""
        if self.rate:
            free_at = self._free_at
            with free_at.get_lock():
                free_at.value = max(free_at.value, self._monotonic()) + events / self.rate

    @property
    def batch_size(self) -> int:
        """Give the events to read at once: a twentieth of a second's, or very many without a pace.

        The more are read at once, the more of a scope go through the dataflow together.
        """
        return max(1, min(_MOST_AT_ONCE, int(self.rate / 20))) if self.rate else _MOST_AT_ONCE


@dataclass(slots=True)
class Reached:
    """How far reading is: the offset after the last record, by partition."""

    offsets: dict[int, int] = field(default_factory=dict)

    def within(self, span: Span) -> int:
        """Count the offsets of ``span`` that are behind it."""
        return sum(
            max(0, min(offset, span.ends[at]) - span.starts[at])
            for at, offset in list(self.offsets.items())
            if at in span.ends
        )


@dataclass(frozen=True)
class ReplayPlan:
    """One run of a flow over history.

    :arg span: what to read; when the flow then follows, only where to begin.
    :arg follow: go on with live traffic; sessions then also close by processing time.
    :arg keep_open: leave open windows open at the end, because the flow will go on from there.
    """

    span: Span
    wanted: Wanted | None
    pace: Pace
    answers: AnswerMode
    tally: AnswerTally
    reached: Reached
    follow: bool = False
    keep_open: bool = False

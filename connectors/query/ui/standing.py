"""How the pipeline stands, as its topics say: lag, dead letters, outcomes. Blocking.

Bounded: of the outcomes and of the dead letters only the newest are read. What one process knows
of its own stages is :mod:`connectors.query.ui.stages`'.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from pydantic import ValidationError

from connectors.kafka.deadletter import parse_dead_letter
from connectors.kafka.topics import DEAD_LETTER_TOPICS
from connectors.log import EndAt, LogReader, Place, StartAt
from connectors.settings import Settings
from stores.errors import InvalidEvent, SedimentError
from stores.records import LogRecord, Outcome

__all__ = [
    "UNREADABLE",
    "Ended",
    "FlowLag",
    "FlowPlace",
    "Letter",
    "LogView",
    "Newest",
    "Standing",
    "StandingCache",
    "read_standing",
]

T = TypeVar("T")

UNREADABLE = "unreadable"
"""Stage or result of a record that is not what its topic should hold."""

_NEWEST_OUTCOMES = 2000
_NEWEST_LETTERS = 1000
_FRESH_S = 3.0  # between two looks at the log, however many look at the page


@dataclass(frozen=True, slots=True)
class FlowPlace:
    """What a flow reads: its consumer group and the full name of the topic."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class LogView:
    """How to look at the pipeline: its log, and the flows by name.

    :arg own: flows that run in this process, which ends when they do.
    """

    reader: LogReader
    flows: Mapping[str, FlowPlace]
    own: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowLag:
    """How far a flow is behind in its topic, all partitions together; 0 when it is not."""

    flow: str
    topic: str
    partitions: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter without what was said: where it stands and what went wrong.

    :arg id: its place, as ``sediment dlq`` names it: ``l1.dlq/0/17``.
    :arg scope: what its key names; a producer that keys otherwise makes it no scope.
    """

    id: str
    at_ms: int
    stage: str
    reason: str
    scope: str
    error: str = ""
    attempt: int = 0
    origin: str = ""
    window_id: str = ""
    first_failed_at: datetime | None = None
    last_failed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """One outcome, and the log's time of it in ms. ``None``: a record that is no outcome."""

    at_ms: int
    outcome: Outcome | None

    @property
    def result(self) -> str:
        """How it ended."""
        return self.outcome.result if self.outcome else UNREADABLE


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest records of some topics, the newest first, and how many there are in all."""

    records: tuple[tuple[str, LogRecord], ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """How the pipeline stands.

    :arg ended: the newest outcomes, the newest first; ``letters`` the same of dead letters.
    :arg problems: what could not be read, and why.
    """

    flows: tuple[FlowLag, ...] = ()
    ended: tuple[Ended, ...] = ()
    ended_total: int = 0
    letters: tuple[Letter, ...] = ()
    letters_total: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def minutes(self) -> float:
        """Minutes from the oldest to the newest of the outcomes, at least one."""
        times = [one.at_ms for one in self.ended]
        return max(1.0, (max(times) - min(times)) / 60_000) if times else 1.0

    def letter_counts(self) -> list[tuple[str, str, int]]:
        """Count dead letters by stage and reason, the most frequent first."""
        counts = Counter((one.stage, one.reason) for one in self.letters)
        return [(stage, reason, count) for (stage, reason), count in counts.most_common()]

    def outcome_counts(self) -> list[tuple[str, str, int]]:
        """Count outcomes by result and reason, the most frequent first."""
        counts = Counter(
            (one.result, (one.outcome.reason or "") if one.outcome else "") for one in self.ended
        )
        return [(result, reason, count) for (result, reason), count in counts.most_common()]


class StandingCache:
    """Reads the log at most every three seconds, whoever asks. Thread-safe; blocking.

    :arg monotonic: seconds.
    """

    def __init__(
        self, log: LogView, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._settings = settings
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._read: tuple[float, Standing] | None = None

    @property
    def own_flows(self) -> tuple[str, ...]:
        """Name the flows that run in this process."""
        return self._log.own

    def latest(self) -> Standing:
        """Give how the pipeline stands; never raises what the log does, see ``problems``."""
        with self._lock:
            if self._read is None or self._monotonic() - self._read[0] > _FRESH_S:
                self._read = (self._monotonic(), read_standing(self._log, self._settings))
            return self._read[1]


def read_standing(log: LogView, settings: Settings) -> Standing:
    """Read the topics. A part that cannot be read is empty and named in ``problems``."""
    problems: dict[str, str] = {}

    def attempt(part: str, read: Callable[[], T], instead: T) -> T:
        try:
            return read()
        except SedimentError as error:
            problems[part] = error.message
            return instead

    none: tuple[FlowLag, ...] = ()
    flows = attempt("flows", lambda: tuple(_lags(log)), none)
    outcomes = [settings.topic("outcomes")]
    ended = attempt("outcomes", lambda: _newest(log, outcomes, _NEWEST_OUTCOMES), Newest())
    dead = [settings.topic(name) for name in DEAD_LETTER_TOPICS]
    letters = attempt("dead letters", lambda: _newest(log, dead, _NEWEST_LETTERS), Newest())
    return Standing(
        flows=flows,
        ended=tuple(_ended(record) for _, record in ended.records),
        ended_total=ended.total,
        letters=tuple(
            _letter(f"{DEAD_LETTER_TOPICS[dead.index(topic)]}", record)
            for topic, record in letters.records
        ),
        letters_total=letters.total,
        problems=problems,
    )


def _lags(log: LogView) -> Iterator[FlowLag]:
    ends: dict[str, dict[int, int]] = {}
    for name, place in log.flows.items():
        committed = log.reader.committed(place.group, place.topic)
        if not committed:  # never ran
            continue
        if place.topic not in ends:
            ends[place.topic] = log.reader.end_offsets(place.topic)
        ahead = [
            max(0, end - committed.get(number, 0)) for number, end in ends[place.topic].items()
        ]
        end = sum(ends[place.topic].values())
        yield FlowLag(name, place.topic, len(ahead), end, sum(ahead))


def _newest(log: LogView, topics: list[str], most: int) -> Newest:
    """Read the newest records of topics: an equal share of each of their partitions."""
    ends = {topic: log.reader.end_offsets(topic) for topic in topics}
    share = max(1, most // max(1, sum(1 for one in ends.values() for end in one.values() if end)))
    found: list[tuple[str, LogRecord]] = []
    for topic, parts in ends.items():
        start = {number: Place("offset", max(0, end - share)) for number, end in parts.items()}
        until = {number: Place("offset", end) for number, end in parts.items()}
        if any(parts.values()):
            records = log.reader.read(topic, StartAt(partitions=start), EndAt(partitions=until))
            found += [(topic, record) for record in records]
    found.sort(key=lambda one: (one[1].timestamp_ms, one[1].position), reverse=True)
    return Newest(tuple(found), sum(sum(parts.values()) for parts in ends.values()))


def _ended(record: LogRecord) -> Ended:
    try:
        return Ended(record.timestamp_ms, Outcome.model_validate_json(record.value or b""))
    except ValidationError:
        return Ended(record.timestamp_ms, None)


def _letter(topic: str, record: LogRecord) -> Letter:
    _, partition, offset = record.position
    name = f"{topic}/{partition}/{offset}"
    scope = (record.key or b"").decode("utf-8", "replace")
    try:
        dead = parse_dead_letter(record)
    except InvalidEvent:
        return Letter(name, record.timestamp_ms, UNREADABLE, "", scope)
    origin = dead.record.position
    return Letter(
        id=name,
        at_ms=record.timestamp_ms,
        stage=dead.stage,
        reason=dead.reason,
        scope=scope,
        error=dead.error,
        attempt=dead.attempt,
        origin=f"{origin.topic}/{origin.partition}/{origin.offset}",
        window_id=dead.window_id,
        first_failed_at=dead.first_failed_at,
        last_failed_at=dead.last_failed_at,
    )

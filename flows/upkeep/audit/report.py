"""What an audit gives: the end of each record, and the sum of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, get_args

from stores.records import Position

__all__ = [
    "END_RESULTS",
    "AuditReport",
    "End",
    "EndResult",
    "EventEnd",
    "OpenWindow",
    "UnmatchedOutcome",
]

EndResult = Literal[
    "extracted",
    "empty",
    "skipped",
    "dead_lettered",
    "forgotten",
    "applied",
    "duplicate",
    "redriven",
    "open",
    "pending",
    "not_read",
    "unexplained",
    "conflicting",
]
END_RESULTS: tuple[EndResult, ...] = get_args(EndResult)

End = tuple[EndResult, str]
"""A result and the reason of it, empty where the result says all."""


@dataclass(frozen=True, slots=True)
class EventEnd:
    """What became of one record of the events topic.

    :arg event_id: empty, with ``scope`` and ``session_id``, for a record that is not an event.
    :arg reason: the outcome's reason, or for a fault what is wrong, in words.
    :arg outcome_id: the window's id, or that of the record's own outcome; empty without one.
    """

    position: Position
    timestamp_ms: int
    result: EndResult
    reason: str = ""
    scope: str = ""
    session_id: str = ""
    event_id: str = ""
    stage: str = ""
    outcome_id: str = ""
    attempts: int = 0
    pipeline: str = ""

    def faulty(self, result: EndResult, reason: str) -> EventEnd:
        """Turn it into a fault."""
        return replace(self, result=result, reason=reason)


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window that is open by the rules: its session, and where it begins.

    :arg since: date of its first event.
    """

    scope: str
    session_id: str
    events: int
    first: Position
    first_event_id: str
    since: datetime


@dataclass(frozen=True, slots=True)
class UnmatchedOutcome:
    """An outcome that names events which the log does not hold at these offsets."""

    outcome_id: str
    stage: str
    partition: int
    offsets: tuple[int, int]
    missing: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Where every record ended.

    :arg ends: records by result and reason, in the order of :data:`END_RESULTS`.
    :arg problems: every unexplained and conflicting record, in log order.
    :arg not_indexed: events that the index gave up, by reason; each also has an end of its own.
    :arg outcomes: different outcomes read.
    :arg repeated: outcomes that were written again with the same content.
    :arg unreadable: records of the outcomes topic that are no outcomes.
    :arg spread_scopes: scopes in several partitions, where loss cannot be proved.
    """

    records: int
    ends: Mapping[End, int]
    open_windows: Sequence[OpenWindow]
    problems: Sequence[EventEnd]
    unmatched: Sequence[UnmatchedOutcome]
    not_indexed: Mapping[str, int]
    outcomes: int
    repeated: int
    unreadable: int
    spread_scopes: int

    def count(self, result: EndResult) -> int:
        """Count the records with this result, whatever the reason."""
        return sum(count for (name, _), count in self.ends.items() if name == result)

    @property
    def clean(self) -> bool:
        """True when every record is explained and every outcome belongs to records."""
        return not self.problems and not self.unmatched and not self.unreadable

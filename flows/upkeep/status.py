"""How a pipeline stands: lag, dead letters, outcome rates, and what a running process says.

Pure: records and a metrics page in, figures out. See :mod:`flows.cli.status` for where they come
from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from connectors.kafka.deadletter import parse_dead_letter
from stores.errors import InvalidEvent
from stores.records import LogRecord, Outcome

__all__ = [
    "DeadLetterCount",
    "OutcomeRate",
    "PartitionLag",
    "dead_letter_counts",
    "log_away",
    "outcome_rates",
    "partition_lags",
]

_MINUTE_MS = 60_000
UNREADABLE = "unreadable"
"""Stands for stage or result of a record that is not what its topic should hold."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far one flow is behind in one partition of the events topic.

    :arg end: the offset after the newest record.
    :arg committed: the offset after what the flow had read at its last snapshot; 0 when it has
        noted none.
    """

    flow: str
    partition: int
    end: int
    committed: int

    @property
    def lag(self) -> int:
        """Records not read yet. A topic that was made anew has fewer than were read: then 0."""
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """Dead letters of one stage and reason. ``newest_ms`` is the log's time of the newest."""

    stage: str
    reason: str
    count: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class OutcomeRate:
    """Outcomes with one result. ``reason`` is empty where the result has none."""

    result: str
    reason: str
    count: int
    per_minute: float


def partition_lags(
    ends: Mapping[int, int], committed: Mapping[str, Mapping[int, int]]
) -> list[PartitionLag]:
    """Put ends and commits together, for each flow that has committed anything."""
    return [
        PartitionLag(flow, partition, end, offsets.get(partition, 0))
        for flow, offsets in committed.items()
        if offsets
        for partition, end in sorted(ends.items())
    ]


def dead_letter_counts(records: Iterable[LogRecord]) -> list[DeadLetterCount]:
    """Count the records of dead-letter topics by stage and reason, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], int] = {}
    for record in records:
        try:
            letter = parse_dead_letter(record)
            key = (letter.stage, letter.reason)
        except InvalidEvent:
            key = (UNREADABLE, "")
        counts[key] += 1
        newest[key] = max(newest.get(key, 0), record.timestamp_ms)
    return [DeadLetterCount(*key, count, newest[key]) for key, count in counts.most_common()]


def outcome_rates(records: Iterable[LogRecord], span_ms: int) -> list[OutcomeRate]:
    """Count outcomes by result and reason, the most frequent first.

    :arg records: the newest ones of the outcomes topic, over ``span_ms``.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for record in records:
        try:
            outcome = Outcome.model_validate_json(record.value or b"")
            counts[outcome.result, outcome.reason or ""] += 1
        except ValidationError:
            counts[UNREADABLE, ""] += 1
    minutes = span_ms / _MINUTE_MS
    return [OutcomeRate(*key, count, count / minutes) for key, count in counts.most_common()]


def log_away(page: str) -> dict[str, float]:
    """Read from a ``/metrics`` page for how long the log does not answer, by what waits for it.

    Empty when it does. Raises ``ValueError`` when it is no such page.
    """
    return {
        sample.labels["doing"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "sediment_log_away_seconds" and sample.value > 0
    }

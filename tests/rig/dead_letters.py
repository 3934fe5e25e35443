"""Dead letters for tests: windows given up by hand, and topics kept in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

from connectors.settings import ScopeField
from flows import outputs
from flows.async_stage import Failed
from flows.decode import decode
from flows.outputs import Topics
from flows.upkeep.redrive import Cases, read_letter
from stores.errors import InvalidEvent
from stores.records import LogRecord, Outcome, OutRecord, Position
from tests.rig.events import TOPIC, at

__all__ = ["FIELDS", "TOPICS", "MemoryLog", "cases_of", "given_up"]

TOPICS = Topics("sediment")
FIELDS: tuple[ScopeField, ...] = ("tenant", "agent", "user")
T = TypeVar("T")


def given_up(
    item: T, reason: str = "refused", *, seconds: float = 0, attempts: int = 1
) -> Failed[T]:
    """Give the failure of ``item``, which happened ``seconds`` after the start."""
    return Failed(
        item=item,
        reason=reason,
        error_class="RequestRefused",
        message="400: the request is wrong",
        attempts=attempts,
        first_failed_at=at(seconds),
        last_failed_at=at(seconds) + timedelta(seconds=1),
    )


class MemoryLog:
    """Topics of one partition in memory; every record is a second later than the one before."""

    def __init__(self) -> None:
        self._topics: dict[str, list[LogRecord]] = defaultdict(list)
        self._count = 0

    def append(self, records: Sequence[OutRecord]) -> list[LogRecord]:
        """Append records, and give them as they are read."""
        return [self._one(record) for record in records]

    def _one(self, out: OutRecord) -> LogRecord:
        topic = self._topics[out.topic]
        self._count += 1
        time_ms = int(at(100_000 + self._count).timestamp() * 1000)
        place = Position(out.topic, 0, len(topic))
        topic.append(LogRecord(place, time_ms, out.key, out.value, out.headers))
        return topic[-1]

    def read(self, topic: str) -> list[LogRecord]:
        """Give what a topic holds."""
        return list(self._topics[topic])

    def outcomes(self) -> list[Outcome]:
        """Give every outcome."""
        return [Outcome.model_validate_json(r.value or b"") for r in self.read(TOPICS.outcomes)]

    def refuse(self, record: LogRecord) -> None:
        """End a record that does not decode, as the flow does."""
        error = decode(record, FIELDS)
        assert isinstance(error, InvalidEvent)
        self.append(outputs.refused(record, error, TOPICS))


def cases_of(log: MemoryLog) -> Cases:
    """Read everything that bears on dead letters, as ``sediment dlq`` does."""
    letters = [
        read_letter(record, "sediment", FIELDS)
        for topic in (TOPICS.l0_dead, TOPICS.l1_dead)
        for record in log.read(topic)
    ]
    cases = Cases(letters)
    for outcome in log.outcomes():
        cases.see_outcome(outcome)
    for record in log.read(TOPIC):
        cases.see_event(record)
    return cases

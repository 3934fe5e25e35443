"""Limits that keep a stage healthy: how much waits, how much fails, how long the log is away."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import Gauge

from connectors.log import given_up
from connectors.metrics import STAGE_PENDING
from stores.errors import FlowHalted, LogAway

__all__ = ["FailureLimit", "FailureTally", "LogPatience", "PendingWork", "StageStatus"]


class PendingWork:
    """Counts the items that stages have accepted and not yet emitted. Thread-safe.

    One of it is shared by all stages and sources of a process. A source asks :meth:`full` before
    it reads and pauses while it is; that bounds the memory of the whole flow. Restored items
    count like new ones, so after a restart the count may stand above ``cap``.

    >>> pending = PendingWork(cap=2)
    >>> pending.add("extract", 2)
    >>> pending.full()
    True
    """

    def __init__(self, cap: int) -> None:
        if cap < 1:
            message = f"cap: {cap} items would never be read; give at least 1"
            raise ValueError(message)
        self.cap = cap
        self._lock = threading.Lock()
        self._by_stage: Counter[str] = Counter()
        self._gauges: dict[str, Gauge] = {}
        self._total = 0

    def add(self, stage: str, count: int) -> None:
        """Count ``count`` more items of ``stage``; a negative number takes them off again."""
        with self._lock:
            self._by_stage[stage] += count
            self._total += count
            gauge = self._gauges.get(stage)
            if gauge is None:
                gauge = self._gauges[stage] = STAGE_PENDING.labels(stage)
            gauge.set(self._by_stage[stage])

    def count(self) -> int:
        """Give the number of items pending in all stages together."""
        return self._total

    def full(self) -> bool:
        """Say whether sources must pause."""
        return self._total >= self.cap

    def half_full(self) -> bool:
        """Say whether half of what may wait does."""
        return 2 * self._total >= self.cap


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """The share of failed items at which a stage stops the flow.

    One bad record must not stop anybody; a dead endpoint or a wrong key must not drain the topic
    into dead letters. The share of the last items tells the two apart.

    :arg rate: the flow stops above this share.
    :arg window: how many of the last finished items are looked at. 100 forget an incident within
        a few seconds of healthy work.
    :arg minimum: fewer finished items than this say nothing: at 20 a stage halts early in a total
        outage, having dead-lettered 20 items at most, and three bad records at the start do not.
    """

    rate: float = 0.5
    window: int = 100
    minimum: int = 20


class FailureTally:
    """The last finished items of one stage, counted against its limit. Not thread-safe."""

    def __init__(self, stage: str, limit: FailureLimit) -> None:
        self._stage = stage
        self._limit = limit
        self._last: deque[str | None] = deque(maxlen=limit.window)
        self._failed: Counter[str] = Counter()

    def succeeded(self, count: int) -> None:
        """Count items that ended well."""
        for _ in range(count):
            self._push(None)

    def failed(self, reason: str, detail: str) -> FlowHalted | None:
        """Count one item that failed for good; an error when that was one too many."""
        self._push(reason)
        total, failed = len(self._last), self._failed.total()
        if total < self._limit.minimum or failed <= self._limit.rate * total:
            return None
        reasons = ", ".join(f"{count} {name}" for name, count in self._failed.most_common())
        return FlowHalted(
            f"stage {self._stage}: {failed} of the last {total} items failed for good "
            f"({reasons}; the last: {detail}). The flow has stopped so that the rest is not "
            f"dead-lettered. Nothing is lost: repair the cause and start again, and the items "
            f"that wait are tried again"
        )

    def _push(self, reason: str | None) -> None:
        if len(self._last) == self._last.maxlen:
            gone = self._last[0]
            if gone is not None:
                self._failed[gone] -= 1
                self._failed += Counter()  # drops reasons that count zero
        self._last.append(reason)
        if reason is not None:
            self._failed[reason] += 1


class LogPatience:
    """For how long the log may stay away from a stage's calls, if none ends well. Not thread-safe.

    Source and sink count its silence themselves. But at end of input both stand still until the
    calls have ended, and calls that need the log are made again for as long as it is away.
    """

    def __init__(self, stage: str, seconds: float) -> None:
        self._stage = stage
        self._seconds = seconds
        self._since: datetime | None = None

    def answered(self) -> None:
        """Note that a call has ended well."""
        self._since = None

    def away(self, error: LogAway, at: datetime) -> LogAway | None:
        """Note that the log was away from a call; an error when that is so for too long."""
        self._since = self._since or at
        lasted = (at - self._since).total_seconds()
        if lasted <= self._seconds:
            return None
        why = error.message.removeprefix(f"{error.service}: ")
        return LogAway(error.service, given_up(why, f"stage {self._stage}", lasted))


@dataclass(frozen=True, slots=True)
class StageStatus:
    """How a stage stands.

    :arg pending: items accepted and not yet emitted.
    :arg keys: keys that have any.
    :arg in_flight: calls being made.
    :arg oldest_pending_age_s: seconds since the oldest pending item was accepted; 0 without one.
    :arg retries_waiting: items among the pending ones that failed and wait to be tried again.
    """

    pending: int = 0
    keys: int = 0
    in_flight: int = 0
    oldest_pending_age_s: float = 0.0
    retries_waiting: int = 0

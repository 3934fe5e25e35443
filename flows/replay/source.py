"""A log's source for a replay: one scope, at a pace, telling how far it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition

from connectors.dataflow import partition_number
from flows.replay.plan import ReplayPlan
from stores.records import LogRecord

__all__ = ["ReplaySource"]

S = TypeVar("S")

_LONGEST_SLEEP_S = 0.5  # a slow pace must not make a stop slow


class ReplaySource(FixedPartitionedSource[LogRecord, S]):
    """Hands on what the plan wants of another source, no faster than it says.

    Snapshots, end and errors are those of the source inside. A pace counts what is read,
    whether or not it is wanted.
    """

    def __init__(
        self,
        inner: FixedPartitionedSource[LogRecord, S],
        plan: ReplayPlan,
        stopping: Callable[[], bool],
    ) -> None:
        self._inner = inner
        self._plan = plan
        self._stopping = stopping

    def list_parts(self) -> list[str]:
        """Name the partitions of the source inside."""
        return self._inner.list_parts()

    def build_part(
        self, step_id: str, for_part: str, resume_state: S | None
    ) -> StatefulSourcePartition[LogRecord, S]:
        """Open a partition of the source inside."""
        inner = self._inner.build_part(step_id, for_part, resume_state)
        return _ReplayPartition(inner, self._plan, self._stopping, partition_number(for_part))


class _ReplayPartition(StatefulSourcePartition[LogRecord, S]):
    def __init__(
        self,
        inner: StatefulSourcePartition[LogRecord, S],
        plan: ReplayPlan,
        stopping: Callable[[], bool],
        partition: int,
    ) -> None:
        self._inner = inner
        self._plan = plan
        self._stopping = stopping
        self._partition = partition
        self._awake: datetime | None = None

    def next_batch(self) -> list[LogRecord]:
        wait_s = self._plan.pace.wait_s()
        if wait_s > 0 and not self._stopping():
            self._awake = _now() + timedelta(seconds=min(wait_s, _LONGEST_SLEEP_S))
            return []
        records = list(self._inner.next_batch())
        self._awake = self._inner.next_awake()
        if not records:
            return []
        self._plan.pace.spend(len(records))
        self._plan.reached.offsets[self._partition] = records[-1].position.offset + 1
        if self._plan.wanted is None:
            return records
        return [record for record in records if self._plan.wanted(record)]

    def next_awake(self) -> datetime | None:
        return self._awake

    def snapshot(self) -> S:
        return self._inner.snapshot()

    def close(self) -> None:
        self._inner.close()


def _now() -> datetime:
    return datetime.now(timezone.utc)  # Bytewax's own clock, for when to call again

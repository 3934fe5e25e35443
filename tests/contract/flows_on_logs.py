"""Tiny dataflows that the log tests run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import AbortExecution, FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import FixedPartitionedSink
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, run_main

from connectors.dataflow import write_records
from stores.records import LogRecord, OutRecord

Source = FixedPartitionedSource[LogRecord, Any]


def recovery_store(folder: Path) -> RecoveryConfig:
    folder.mkdir()
    init_db_dir(folder, 1)
    return RecoveryConfig(str(folder))


def read_into(
    seen: list[LogRecord], source: Source, recovery: RecoveryConfig | None = None
) -> list[LogRecord]:
    """Run a flow that does nothing but collect; every batch is an epoch."""
    flow = Dataflow("read")
    op.output("collect", op.input("log", flow, source), TestingSink(seen))
    run_main(flow, epoch_interval=timedelta(0), recovery_config=recovery)
    return seen


def write(
    records: Iterable[OutRecord],
    sink: FixedPartitionedSink[Sequence[OutRecord], None],
    recovery: RecoveryConfig | None = None,
) -> None:
    """Run a flow that writes ``records``, one an epoch."""
    flow = Dataflow("write")
    keyed = [(str(record.key), [record]) for record in records]
    write_records("sink", op.input("records", flow, TestingSource(keyed)), sink)
    run_main(flow, epoch_interval=timedelta(0), recovery_config=recovery)


def values(records: Iterable[LogRecord], partition: int | None = None) -> list[bytes | None]:
    return [
        record.value
        for record in records
        if partition is None or record.position.partition == partition
    ]


class AbortOnce(FixedPartitionedSource[LogRecord, Any]):
    """Reads another source, and aborts the flow once, after ``after`` records."""

    def __init__(self, inner: Source, after: int) -> None:
        self.inner = inner
        self.left: int | None = after

    def list_parts(self) -> list[str]:
        return self.inner.list_parts()

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> _AbortOncePart:
        return _AbortOncePart(self, self.inner.build_part(step_id, for_part, resume_state))


class _AbortOncePart(StatefulSourcePartition[LogRecord, Any]):
    def __init__(self, owner: AbortOnce, inner: StatefulSourcePartition[LogRecord, Any]) -> None:
        self.owner = owner
        self.inner = inner
        self.next_awake = inner.next_awake  # type: ignore[method-assign]
        self.snapshot = inner.snapshot  # type: ignore[method-assign]
        self.close = inner.close  # type: ignore[method-assign]

    def next_batch(self) -> list[LogRecord]:
        if self.owner.left is not None and self.owner.left <= 0:
            self.owner.left = None
            raise AbortExecution
        batch = list(self.inner.next_batch())
        if self.owner.left is not None:
            self.owner.left -= len(batch)
        return batch

    def snapshot(self) -> Any:
        return self.inner.snapshot()

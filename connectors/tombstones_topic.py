"""Tombstones as a topic: read before anything else is, written before anything is deleted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from connectors.dataflow import BATCH_RECORDS, Cursor
from connectors.log import Appender, EndAt, LogReader, Place, StartAt
from stores.errors import SedimentError, StoreMismatch
from stores.records import LogRecord, OutRecord, Tombstone
from stores.tombstones import Tombstones, split

__all__ = ["TombstonesTopic", "tombstone_records"]

_LOOK_S = 1.0

_log = logging.getLogger(__name__)


def tombstone_records(tombstone: Tombstone, topic: str) -> list[OutRecord]:
    """Give the records of a tombstone, cut to size."""
    return [
        OutRecord(topic, one.tombstone_id.encode(), one.model_dump_json(exclude_none=True).encode())
        for one in split(tombstone)
    ]


class TombstonesTopic:
    """Keeps a :class:`~stores.tombstones.Tombstones` as the topic says, and adds to the topic.

    :arg topic: full name.
    :ivar known: what is kept out, as far as it was read or published here.
    """

    def __init__(
        self, reader: LogReader, appender: Appender, topic: str, known: Tombstones
    ) -> None:
        self._reader = reader
        self._appender = appender
        self._topic = topic
        self.known = known
        self._read_to: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Read what was written to the topic so far. Blocking.

        Raises :class:`~stores.errors.ServiceUnavailable` when the log is down, and
        :class:`~stores.errors.StoreMismatch` for a record that is no tombstone: going on
        without it could bring back what was forgotten.
        """
        with self._lock:
            ends = self._reader.end_offsets(self._topic)
            start = {part: Place("offset", self._read_to.get(part, 0)) for part in ends}
            end = {part: Place("offset", end) for part, end in ends.items()}
            if ends != self._read_to and any(ends.values()):
                for record in self._reader.read(
                    self._topic, StartAt(partitions=start), EndAt(partitions=end)
                ):
                    self._take(record)
            self._read_to = ends

    def publish(self, tombstones: Sequence[Tombstone]) -> None:
        """Keep out, and write durably before this returns. Blocking; raises as an appender does."""
        for tombstone in tombstones:
            self.known.add(tombstone)
        records = [one for each in tombstones for one in tombstone_records(each, self._topic)]
        if records:
            self._appender.append(records)

    def follow(self) -> None:
        """Look for new ones every second, in a thread, until :meth:`close`.

        For requests that another process handles: of a producer that does not key by scope.
        """
        self._thread = threading.Thread(target=self._follow, name="tombstones", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, if there is one."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_LOOK_S * 10)

    def _follow(self) -> None:
        cursors: list[Cursor[Any]] = []
        while not self._stop.wait(_LOOK_S):
            try:
                cursors = cursors or [
                    self._reader.cursor(self._topic, part, start=Place("offset", at), end=None)
                    for part, at in self._read_to.items()
                ]
                for cursor in cursors:
                    while records := cursor.fetch(BATCH_RECORDS):
                        for record in records:
                            self._take(record)
            except SedimentError as error:
                _log.warning("tombstones cannot be read, looking again: %s", error.message)
        for cursor in cursors:
            cursor.close()

    def _take(self, record: LogRecord) -> None:
        if record.value is None:
            return
        try:
            self.known.add(Tombstone.model_validate_json(record.value))
        except ValidationError as error:
            _, partition, offset = record.position
            message = (
                f"{self._topic}, partition {partition}, offset {offset} is no tombstone of this "
                "version; use the newer program, what was forgotten could come back"
            )
            raise StoreMismatch(message) from error

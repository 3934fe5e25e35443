"""The register of generations in the log: reading it, writing it, following its pointer."""

from __future__ import annotations

import logging
from typing import Any

from connectors.dataflow import BATCH_RECORDS, Cursor
from connectors.log import Appender, EndAt, LogReader, Place, StartAt, partition_of
from stores.errors import ServiceUnavailable, SettingsError
from stores.generations import (
    POINTER_KEY,
    Generation,
    Generations,
    Pointer,
    generation_record,
    pointer_record,
    read_pointer,
)

__all__ = ["GenerationLog", "PointerWatch"]

_LOOK_AGAIN = 15
"""Looks at the pointer between two tries to find a topic that is not there, or cannot be read."""

_log = logging.getLogger(__name__)


class GenerationLog:
    """The register. Every record is written whole, and the newest of its key counts.

    Raises :class:`~stores.errors.ServiceUnavailable` when the log is down.

    :arg topic: full name.
    """

    def __init__(self, reader: LogReader, appender: Appender, topic: str) -> None:
        self._reader = reader
        self._appender = appender
        self._topic = topic

    def read(self) -> Generations:
        """Give the generations as they are now; a topic that does not exist holds ``main`` only."""
        try:
            return Generations.of(
                self._reader.read(self._topic, StartAt.beginning(), EndAt.latest())
            )
        except SettingsError:
            return Generations.of(())

    def write(self, generation: Generation) -> None:
        """Keep a manifest; durable when it returns."""
        self._appender.append([generation_record(self._topic, generation)])

    def point(self, pointer: Pointer) -> None:
        """Make a pointer the one that counts; durable when it returns."""
        self._appender.append([pointer_record(self._topic, pointer)])

    def watch(self) -> PointerWatch:
        """Follow the pointer."""
        return PointerWatch(self._reader, self._topic)


class PointerWatch:
    """Which generation is current, asked again and again. For one thread at a time; blocking.

    It holds one reader open on the one partition that the pointer's key goes to, so that a look
    costs next to nothing. A log that is away leaves the pointer where it was.
    """

    def __init__(self, reader: LogReader, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self._cursor: Cursor[Any] | None = None
        self._looks_left = 0
        self._pointer = Pointer()

    def look(self) -> str:
        """Name the generation that is current."""
        try:
            cursor = self._opened()
            while cursor is not None and (records := cursor.fetch(BATCH_RECORDS)):
                for record in records:
                    self._pointer = read_pointer(record) or self._pointer
        except ServiceUnavailable as error:
            _log.warning("the pointer of generations cannot be followed: %s", error.message)
            self.close()
            self._looks_left = _LOOK_AGAIN
        return self._pointer.current

    def close(self) -> None:
        """Let go of the reader; the next look opens another one."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _opened(self) -> Cursor[Any] | None:
        if self._cursor is not None:
            return self._cursor
        if self._looks_left > 0:
            self._looks_left -= 1
            return None
        self._looks_left = _LOOK_AGAIN
        try:
            count = self._reader.partitions(self._topic)
        except SettingsError:  # not made yet: `main` is current
            return None
        partition = partition_of(POINTER_KEY, count)
        self._cursor = self._reader.cursor(
            self._topic, partition, start=Place("beginning"), end=None
        )
        return self._cursor

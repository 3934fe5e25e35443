"""Scenes and personas as their topic says in the end: the last record of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from connectors.log import EndAt, LogReader, Place, StartAt
from flows.upkeep.history import Unreadable
from stores.problems import problems_of
from stores.records import LogRecord, Profile

__all__ = ["ProfileHistory"]


class ProfileHistory:
    """The profiles topic, up to where it ended when this was made. Holds positions only.

    :arg topic: full name.
    :ivar unreadable: records that are not profiles, once :meth:`current` was read through.
    :ivar forgotten: profiles that were left out because of what they rest on, counted likewise.
    """

    def __init__(self, reader: LogReader, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self._ends = reader.end_offsets(topic)
        self.unreadable: list[Unreadable] = []
        self.forgotten = 0

    def current(self, gone: Mapping[str, frozenset[str]] | None = None) -> Iterator[Profile]:
        """Give each profile once, as it stands in the end; those that are gone are left out.

        :arg gone: by scope, atoms that must not be told, as
            :meth:`~flows.upkeep.history.History.gone_atoms` gives them: what rests on one of
            them is left out.
        """
        last = {record.key: record.position for record in self._read() if record.key is not None}
        self.unreadable, self.forgotten = [], 0
        for record in self._read():
            if record.value is None or last.get(record.key or b"") != record.position:
                continue
            try:
                profile = Profile.model_validate_json(record.value)
            except ValidationError as error:
                where = problems_of(error)[0].field or "the record"
                reason = f"{where}: not as in a profile"
                self.unreadable.append(Unreadable(record.position, reason))
                continue
            if profile.deleted:
                continue
            if (gone or {}).get(profile.scope, frozenset()).isdisjoint(profile.atom_ids):
                yield profile
            else:
                self.forgotten += 1

    def _read(self) -> Iterator[LogRecord]:
        ends = {number: Place("offset", end) for number, end in self._ends.items()}
        return self._reader.read(self._topic, StartAt.beginning(), EndAt(partitions=ends))

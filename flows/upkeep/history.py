"""What the topics say in the end: of repeated events the first, of each atom the last record.

Both as they stood when the history was opened, so that reading twice gives the same. Nothing
is held in memory but ids: about 100 bytes for each atom, and for each event that is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from connectors.kafka.redrive import as_it_was
from connectors.log import EndAt, LogReader, Place, StartAt
from flows.decode import decode
from flows.dedup import RecentIds
from stores.errors import InvalidEvent
from stores.problems import problems_of
from stores.records import Atom, LogRecord, Position, SourcedEvent
from stores.tombstones import Tombstones

__all__ = ["FinalAtoms", "History", "Tally", "Unreadable"]

_SHOW_EVERY = 64  # records: less than a batch of the slowest embedder


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record of the atoms topic that is not an atom. ``reason`` holds none of its text."""

    position: Position
    reason: str

    def __str__(self) -> str:
        topic, partition, offset = self.position
        return f"{topic}, partition {partition}, offset {offset}: {self.reason}"


@dataclass(slots=True)
class Tally:
    """What reading a topic met, so far.

    :arg read: records read.
    :arg repeated: events whose id had come before in their scope.
    :arg refused: records that are not events; the flow wrote them to the dead letters.
    :arg forgotten: events or atoms that are kept out.
    """

    read: int = 0
    repeated: int = 0
    refused: int = 0
    forgotten: int = 0


@dataclass(frozen=True)
class FinalAtoms:
    """Where the last record of each atom stands."""

    last: dict[bytes, tuple[int, int]]
    unreadable: list[Unreadable] = field(default_factory=list)

    def __len__(self) -> int:
        """Count the atoms, those without a value (compaction's tombstones) included."""
        return len(self.last)


class History:
    """Events and atoms of a log, up to where its topics ended when this was made.

    :arg topic: gives a topic its full name.
    :arg dedup_ids: event ids remembered per scope, as in the flow.
    :arg kept_out: what was forgotten or rejected; it is not part of the history any more.
    :arg show: called now and then while a topic is read, for a progress bar.
    :ivar records_read: records read so far, of both topics.
    """

    def __init__(
        self,
        reader: LogReader,
        topic: Callable[[str], str],
        *,
        scope_fields: Sequence[str],
        dedup_ids: int,
        kept_out: Tombstones | None = None,
        show: Callable[[], None] = lambda: None,
    ) -> None:
        self.kept_out = Tombstones() if kept_out is None else kept_out
        self._reader = reader
        self._events = topic("l0.events")
        self._atoms = topic("l1.atoms")
        self._scope_fields = scope_fields
        self._dedup_ids = dedup_ids
        self._show = show
        self.records_read = 0
        self._ends = {name: reader.end_offsets(name) for name in (self._events, self._atoms)}

    def event_records(self) -> int:
        """Count the records of the events topic; more than there are where retention cut it."""
        return sum(self._ends[self._events].values())

    def atom_records(self) -> int:
        """Count the records of the atoms topic; more than there are where it was compacted."""
        return sum(self._ends[self._atoms].values())

    def atoms_grew(self) -> bool:
        """Say whether atoms were produced since: then a flow is at work, and this is not all."""
        return self._reader.end_offsets(self._atoms) != self._ends[self._atoms]

    def events(
        self, tally: Tally, kept: Callable[[SourcedEvent], bool] = lambda _: True
    ) -> Iterator[SourcedEvent]:
        """Give the first of each scope's events with an id, partition by partition, in log order.

        A dead letter that came again is taken as the record that it was: it stands for that one
        where retention has taken it.

        :arg kept: which events count at all; the index, for one, knows messages only.
        """
        seen: dict[str, RecentIds] = {}
        for record in self._read(self._events):
            tally.read += 1
            original, redriven = (as_it_was(record) if record.headers else None) or (record, None)
            decoded = decode(original, self._scope_fields, redriven)
            if isinstance(decoded, InvalidEvent):
                tally.refused += 1
            elif self.kept_out.covers_event(decoded):
                tally.forgotten += 1
            elif kept(decoded):
                ids = seen.setdefault(decoded.scope, RecentIds(self._dedup_ids))
                if ids.add(decoded.event.event_id):
                    yield decoded
                else:
                    tally.repeated += 1

    def final_atoms(self, tally: Tally) -> FinalAtoms:
        """Find the last record of each atom.

        One key stands in one partition, where log order decides. When partitions were added
        since, it stands in two: then the later timestamp does.
        """
        last: dict[bytes, tuple[int, int]] = {}
        written: dict[bytes, int] = {}
        unreadable: list[Unreadable] = []
        for record in self._read(self._atoms):
            tally.read += 1
            _, partition, offset = record.position
            if record.key is None:
                unreadable.append(Unreadable(record.position, "the record has no key"))
                continue
            before = last.get(record.key)
            if (
                before is None
                or before[0] == partition
                or record.timestamp_ms >= written[record.key]
            ):
                last[record.key] = (partition, offset)
                written[record.key] = record.timestamp_ms
        return FinalAtoms(last, unreadable)

    def atoms(self, final: FinalAtoms, tally: Tally) -> Iterator[Atom]:
        """Give each atom once, as it stands in the end, in the order of their last records.

        What cannot be read is added to ``final.unreadable``; an atom whose last record has no
        value is gone. What was forgotten of an atom is taken out of it, and a rejected value is
        not active, also where the flow was killed before it could say so here.
        """
        for record in self._read(self._atoms):
            _, partition, offset = record.position
            if record.key is None or final.last.get(record.key) != (partition, offset):
                continue
            tally.read += 1
            if record.value is None:
                continue
            try:
                atom = self.kept_out.settle(Atom.model_validate_json(record.value))
            except ValidationError as error:
                where = problems_of(error)[0].field or "the record"
                final.unreadable.append(Unreadable(record.position, f"{where}: not as in an atom"))
                continue
            if atom is None:
                tally.forgotten += 1
            else:
                yield atom

    def gone_atoms(self, final: FinalAtoms) -> dict[str, frozenset[str]]:
        """Give by scope the ids of atoms that must not be told: forgotten or rejected.

        Scenes and personas that rest on one of them are not part of the history either. The
        topic is read only where anything was ever forgotten or rejected.
        """
        if next(iter(self.kept_out), None) is None:
            return {}
        gone: dict[str, set[str]] = {}
        there: dict[str, set[str]] = {}
        for record in self._read(self._atoms):
            _, partition, offset = record.position
            if record.value is None or final.last.get(record.key or b"") != (partition, offset):
                continue
            try:
                atom = Atom.model_validate_json(record.value)
            except ValidationError:
                continue  # told by `atoms`
            settled = self.kept_out.settle(atom)
            told = settled is not None and settled.status != "rejected"
            (there if told else gone).setdefault(atom.scope, set()).add(atom.atom_id)
        for scope in {one.scope for one in self.kept_out}:
            taken = self.kept_out.forgotten_atoms(scope) - there.get(scope, set())
            gone.setdefault(scope, set()).update(taken)
        return {scope: frozenset(ids) for scope, ids in gone.items()}

    def _read(self, topic: str) -> Iterator[LogRecord]:
        ends = {number: Place("offset", end) for number, end in self._ends[topic].items()}
        records = self._reader.read(topic, StartAt.beginning(), EndAt(partitions=ends))
        for record in records:
            if self.records_read % _SHOW_EVERY == 0:
                self._show()
            self.records_read += 1
            yield record
        self._show()

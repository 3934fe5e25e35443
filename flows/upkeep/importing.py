"""Reads an export and writes what it holds to the topics. What is there already stays.

An event is known by scope and event id, an atom by its id. So importing twice writes nothing
the second time, and an import that was killed goes on. An atom whose id is in the topic is not
written, whatever its state there; one that was taken out (a record without value) stays out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from connectors.log import Appender
from flows.decode import decode
from flows.upkeep.export_format import ATOMS, EVENTS, FILES, MANIFEST, Manifest, read_manifest
from flows.upkeep.exporting import file_hash
from flows.upkeep.history import FinalAtoms, History, Tally
from stores.errors import InvalidEvent, UserError
from stores.ids import event_key
from stores.records import Atom, LogRecord, OutRecord, Position

__all__ = ["Appended", "ImportLog", "check_export"]

_BATCH = 500


def check_export(folder: Path, scope_fields: Sequence[str]) -> Manifest:
    """Check a whole export before anything of it is written: manifest, hashes, every line.

    Raises :class:`~stores.errors.UserError` naming the file, and the line where there is one.
    """
    path = folder / MANIFEST
    if not path.is_file():
        message = f"{folder} holds no {MANIFEST}; give the folder that `sediment export` wrote"
        raise UserError(message)
    manifest = read_manifest(path.read_bytes(), str(path))
    if manifest.scope_fields != tuple(scope_fields):
        message = (
            f"{path}: memories belong to {', '.join(manifest.scope_fields)} there, here to "
            f"{', '.join(scope_fields)}; set SEDIMENT_SCOPE_FIELDS as it was"
        )
        raise UserError(message)
    for entry in manifest.scopes:
        for name in FILES:
            file = folder / entry.folder / name
            if not file.is_file():
                message = f"{file} is missing"
                raise UserError(message)
            if file_hash(file) != entry.files[name]:
                message = f"{file} is not as it was exported: its hash differs from the manifest's"
                raise UserError(message)
        events = sum(1 for _ in _events(folder, entry.folder, entry.scope, scope_fields))
        atoms = sum(1 for _ in _atoms(folder, entry.folder, entry.scope))
        if (events, atoms) != (entry.events, entry.atoms):
            message = f"{path}: the counts of scope {entry.scope} are not those of its files"
            raise UserError(message)
    return manifest


@dataclass(slots=True)
class Appended:
    """What of a layer went to its topic, and what was there before."""

    written: int = 0
    present: int = 0


class ImportLog:
    """Writes a checked export to the topics.

    :arg history: the topics as they are before.
    :arg show: called now and then, for a progress bar.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        history: History,
        appender: Appender,
        topic: Callable[[str], str],
        show: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._history = history
        self._appender = appender
        self._topic = topic
        self._show = show

    def events(self, done: Appended) -> None:
        """Append the events that the log has not, each scope's in its order."""
        fields = self._manifest.scope_fields
        missing = {
            event_key(entry.scope, event_id)
            for entry in self._manifest.scopes
            for event_id, _ in _events(self._folder, entry.folder, entry.scope, fields)
        }
        for known in self._history.events(Tally()):
            missing.discard(event_key(known.scope, known.event.event_id))
        topic = self._topic("l0.events")
        records = (
            OutRecord(topic, entry.scope.encode(), line)
            if event_key(entry.scope, event_id) in missing
            else None
            for entry in self._manifest.scopes
            for event_id, line in _events(self._folder, entry.folder, entry.scope, fields)
        )
        self._append(records, done)

    def atoms(self, done: Appended) -> None:
        """Append the atoms that the topic has not."""
        known: FinalAtoms = self._history.final_atoms(Tally())
        topic = self._topic("l1.atoms")
        records = (
            OutRecord(topic, atom_id.encode(), line) if atom_id.encode() not in known.last else None
            for entry in self._manifest.scopes
            for atom_id, line in _atoms(self._folder, entry.folder, entry.scope)
        )
        self._append(records, done)

    def _append(self, records: Iterable[OutRecord | None], done: Appended) -> None:
        records = iter(records)
        while batch := list(islice(records, _BATCH)):
            missing = [record for record in batch if record is not None]
            if missing:
                self._appender.append(missing)
            done.written += len(missing)
            done.present += len(batch) - len(missing)
            self._show()


def _events(
    root: Path, folder: str, scope: str, scope_fields: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    """Read a scope's events: id and line."""
    path = root / folder / EVENTS
    for number, line in _lines(path):
        place = Position(EVENTS, 0, number)
        decoded = decode(LogRecord(place, 0, None, line), scope_fields)
        problem = (
            decoded.message
            if isinstance(decoded, InvalidEvent)
            else f"the event belongs to scope {decoded.scope}"
            if decoded.scope != scope
            else ""
        )
        if isinstance(decoded, InvalidEvent) or problem:
            message = f"{path}, line {number}: {problem}"
            raise UserError(message)
        yield decoded.event.event_id, line


def _atoms(root: Path, folder: str, scope: str) -> Iterator[tuple[str, bytes]]:
    """Read a scope's atoms: id and line."""
    path = root / folder / ATOMS
    for number, line in _lines(path):
        try:
            atom = Atom.model_validate_json(line)
        except ValidationError:
            message = f"{path}, line {number}: not an atom"
            raise UserError(message) from None
        if atom.scope != scope:
            message = f"{path}, line {number}: the atom belongs to scope {atom.scope}"
            raise UserError(message)
        yield atom.atom_id, line


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, line.removesuffix(b"\n")

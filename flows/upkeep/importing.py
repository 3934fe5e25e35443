"""Reads an export and writes what it holds to the topics. What is there already stays.

An event is known by scope and event id, an atom by its id. So importing twice writes nothing
the second time, and an import that was killed goes on. An atom whose id is in the topic is not
written, whatever its state there; one that was taken out (a record without value) stays out.

What was forgotten or rejected here is refused, whichever export brings it. The export's own
tombstones are written first: what was forgotten there stays out here as well. Scenes and personas
come last (:mod:`flows.upkeep.import_profiles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from connectors.log import Appender
from flows.decode import decode
from flows.gate import GatePolicy
from flows.gate.recheck import refused_alone
from flows.upkeep.export_format import (
    ATOMS,
    EVENTS,
    MANIFEST,
    PROFILES,
    TOMBSTONES,
    Manifest,
    ScopeEntry,
    atom_line,
    read_manifest,
)
from flows.upkeep.exporting import file_hash
from flows.upkeep.history import FinalAtoms, History, Tally
from stores.errors import InvalidEvent, UserError
from stores.ids import event_key
from stores.records import (
    Atom,
    LogRecord,
    OutRecord,
    Position,
    Profile,
    SourcedEvent,
    Tombstone,
    profile_id,
)
from stores.scenes import normal_name

__all__ = ["Appended", "ImportLog", "check_export", "profiles_in"]

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
        for name in entry.files:
            file = folder / entry.folder / name
            if not file.is_file():
                message = f"{file} is missing"
                raise UserError(message)
            if file_hash(file) != entry.files[name]:
                message = f"{file} is not as it was exported: its hash differs from the manifest's"
                raise UserError(message)
        for _ in _tombstones(folder, entry):
            pass
        events = sum(1 for _ in _events(folder, entry.folder, entry.scope, scope_fields))
        atoms = sum(1 for _ in _atoms(folder, entry.folder, entry.scope))
        profiles = sum(1 for _ in profiles_in(folder, entry))
        if (events, atoms, profiles) != (entry.events, entry.atoms, entry.profiles):
            message = f"{path}: the counts of scope {entry.scope} are not those of its files"
            raise UserError(message)
    return manifest


@dataclass(slots=True)
class Appended:
    """What of a layer went to its topic, what was there before, what is kept out.

    :arg refused: memories that the quality gate refuses here.
    """

    written: int = 0
    present: int = 0
    forgotten: int = 0
    refused: int = 0


class ImportLog:
    """Writes a checked export to the topics.

    :arg history: the topics as they are before, and what is kept out.
    :arg publish: writes tombstones, and adds them to what is kept out.
    :arg gate: the rules for memories; an export may come from where they were others.
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
        *,
        publish: Callable[[Sequence[Tombstone]], None],
        gate: GatePolicy,
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self.kept_out = history.kept_out
        self._history = history
        self._appender = appender
        self._topic = topic
        self._show = show
        self._publish = publish
        self._gate = gate
        self._gone: dict[str, set[str]] = {}

    def tombstones(self) -> None:
        """Append the export's tombstones, before anything else."""
        for entry in self._manifest.scopes:
            if found := list(_tombstones(self._folder, entry)):
                self._publish(found)

    def events(self, done: Appended) -> None:
        """Append the events that the log has not and may have, each scope's in its order."""
        fields, kept_out = self._manifest.scope_fields, self._history.kept_out
        missing = {
            event_key(entry.scope, one.event.event_id)
            for entry in self._manifest.scopes
            for one in _events(self._folder, entry.folder, entry.scope, fields)
        }
        for known in self._history.events(Tally()):
            missing.discard(event_key(known.scope, known.event.event_id))
        topic = self._topic("l0.events")

        def line(one: SourcedEvent) -> OutRecord | None:
            if kept_out.covers_event(one):
                done.forgotten += 1
                return None
            if event_key(one.scope, one.event.event_id) not in missing:
                done.present += 1
                return None
            return OutRecord(topic, one.scope.encode(), one.record.value)

        records = (
            line(one)
            for entry in self._manifest.scopes
            for one in _events(self._folder, entry.folder, entry.scope, fields)
        )
        self._append(records, done)

    def atoms(self, done: Appended) -> None:
        """Append the atoms that the topic has not and may have."""
        known: FinalAtoms = self._history.final_atoms(Tally())
        topic, kept_out = self._topic("l1.atoms"), self._history.kept_out

        self._gone = {one: set(ids) for one, ids in self._history.gone_atoms(known).items()}

        def line(atom: Atom, value: bytes) -> OutRecord | None:
            gone = self._gone.setdefault(atom.scope, set())
            settled = kept_out.settle(atom)
            if settled is None or settled.status == "rejected":
                gone.add(atom.atom_id)
            else:
                gone.discard(atom.atom_id)  # one that was forgotten had the same id
            if settled is None or settled.status != atom.status:
                done.forgotten += 1
                return None
            if atom.atom_id.encode() in known.last:
                done.present += 1
                return None
            if refused_alone(settled, self._gate):
                gone.add(atom.atom_id)
                done.refused += 1
                return None
            body = value if settled == atom else atom_line(settled)
            return OutRecord(topic, atom.atom_id.encode(), body)

        records = (
            line(*one)
            for entry in self._manifest.scopes
            for one in _atoms(self._folder, entry.folder, entry.scope)
        )
        self._append(records, done)

    def gone(self, scope: str) -> frozenset[str]:
        """Give the atoms of a scope that must not be told here, once :meth:`atoms` was called."""
        return frozenset(self._gone.get(scope, ()))

    def _append(self, records: Iterable[OutRecord | None], done: Appended) -> None:
        records = iter(records)
        while batch := list(islice(records, _BATCH)):
            missing = [record for record in batch if record is not None]
            if missing:
                self._appender.append(missing)
            done.written += len(missing)
            self._show()


def _events(
    root: Path, folder: str, scope: str, scope_fields: Sequence[str]
) -> Iterator[SourcedEvent]:
    """Read a scope's events; the value of each record is the line."""
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
        yield decoded


def _tombstones(root: Path, entry: ScopeEntry) -> Iterator[Tombstone]:
    """Read a scope's tombstones; an export of an older version has none."""
    if TOMBSTONES not in entry.files:
        return
    path = root / entry.folder / TOMBSTONES
    for number, line in _lines(path):
        try:
            tombstone = Tombstone.model_validate_json(line)
        except ValidationError:
            message = f"{path}, line {number}: not a tombstone"
            raise UserError(message) from None
        if tombstone.scope != entry.scope:
            message = f"{path}, line {number}: the tombstone belongs to scope {tombstone.scope}"
            raise UserError(message)
        yield tombstone


def profiles_in(root: Path, entry: ScopeEntry) -> Iterator[Profile]:
    """Read a scope's scenes and persona; an export of an older version has none.

    Raises :class:`~stores.errors.UserError` naming the line that is wrong.
    """
    if PROFILES not in entry.files:
        return
    path = root / entry.folder / PROFILES
    for number, line in _lines(path):
        try:
            profile = Profile.model_validate_json(line)
        except ValidationError:
            message = f"{path}, line {number}: neither a scene nor a persona"
            raise UserError(message) from None
        own_id = profile_id(entry.scope, profile.kind, profile.path)
        if profile.scope != entry.scope or profile.profile_id != own_id:
            message = f"{path}, line {number}: it belongs to scope {profile.scope}"
            raise UserError(message)
        if normal_name(profile.path) != profile.path:
            message = f"{path}, line {number}: {profile.path!r} is no name of a scene file"
            raise UserError(message)
        yield profile


def _atoms(root: Path, folder: str, scope: str) -> Iterator[tuple[Atom, bytes]]:
    """Read a scope's atoms: each with its line."""
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
        yield atom, line


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, line.removesuffix(b"\n")

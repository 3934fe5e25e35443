"""Writes an export: a scope or everything, from the topics, into a folder.

It is written beside its place under another name and renamed when it is whole, so that nobody
ever sees half an export. The folder and its files are readable by their owner only.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.upkeep.export_format import (
    ATOMS,
    EVENTS,
    FILES,
    MANIFEST,
    PAGE,
    PROFILES,
    TOMBSTONES,
    Manifest,
    ScopeEntry,
    atom_line,
    canonical,
    folder_name,
    memory_page,
    profile_line,
    profile_page,
    read_manifest,
    sorted_atoms,
    tombstone_lines,
)
from flows.upkeep.history import History, Tally, Unreadable
from flows.upkeep.profiles import ProfileHistory
from stores.errors import UserError
from stores.ids import content_id
from stores.records import Atom, Profile, Tombstone

__all__ = ["Exported", "check_place", "file_hash", "write_export"]

_LINES_HELD = 2000  # lines held before they go to their files: some MB of ordinary events


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export holds, and what of the topics it leaves out.

    :arg digest: SHA-256 of the manifest: two exports with the same one are byte-equal.
    :arg forgotten: events, atoms, scenes and personas that are left out because they, or what
        they rest on, are kept out.
    """

    manifest: Manifest
    digest: str
    repeated: int
    refused: int
    forgotten: int
    unreadable: Sequence[Unreadable]


def check_place(folder: Path, *, replace: bool) -> None:
    """Check that an export may be written to ``folder``.

    Raises :class:`~stores.errors.UserError` when something is there that is not an earlier
    export, or is one and ``replace`` is false.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        message = f"{folder} is not a folder; name one that does not exist yet"
        raise UserError(message)
    if not folder.exists() or not any(folder.iterdir()):
        return
    stranger = _stranger(folder)
    if stranger is not None:
        message = f"{folder} holds {stranger}, which no export wrote; name another folder"
        raise UserError(message)
    if not replace:
        message = f"{folder} holds an earlier export; --replace writes over it"
        raise UserError(message)


def write_export(
    history: History,
    folder: Path,
    *,
    scope_fields: Sequence[str],
    scope: str | None,
    replace: bool,
    profiles: ProfileHistory | None = None,
) -> Exported:
    """Export one scope, or all when ``scope`` is ``None``.

    :arg profiles: scenes and personas; ``None`` leaves them out.

    Doing it again gives the same bytes. A crash leaves at most a folder beside ``folder`` whose
    name begins with its name and a dot.

    Raises :class:`~stores.errors.UserError` as :func:`check_place` does, and when there is
    nothing to export.
    """
    check_place(folder, replace=replace)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        exported = _write(history, profiles, draft, scope_fields, scope)
        _put(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return exported


def file_hash(path: Path) -> str:
    """Give the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1024 * 1024):
            digest.update(chunk)
    return digest.hexdigest()


def _write(
    history: History,
    profiles: ProfileHistory | None,
    draft: Path,
    scope_fields: Sequence[str],
    scope: str | None,
) -> Exported:
    events_read, atoms_read = Tally(), Tally()
    final = history.final_atoms(Tally())
    events = (
        (one.scope, canonical(one.record.value or b""))
        for one in history.events(events_read)
        if scope in (None, one.scope)
    )
    atoms = (
        (one.scope, atom_line(one))
        for one in history.atoms(final, atoms_read)
        if scope in (None, one.scope)
    )
    event_counts = _spread(events, draft, EVENTS)
    atom_counts = _spread(atoms, draft, ATOMS)
    told: dict[str, list[Profile]] = defaultdict(list)
    if profiles is not None:
        for profile in profiles.current(history.gone_atoms(final)):
            if scope in (None, profile.scope):
                told[profile.scope].append(profile)
    buried: dict[str, list[Tombstone]] = defaultdict(list)
    for tombstone in history.kept_out:
        if scope in (None, tombstone.scope):
            buried[tombstone.scope].append(tombstone)
    scopes = sorted({*event_counts, *atom_counts, *buried, *told})
    if not scopes:
        message = f"the log holds nothing of scope {scope}" if scope else "the log holds no events"
        raise UserError(message)
    entries = []
    for one in scopes:
        files = _finish(draft / folder_name(one), one, buried[one], told[one])
        entries.append(
            ScopeEntry(
                scope=one,
                folder=folder_name(one),
                events=event_counts.get(one, 0),
                atoms=atom_counts.get(one, 0),
                profiles=len(told[one]),
                files={name: file_hash(draft / folder_name(one) / name) for name in files},
            )
        )
    manifest = Manifest(
        scope_fields=tuple(scope_fields),
        events=sum(event_counts.values()),
        atoms=sum(atom_counts.values()),
        profiles=sum(map(len, told.values())),
        scopes=tuple(entries),
    )
    (draft / MANIFEST).write_bytes(manifest.body())
    digest = hashlib.sha256(manifest.body()).hexdigest()
    return Exported(
        manifest,
        digest,
        events_read.repeated,
        events_read.refused,
        events_read.forgotten + atoms_read.forgotten + (profiles.forgotten if profiles else 0),
        [*final.unreadable, *(profiles.unreadable if profiles else ())],
    )


def _spread(lines: Iterable[tuple[str, bytes]], draft: Path, name: str) -> dict[str, int]:
    """Append each line to its scope's file, order kept; give the lines of each scope."""
    counts: dict[str, int] = defaultdict(int)
    for held in _held(lines):
        for scope, of_scope in held.items():
            counts[scope] += len(of_scope)
            folder = draft / folder_name(scope)
            folder.mkdir(exist_ok=True)
            with (folder / name).open("ab") as file:
                file.writelines(line + b"\n" for line in of_scope)
    return dict(counts)


def _held(lines: Iterable[tuple[str, bytes]]) -> Iterator[dict[str, list[bytes]]]:
    held: dict[str, list[bytes]] = defaultdict(list)
    count = 0
    for scope, line in lines:
        held[scope].append(line)
        count += 1
        if count >= _LINES_HELD:
            yield held
            held, count = defaultdict(list), 0
    yield held


def _finish(
    folder: Path, scope: str, buried: Sequence[Tombstone], told: Sequence[Profile]
) -> tuple[str, ...]:
    """Sort a scope's atoms, write its page, tombstones, scenes and persona; name its files."""
    folder.mkdir(exist_ok=True)
    for name in (EVENTS, ATOMS):
        (folder / name).touch()
    lines = (folder / ATOMS).read_bytes().splitlines()
    atoms = sorted_atoms(Atom.model_validate_json(line) for line in lines)
    (folder / ATOMS).write_bytes(b"".join(atom_line(atom) + b"\n" for atom in atoms))
    (folder / PAGE).write_text(memory_page(scope, atoms), encoding="utf-8")
    further = {}
    if buried:
        further[TOMBSTONES] = b"".join(line + b"\n" for line in tombstone_lines(buried))
    if told:
        profiles = sorted(told, key=lambda one: (one.kind, one.path))
        further[PROFILES] = b"".join(profile_line(one) + b"\n" for one in profiles)
        further |= dict(map(profile_page, profiles))
    for name, body in further.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(body)
    return (*FILES, *further)


def _put(draft: Path, folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        old = folder.with_name(f"{folder.name}.{content_id('old', draft.name)[:8]}")
        folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old)
    else:
        draft.rename(folder)


def _stranger(folder: Path) -> str | None:
    """Name something in a folder that an export did not put there; ``None`` when all is known."""
    path = folder / MANIFEST
    if not path.is_file():
        return next(iter(sorted(one.name for one in folder.iterdir())))
    try:
        manifest = read_manifest(path.read_bytes(), str(path))
    except UserError:
        return MANIFEST
    known = {MANIFEST}
    for entry in manifest.scopes:
        known |= {entry.folder, *(f"{entry.folder}/{name}" for name in entry.files)}
        known |= {f"{entry.folder}/{name.partition('/')[0]}" for name in entry.files}
    found = sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))
    return next((name for name in found if name not in known), None)

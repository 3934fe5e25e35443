"""How an export lies in a folder: names, lines, manifest, and the page for people. Pure.

```
manifest.json                  format version, scope fields, counts, a hash of every file
acme+helper+ana/events.jsonl   the scope's events in log order, each as its producer wrote it
acme+helper+ana/atoms.jsonl    its atoms as they stand in the end, by time, then id
acme+helper+ana/memory.md      the same atoms for people; not read by an import
acme+helper+ana/tombstones.jsonl   ids and hashes of what was forgotten or rejected, if anything was
acme+helper+ana/profiles.jsonl     scenes and persona as they stand in the end, if there are any
acme+helper+ana/scenes/Work.md     each of them as its file; not read by an import
acme+helper+ana/persona.md
```

Nothing in it depends on when or where something ran: no offsets, no log timestamps, no host,
no prefix, no version of Sediment. So the same events and atoms give the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.scenes.profiles import file_of
from stores.errors import UserError
from stores.ids import content_id, scope_parts
from stores.records import ATOM_TYPES, MAX_EVENT_BYTES, Atom, Profile, Tombstone
from stores.scenes import normal_name, render
from stores.tombstones import split

__all__ = [
    "ATOMS",
    "EVENTS",
    "FILES",
    "FORMAT_VERSION",
    "MANIFEST",
    "PAGE",
    "PERSONA",
    "PROFILES",
    "SCENES",
    "TOMBSTONES",
    "Manifest",
    "ScopeEntry",
    "atom_line",
    "canonical",
    "folder_name",
    "memory_page",
    "profile_line",
    "profile_page",
    "read_manifest",
    "sorted_atoms",
    "tombstone_lines",
]

FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)  # the first had no scenes and no persona
MANIFEST = "manifest.json"
EVENTS, ATOMS, PAGE = "events.jsonl", "atoms.jsonl", "memory.md"
FILES = (ATOMS, EVENTS, PAGE)
TOMBSTONES = "tombstones.jsonl"
PROFILES, PERSONA, SCENES = "profiles.jsonl", "persona.md", "scenes"

_LONGEST_NAME = 200  # bytes; file systems take 255
_SAFE_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_MARKUP = re.compile(r"([\\`*_\[\]<>#|])")


# --- names -----------------------------------------------------------------------------------


def folder_name(scope: str) -> str:
    """Name a scope's folder: small letters, digits, ``-``, ``_``; ``+`` between ids.

    All else is written as ``%`` and the UTF-8 bytes, capitals too, because some file systems
    take ``Ana`` and ``ana`` for one name. A name that would be too long is ``~`` and a hash; the
    manifest tells the scope of every folder.

    >>> folder_name("acme/helper/Ana")
    'acme+helper+%41na'
    """
    name = "+".join(_safe(part) for part in scope.split("/"))
    return name if len(name) <= _LONGEST_NAME else f"~{content_id('scope', scope)}"


def _safe(text: str) -> str:
    return "".join(
        chr(byte) if byte in _SAFE_BYTES else f"%{byte:02X}" for byte in text.encode("utf-8")
    )


# --- lines -----------------------------------------------------------------------------------


def canonical(value: bytes) -> bytes:
    """Write an event's JSON in one way: keys sorted, no white space, one line.

    Every field is kept, also those the contract has not. Numbers keep what a double holds.
    Where that cannot be (nested too deep, or it would grow over the limit of an event), the
    producer's own bytes stay, on one line.

    >>> canonical(b'{"v": 1, "b": {"y":2, "x":1e0}}')
    b'{"b":{"x":1.0,"y":2},"v":1}'
    """
    one_line = value.strip().replace(b"\r", b" ").replace(b"\n", b" ")  # none inside of strings
    try:
        parsed = json.loads(value.decode("utf-8"))
        text = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        written = text.encode("utf-8")
    except (ValueError, RecursionError):
        return one_line
    return written if len(written) <= MAX_EVENT_BYTES else one_line


def atom_line(atom: Atom) -> bytes:
    """Write an atom as the topic holds it."""
    return atom.model_dump_json(exclude_none=True).encode()


def profile_line(profile: Profile) -> bytes:
    """Write a scene or persona as the topic holds it."""
    return profile.model_dump_json(exclude_none=True).encode()


def profile_page(profile: Profile) -> tuple[str, bytes]:
    """Name a scene's or persona's Markdown file within its scope's folder, and give its bytes."""
    name = PERSONA if profile.kind == "persona" else f"{SCENES}/{normal_name(profile.path)}"
    return name, render(file_of(profile)).encode()


def sorted_atoms(atoms: Iterable[Atom]) -> list[Atom]:
    """Put atoms in the order of an export."""
    return sorted(atoms, key=lambda atom: (atom.occurred_at, atom.atom_id))


def tombstone_lines(tombstones: Iterable[Tombstone]) -> list[bytes]:
    """Write a scope's tombstones: one for each request, in the order of their time.

    Without places in a log, which say nothing elsewhere: what they cover is told by date and by
    keys, and a request is itself one of the events.
    """
    requests: dict[tuple[str, ...], list[Tombstone]] = {}
    for one in tombstones:
        whose = (one.request_id, one.kind, one.target, one.user_id or "", one.session_id or "")
        requests.setdefault(whose, []).append(one)
    merged = [
        ones[0].model_copy(
            update={
                "tombstone_id": content_id("exported", ones[0].scope, *whose),
                "event_keys": tuple(sorted({key for one in ones for key in one.event_keys})),
                "atom_ids": tuple(sorted({key for one in ones for key in one.atom_ids})),
                "text_keys": tuple(sorted({key for one in ones for key in one.text_keys})),
                "topic": "",
                "partition": 0,
                "offset": -1,
            }
        )
        for whose, ones in requests.items()
    ]
    merged.sort(key=lambda one: (one.requested_at, one.tombstone_id))
    return [
        part.model_dump_json(exclude_none=True).encode() for one in merged for part in split(one)
    ]


# --- manifest --------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScopeEntry(_Strict):
    """One scope of an export. ``files``: SHA-256 in hex, by file name."""

    scope: str
    folder: str
    events: int
    atoms: int
    profiles: int = 0
    files: dict[str, str]

    def as_written(self) -> bool:
        """Say whether folder and files have the names that an export gives them."""
        further = {*self.files} - {*FILES, TOMBSTONES, PROFILES, PERSONA}
        return (
            self.folder == folder_name(self.scope)
            and self.files.keys() >= {*FILES}
            and all(
                folder == SCENES and normal_name(name) == name
                for folder, _, name in (one.partition("/") for one in further)
            )
        )


class Manifest(_Strict):
    """What an export holds. Scopes in the order of their keys."""

    format: Literal["sediment-export"] = "sediment-export"
    version: Literal[1, 2] = 2
    scope_fields: tuple[str, ...]
    events: int
    atoms: int
    profiles: int = 0
    scopes: tuple[ScopeEntry, ...]

    def body(self) -> bytes:
        """Give the bytes of the manifest's file."""
        return (self.model_dump_json(indent=2) + "\n").encode()


def read_manifest(body: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises :class:`~stores.errors.UserError` when it is none, is of another version, or names a
    folder that is not its scope's.
    """
    try:
        given = json.loads(body)
        version = given.get("version") if isinstance(given, dict) else None
        if isinstance(version, int) and version not in _READ_VERSIONS:
            message = (
                f"{where}: format version {version}; this Sediment reads 1 to {FORMAT_VERSION}"
            )
            raise UserError(message)
        manifest = Manifest.model_validate_json(body)
    except (ValidationError, ValueError):
        message = f"{where} is not the manifest of an export"
        raise UserError(message) from None
    for entry in manifest.scopes:
        if not entry.as_written():
            message = f"{where}: the entry of scope {entry.scope} is not as an export writes it"
            raise UserError(message)
    return manifest


# --- the page for people ---------------------------------------------------------------------


def memory_page(scope: str, atoms: Sequence[Atom]) -> str:
    """Write a scope's atoms, in the order given, as Markdown: what holds by type, then the rest."""
    texts = {atom.atom_id: atom.text for atom in atoms}
    lines = [f"# Memory of {_plain(' / '.join(scope_parts(scope)))}", ""]
    active = [atom for atom in atoms if atom.status == "active"]
    for kind in ATOM_TYPES:
        of_kind = [atom for atom in active if atom.type == kind]
        if of_kind:
            lines += [f"## {kind.capitalize()}", "", *map(_active_line, of_kind), ""]
    if not active:
        lines += ["Nothing is remembered.", ""]
    superseded = [atom for atom in atoms if atom.status != "active"]
    if superseded:
        lines += ["## Superseded", "", *(_superseded_line(one, texts) for one in superseded), ""]
    return "\n".join(lines)


def _active_line(atom: Atom) -> str:
    happens = ""
    if atom.activity_start is not None:
        happens = f"; happens {_date(atom.activity_start)}"
        if atom.activity_end is not None and atom.activity_end != atom.activity_start:
            happens += f" to {_date(atom.activity_end)}"
    return f"- {_plain(atom.text)} ({_said(atom)}{happens}; from {_sources(atom)})"


def _superseded_line(atom: Atom, texts: dict[str, str]) -> str:
    until = f", until {_date(atom.valid_until)}" if atom.valid_until else ""
    newer = texts.get(atom.superseded_by or "")
    replaced = f"; now: {_plain(newer)}" if newer else ""
    return f"- {_plain(atom.text)} ({_said(atom)}{until}{replaced}; from {_sources(atom)})"


def _said(atom: Atom) -> str:
    since = "" if atom.valid_from == atom.occurred_at else f"first {_date(atom.valid_from)}, last "
    return f"said {since}{_date(atom.occurred_at)}"


def _sources(atom: Atom) -> str:
    return ", ".join(_plain(source) for source in atom.source_event_ids)


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _plain(text: str) -> str:
    """Put a text on one line, with nothing in it that Markdown would act on."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))

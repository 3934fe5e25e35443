"""Scene and persona files: Markdown with front matter, read tolerantly, written canonically. Pure.

:func:`render` gives the same bytes for the same file. :func:`parse` accepts whatever a person
or a model left behind: what is missing or wrong is repaired, from the file as it was known
before or from the text itself, and named; the body is always kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from stores.records import ProfileKind, to_utc
from stores.scenes.front_matter import Value, read_fields, split, write_fields
from stores.scenes.names import SUFFIX

__all__ = ["DELETED_MARK", "Parsed", "ProfileFile", "decode", "is_text", "parse", "render"]

DELETED_MARK = "[DELETED]"
MAX_TITLE_CHARS = 200
MAX_SUMMARY_CHARS = 1000

_FIRST_SUMMARY_CHARS = 200
_DATE = TypeAdapter(datetime)
_DATE_BEGINS = re.compile(r"\d{4}-\d\d-\d\d")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_PERSONA_KEYS = ("type", "title", "created", "updated", "summary", "atoms", "generator")
_SCENE_KEYS = (*_PERSONA_KEYS, "heat", "archived")
_EXTRA_KEY = re.compile(r"[a-z][\w-]*")
_ATOM_ID = re.compile(r"[\w.:-]{1,256}")


@dataclass(frozen=True, slots=True)
class ProfileFile:
    r"""A scene or persona file, taken apart. White space that the form has no room for goes.

    :arg title: one line, 1 to 200 characters.
    :arg body: Markdown without front matter; no white space around it, ``\n`` line ends.
    :arg created: event time, UTC; so is ``updated``, which no change of heat alone moves.
    :arg summary: one line, at most 1,000 characters.
    :arg heat: recall hits, summed over merged scenes; always 0 for a persona.
    :arg atoms: ids of the atoms the text rests on, each once, in order of arrival.
    :arg archived: ids of atoms that it no longer tells, kept on record. Never in ``atoms``.
    :arg generator: who wrote it last: model and prompt version, ``rules/1``, ``person``.
    :arg extra: fields of a person's own, kept as they came.
    """

    kind: ProfileKind
    title: str
    body: str
    created: datetime
    updated: datetime
    summary: str = ""
    heat: int = 0
    atoms: tuple[str, ...] = ()
    archived: tuple[str, ...] = ()
    generator: str = ""
    extra: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        # So that what was written is what is read back, whoever made it.
        object.__setattr__(self, "body", _lines(self.body).strip())
        for name in ("title", "summary", "generator"):
            object.__setattr__(self, name, " ".join(getattr(self, name).split()))


class Parsed(NamedTuple):
    """A file that was read, and in words what had to be repaired; nothing when it was whole."""

    file: ProfileFile
    repairs: tuple[str, ...]


def render(file: ProfileFile) -> str:
    """Write a file: fields in fixed order, one blank line, the body, one newline at the end.

    >>> when = datetime(2026, 3, 1, tzinfo=timezone.utc)
    >>> print(render(ProfileFile("scene", "Porto", "Moved there.", when, when, atoms=("a1",))))
    ---
    type: scene
    title: Porto
    created: "2026-03-01T00:00:00Z"
    updated: "2026-03-01T00:00:00Z"
    summary: ""
    heat: 0
    atoms:
      - a1
    generator: ""
    ---
    <BLANKLINE>
    Moved there.
    <BLANKLINE>
    """
    fields: list[tuple[str, Value | int]] = [
        ("type", file.kind),
        ("title", file.title),
        ("created", _iso(file.created)),
        ("updated", _iso(file.updated)),
        ("summary", file.summary),
    ]
    if file.kind == "scene":
        fields.append(("heat", file.heat))
    fields.append(("atoms", file.atoms))
    if file.archived:
        fields.append(("archived", file.archived))
    fields.append(("generator", file.generator))
    return f"{write_fields([*fields, *file.extra])}\n{file.body}\n"


def parse(
    text: str,
    kind: ProfileKind,
    path: str,
    at: datetime,
    known: ProfileFile | None = None,
) -> Parsed:
    """Read a file and repair it. Never raises; the body is kept, only control characters go.

    :arg path: the file name, for a title where nothing better is there.
    :arg at: time to take where a file that was not known before gives no date.
    :arg known: the file as it was before; its fields stand where ``text`` has none.
    """
    parts = split(text)
    repairs = ["a code fence around the whole file"] if parts.unwrapped else []
    fields: dict[str, Value] = {}
    if parts.fields is not None:
        fields, proper = read_fields(parts.fields)
        if not proper:
            repairs.append("front matter is not proper YAML")
    if not fields:
        repairs.append("no front matter")
    body = _CONTROL.sub("", parts.body).strip()
    if _CONTROL.search(parts.body):
        repairs.append("control characters in the body")
    reader = _Fields(fields, repairs)
    reader.kind(kind)
    atoms = reader.ids("atoms", known.atoms if known else ())
    archived = reader.ids("archived", known.archived if known else ()) if kind == "scene" else ()
    file = ProfileFile(
        kind=kind,
        title=reader.line("title", known.title if known else _title(body, path), MAX_TITLE_CHARS)
        or _title(body, path),
        body=body,
        created=reader.date("created", known.created if known else at),
        updated=reader.date("updated", known.updated if known else at),
        summary=reader.line(
            "summary", known.summary if known else _summary(body), MAX_SUMMARY_CHARS
        ),
        heat=reader.heat(known.heat if known else 0) if kind == "scene" else 0,
        atoms=atoms,
        archived=tuple(one for one in archived if one not in set(atoms)),
        generator=reader.line(
            "generator", known.generator if known else "unknown", MAX_TITLE_CHARS
        ),
        extra=known.extra if known and not fields else reader.extra(kind),
    )
    return Parsed(file, tuple(repairs))


def is_text(data: bytes) -> bool:
    """Say whether bytes are UTF-8 without control characters other than tab and line ends."""
    try:
        return _CONTROL.search(data.decode("utf-8").replace("\r\n", "\n")) is None
    except UnicodeDecodeError:
        return False


def decode(data: bytes) -> str:
    """Read a person's file whatever their editor wrote: UTF-8, UTF-16 with mark, Windows-1252.

    Never raises: the last resort gives every byte a character.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


class _Fields:
    """Takes typed values out of raw fields, and notes what was wrong with them."""

    def __init__(self, fields: Mapping[str, Value], repairs: list[str]) -> None:
        self._fields = fields
        self._repairs = repairs

    def kind(self, wanted: ProfileKind) -> None:
        if self._fields and self._fields.get("type") != wanted:
            self._repairs.append(f"type is not {wanted}")

    def line(self, key: str, default: str, most: int) -> str:
        value = self._fields.get(key)
        if value is None:
            self._missing(key)
            return default
        if not isinstance(value, str):
            self._repairs.append(f"{key} is a list")
            value = " ".join(value)
        line = " ".join(_CONTROL.sub(" ", value).split())
        if len(line) > most:
            self._repairs.append(f"{key} is longer than {most} characters")
            line = line[: most - 1].rstrip() + "…"
        return line

    def date(self, key: str, default: datetime) -> datetime:
        value = self._fields.get(key)
        if value is None:
            self._missing(key)
            return default
        try:
            # Without the dashes it would be taken for seconds since 1970.
            if isinstance(value, str) and _DATE_BEGINS.match(value):
                found = _DATE.validate_python(value)
                return to_utc(found if found.tzinfo else found.replace(tzinfo=timezone.utc))
        except (ValidationError, OverflowError):
            pass  # overflow: the first or last day there is, with an offset
        self._repairs.append(f"{key} is not a date")
        return default

    def heat(self, default: int) -> int:
        value = self._fields.get("heat")
        if value is None:
            self._missing("heat")
            return default
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
            return int(value)
        self._repairs.append("heat is not a whole number from 0 up")
        return default

    def ids(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._fields.get(key)
        if value is None:
            if key == "atoms":
                self._missing(key)
            return default
        items = re.split(r"[\s,]+", value.strip("[] ")) if isinstance(value, str) else value
        found = tuple(dict.fromkeys(item for item in items if _ATOM_ID.fullmatch(item)))
        if len(found) != len(items) and any(items):
            self._repairs.append(f"{key} holds something that is no id, or an id twice")
        return found

    def extra(self, kind: ProfileKind) -> tuple[tuple[str, Value], ...]:
        own = _SCENE_KEYS if kind == "scene" else _PERSONA_KEYS
        return tuple(
            (key, value)
            for key, value in self._fields.items()
            if key not in own and _EXTRA_KEY.fullmatch(key) and key.isascii()
        )

    def _missing(self, key: str) -> None:
        if self._fields:  # else "no front matter" says it all
            self._repairs.append(f"{key} is missing")


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _title(body: str, path: str) -> str:
    heading = _HEADING.search(body)
    text = heading[1] if heading else path.removesuffix(SUFFIX).replace("-", " ")
    return " ".join(text.split())[:MAX_TITLE_CHARS].strip() or "Scene"


def _summary(body: str) -> str:
    prose = (line.strip() for line in body.splitlines())
    first = next((line for line in prose if line and line[0] not in "#-*>|`"), "")
    first = " ".join(first.split())
    short = len(first) <= _FIRST_SUMMARY_CHARS
    return first if short else first[: _FIRST_SUMMARY_CHARS - 1].rstrip() + "…"


def _iso(when: datetime) -> str:
    return to_utc(when).isoformat().replace("+00:00", "Z")

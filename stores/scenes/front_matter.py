"""Front matter: the ``key: value`` lines between two ``---`` at the top of a file. Pure.

Reading is tolerant: real YAML first, and where a model or a person wrote something that is
nearly YAML, line by line. Every scalar is read as text, never guessed to be a number, date or
truth value: ids of digits only stay ids, and a title ``no`` stays a title. Aliases and tags
have no effect beyond that, and depth is bounded by the YAML library.

Writing is canonical: the same fields give the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import yaml

__all__ = ["Split", "Value", "read_fields", "split", "write_fields"]

Value = str | tuple[str, ...]

_MAX_CHARS = 64 * 1024
_FENCE = re.compile(r"\A\s*(`{3,}|~{3,})[a-zA-Z]*[ \t]*\n(.*?)\n\1[ \t]*\s*\Z", re.DOTALL)
_OPEN = re.compile(r"\A\s*---[ \t]*\n")
_CLOSE = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE)
# Models also write all fields on one line, and the closing dashes behind them.
_CLOSE_LATE = re.compile(r"(?<=[^\s-])[ \t]*---[ \t]*(?:\n|\Z)")
_FIELDS_IN_LINE = re.compile(r"(?<=\S)[ \t]*(?=\b(?:summary|atoms|archived):[ \t])")
_PAIR = re.compile(r"^([A-Za-z][\w-]*)[ \t]*:[ \t]*(.*)$")
_ITEM = re.compile(r"^[ \t]*-[ \t]+(.*)$")
_PLAIN = re.compile(r"[^\W\d_][\w \-./()+@]*")
_NOT_PLAIN = frozenset("y n yes no on off true false null".split())
# YAML takes these for line ends or refuses them, though JSON lets them stand.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_Loader: type[yaml.BaseLoader] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class Split(NamedTuple):
    """A file taken apart.

    :arg fields: raw text of the front matter, or ``None`` when there is none.
    :arg body: everything behind it, as it stands.
    :arg unwrapped: the whole file stood in a code fence, which was taken off.
    """

    fields: str | None
    body: str
    unwrapped: bool


def split(text: str) -> Split:
    r"""Take a file apart. Text whose front matter is opened and never closed is all body.

    >>> split("---\ntitle: Trip\n---\nTo Porto.")
    Split(fields='title: Trip\n', body='To Porto.', unwrapped=False)
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    fenced = _FENCE.match(text)
    # Only a fence around a file with front matter: a note may well be one block of code.
    unwrapped = fenced is not None and _OPEN.match(fenced[2]) is not None
    if fenced is not None and unwrapped:
        text = fenced[2]
    opened = _OPEN.match(text)
    closed = None if opened is None else _CLOSE.search(text, opened.end())
    late = None if opened is None or closed is not None else _CLOSE_LATE.search(text, opened.end())
    if late is not None and opened is not None and text.startswith("title:", opened.end()):
        fields = _FIELDS_IN_LINE.sub("\n", text[opened.end() : late.start()])
        return Split(f"{fields}\n", text[late.end() :], unwrapped)
    if opened is None or closed is None:
        return Split(None, text, unwrapped)
    fields = text[opened.end() : closed.start()]
    if fields.strip() and not any(_PAIR.match(line) for line in fields.splitlines()):
        return Split(None, text, unwrapped)  # two thematic breaks around prose
    return Split(fields, text[closed.end() :], unwrapped)


def read_fields(raw: str) -> tuple[dict[str, Value], bool]:
    r"""Read the fields, keys in lower case, and say whether all of it was proper YAML.

    A value is text or a flat list of texts; what is nested deeper is left out and counts as
    improper.

    >>> read_fields("Title: Porto: the move\natoms: [a1, 007]")
    ({'title': 'Porto: the move', 'atoms': ('a1', '007')}, False)
    """
    if len(raw) > _MAX_CHARS:
        raw = raw[:_MAX_CHARS]
    try:
        loaded = yaml.load(raw, Loader=_Loader)  # a BaseLoader builds only str, list, dict
    except (yaml.YAMLError, RecursionError, ValueError):
        return _read_lines(raw), False
    if loaded is None or loaded == "":
        return {}, True
    if not isinstance(loaded, dict):
        return _read_lines(raw), False
    fields: dict[str, Value] = {}
    proper = True
    for key, value in loaded.items():
        if isinstance(key, str) and isinstance(value, str):
            fields[key.strip().lower()] = _clean(value)
        elif isinstance(key, str) and isinstance(value, list):
            flat = [_clean(item) for item in value if isinstance(item, str)]
            fields[key.strip().lower()] = tuple(flat)
            proper = proper and len(flat) == len(value)
        else:
            proper = False
    return fields, proper


def _read_lines(raw: str) -> dict[str, Value]:
    fields: dict[str, Value] = {}
    last = ""
    for line in raw.splitlines():
        pair, item = _PAIR.match(line), _ITEM.match(line)
        if pair is not None:
            last = pair[1].lower()
            fields[last] = _line_value(pair[2].strip())
        elif item is not None and last:
            before = fields[last]
            known = before if isinstance(before, tuple) else ((before,) if before else ())
            fields[last] = (*known, _unquoted(item[1].strip()))
    return fields


def _line_value(text: str) -> Value:
    if text.startswith("[") and text.endswith("]"):
        items = (_unquoted(item.strip()) for item in text[1:-1].split(","))
        return tuple(item for item in items if item)
    return _unquoted(text)


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return _clean(text)


def _clean(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def write_fields(fields: Mapping[str, Value | int] | Iterable[tuple[str, Value | int]]) -> str:
    """Write front matter with both ``---`` lines, in the order given; empty lists as ``[]``.

    >>> print(write_fields({"title": "Trip", "heat": 3, "atoms": ("007",)}), end="")
    ---
    title: Trip
    heat: 3
    atoms:
      - "007"
    ---
    """
    lines = ["---"]
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    for key, value in pairs:
        if isinstance(value, int):
            lines.append(f"{key}: {value}")
        elif isinstance(value, str):
            lines.append(f"{key}: {_scalar(value)}")
        elif value:
            lines.append(f"{key}:")
            lines.extend(f"  - {_scalar(item)}" for item in value)
        else:
            lines.append(f"{key}: []")
    return "\n".join([*lines, "---", ""])


def _scalar(text: str) -> str:
    """Give plain text where no YAML reader could take it for anything else, else quoted."""
    if text.casefold() not in _NOT_PLAIN:
        if text.isascii() and text.isalnum():  # most are ids
            return text if text[0].isalpha() else f'"{text}"'
        if _PLAIN.fullmatch(text) and text == text.strip() and not _ESCAPED.search(text):
            return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)

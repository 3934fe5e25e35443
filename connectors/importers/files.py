"""What an import file looks like from outside: one JSON document, or one JSON value a line.

JSON Lines are read line by line, so a file of any size takes the memory of its longest line;
a document is read whole. Formats are told by content, never by the file's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecoder
from pathlib import Path
from typing import Any, Literal

import orjson

from stores.errors import InvalidEvent, UserError

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "MAX_LINE_BYTES",
    "Document",
    "FileFormat",
    "Shape",
    "detect",
    "json_lines",
    "load",
]

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is refused without being held; a line may be a conversation of many events."""

MAX_DOCUMENT_BYTES = 1024 * 1024 * 1024
"""A larger JSON document is refused; the same content fits in JSON Lines of any size."""

FileFormat = Literal["events", "messages", "sessions"]

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(r"[ \t\r\n]*")
_PLACE_DEPTH = 5  # sessions, [i], conversations, [j], [k]
_HINT = "give --format events, messages or sessions"


class Document:
    """A JSON document, parsed, that still knows on which line a value began."""

    def __init__(self, data: bytes) -> None:
        self.value: Any = load(data)
        self._data = data
        self._lines: dict[str, int] | None = None

    def line(self, path: str) -> int:
        r"""Give the line on which the value at ``path`` begins, from 1; 0 when unknown.

        >>> Document(b'{"a": 1,\n "b": [2,\n 3]}').line("$.b[1]")
        3
        """
        if self._lines is None:  # only a file with a problem pays for this
            self._lines = _line_index(self._data.decode("utf-8"))
        return self._lines.get(path, 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """The format of a file; ``document`` is ``None`` when each line is a JSON value."""

    format: FileFormat
    document: Document | None = None


def load(data: bytes | None) -> Any:
    """Parse JSON; ``None`` stands for a line that was too long to be held.

    Raises :class:`~stores.errors.InvalidEvent`: ``oversized``, ``invalid_utf8`` (with the
    byte), ``invalid_json`` (with line and column).
    """
    if data is None:
        message = f"the line is larger than {MAX_LINE_BYTES} bytes"
        raise InvalidEvent(reason="oversized", message=message)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as wrong:
            message = f"not UTF-8: byte {wrong.start + 1}"
            raise InvalidEvent(reason="invalid_utf8", message=message) from None
        where = f"line {error.lineno}, " if error.lineno > 1 else ""
        message = f"not JSON: {error.msg} ({where}column {error.colno})"
        raise InvalidEvent(reason="invalid_json", message=message) from None


def json_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Read the lines that are not blank, with their numbers from 1, without a UTF-8 BOM.

    A line longer than :data:`MAX_LINE_BYTES` comes as ``None``.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
                yield number, None
                continue
            if number == 1:
                line = line.removeprefix(_BOM)
            if line := line.strip():
                yield number, line


def detect(path: Path, wanted: FileFormat | Literal["auto"]) -> Shape:
    """Tell what a file holds.

    Raises :class:`~stores.errors.UserError` when the file cannot be read, when it is a broken
    or too large document, and when ``wanted`` is ``auto`` and the content fits none or
    several formats.
    """
    try:
        return _detect(path, wanted)
    except OSError as error:
        message = f"{path}: {error.strerror or error}"
        raise UserError(message) from None


def _detect(path: Path, wanted: FileFormat | Literal["auto"]) -> Shape:
    with path.open("rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            message = f"{path}: the file is UTF-16; save it as UTF-8"
            raise UserError(message)
    lines = json_lines(path)
    first, second = next(lines, None), next(lines, None)
    if first is None:
        return Shape("events" if wanted == "auto" else wanted)
    if wanted == "events":
        return Shape("events")
    value = _parsed(first[1])
    if isinstance(value, dict) and wanted != "sessions" and "sessions" not in value:
        return Shape(_only(path, _formats(value), wanted))
    if value is None and wanted != "sessions" and not _opens_document(first[1], second is None):
        return Shape(_format_of_lines(path, wanted))
    document = _read_document(path)
    found = _only(path, _formats(document.value), wanted)
    if found == "events":
        message = f"{path}: native events must be one JSON object a line, this is one document"
        raise UserError(message)
    return Shape(found, document)


def _parsed(line: bytes | None) -> Any:
    try:
        return load(line)
    except InvalidEvent:
        return None


def _opens_document(line: bytes | None, alone: bool) -> bool:
    """Tell a document's first line from a broken or too long line of JSON Lines."""
    if line is None:
        return alone
    return line[:1] in b"[{" and line[-1:] in b"[{,:"


def _format_of_lines(path: Path, wanted: FileFormat | Literal["auto"]) -> FileFormat:
    """Look past broken first lines for one that tells the format."""
    if wanted != "auto":
        return wanted
    wrong = ""
    for number, line in json_lines(path):
        try:
            return _only(path, _formats(load(line)), wanted)
        except InvalidEvent as error:
            wrong = wrong or f"line {number}: {error.message}"
    message = f"{path}: {wrong}, and no other line is JSON either"
    raise UserError(message)


def _read_document(path: Path) -> Document:
    size = path.stat().st_size
    if size > MAX_DOCUMENT_BYTES:
        message = (
            f"{path}: a JSON document of {size} bytes, the limit is {MAX_DOCUMENT_BYTES}; "
            "write one conversation a line instead"
        )
        raise UserError(message)
    try:
        return Document(path.read_bytes().removeprefix(_BOM))
    except InvalidEvent as error:
        message = f"{path}: {error.message}"
        raise UserError(message) from None


def _formats(value: Any) -> set[FileFormat]:
    """Tell which formats a value could belong to; a list by its first item."""
    if isinstance(value, list):
        return _formats(value[0]) if value and isinstance(value[0], dict) else set()
    if not isinstance(value, dict):
        return set()
    found: set[FileFormat] = set()
    if "event_id" in value or "v" in value:
        found.add("events")
    if value.keys() & {"sessions", "conversations", "sessionKey"}:
        found.add("sessions")
    if "messages" in value or ("role" in value and not found):
        found.add("messages")
    return found


def _only(path: Path, found: set[FileFormat], wanted: FileFormat | Literal["auto"]) -> FileFormat:
    if wanted != "auto":
        return wanted
    if len(found) == 1:
        return found.pop()
    what = f"it could be {' or '.join(sorted(found))}" if found else "it looks like none of them"
    message = f"{path}: cannot tell the format, {what}; {_HINT}"
    raise UserError(message)


def _line_index(text: str) -> dict[str, int]:
    """Map the JSON path of each value, down to single messages, to its line."""
    lines: dict[str, int] = {}
    decode = JSONDecoder().raw_decode
    line, counted = 1, 0

    def skip(pos: int) -> int:
        return _SPACE.match(text, pos).end()  # type: ignore[union-attr]  # matches anywhere

    def visit(pos: int, path: str, depth: int) -> int:
        nonlocal line, counted
        line, counted = line + text.count("\n", counted, pos), pos
        lines[path] = line
        if depth == _PLACE_DEPTH or text[pos] not in "[{":
            return int(decode(text, pos)[1])
        is_object = text[pos] == "{"
        index, pos = 0, skip(pos + 1)
        while text[pos] not in "]}":
            step = f"[{index}]"
            if is_object:
                key, pos = decode(text, pos)
                step, pos = f".{key}", skip(skip(pos) + 1)
            pos = skip(visit(pos, path + step, depth + 1))
            index, pos = index + 1, skip(pos + (text[pos] == ","))
        return pos + 1

    try:
        visit(skip(0), "$", 0)
    except (ValueError, RecursionError):  # limits of Python's parser that orjson has not
        return {}
    return lines

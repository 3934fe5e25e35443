"""The three tools of the scene agent: read, write, edit, on a copy and nowhere else.

The agent gets plain file names in one folder and nothing more: no listing, no delete, no
folders, no links, no system file. What it may not or cannot have is a :class:`ToolError` whose
message tells it what to do instead. A disk that is full or broken is ``ServiceUnavailable``:
no fault of the model.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stores.errors import ServiceUnavailable
from stores.scenes.document import DELETED_MARK, is_text
from stores.scenes.errors import ToolError
from stores.scenes.names import SUFFIX
from stores.scenes.tidy import is_unfinished

__all__ = ["SandboxLimits", "SceneSandbox", "ToolCall"]

_MAX_SEGMENT_BYTES = 200
_DISK = "scene folder"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """How much an agent may write. Files that are marked ``[DELETED]`` still count.

    :arg max_file_bytes: of one file in UTF-8, front matter included.
    :arg max_files: in the folder at any time; above the capacity, because a merge first writes
        the new file and then marks the old ones.
    """

    max_file_bytes: int = 16 * 1024
    max_files: int = 30


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, as it was answered. Holds no text of a file.

    :arg size: bytes read or written; 0 for a refused call.
    :arg refused: reason of the :class:`ToolError`, or ``None``.
    """

    tool: Literal["read", "write", "edit"]
    path: str
    size: int
    refused: str | None = None


class SceneSandbox:
    """The tools over one folder. Not safe to share between threads; an agent calls in turn.

    :arg folder: the working copy; only regular ``.md`` files in it are seen.
    """

    def __init__(self, folder: Path, limits: SandboxLimits | None = None) -> None:
        self._folder = folder
        self._limits = limits or SandboxLimits()
        self._calls: list[ToolCall] = []

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Every call so far, the refused ones too, in order."""
        return tuple(self._calls)

    def read(self, path: str) -> str:
        """Give the whole text of a file. Raises :class:`ToolError`."""
        with _Recorded(self._calls, "read", path) as call:
            text = self._read(self._existing(path))
            call.size = len(text.encode("utf-8"))
            return text

    def write(self, path: str, text: str) -> str:
        """Make a file or replace all of it, and say so. Raises :class:`ToolError`."""
        with _Recorded(self._calls, "write", path) as call:
            name = self._name(path)
            is_new = not self._is_file(name)
            if is_new and len(self._files()) >= self._limits.max_files:
                message = (
                    f"There are {self._limits.max_files} files already and no more are allowed. "
                    "Put this into an existing file."
                )
                raise ToolError(message, reason="too_many_files")
            call.size = self._write(name, text)
            return f"{'Created' if is_new else 'Replaced'} {name}."

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace the first place where ``old`` stands, character for character, by ``new``.

        Raises :class:`ToolError`.
        """
        with _Recorded(self._calls, "edit", path) as call:
            name = self._existing(path)
            text = self._read(name)
            if not old:
                message = "`old` is empty: give the exact text to replace, or use write."
                raise ToolError(message, reason="text_not_found")
            before, found, after = text.partition(old)
            if not found:
                message = (
                    f"The text to replace is not in {name}. It must match character for "
                    "character, white space and line ends too. Read the file and try again."
                )
                raise ToolError(message, reason="text_not_found")
            call.size = self._write(name, before + new + after)
            more = after.count(old)
            also = f" The old text also stands in {more} later place(s)." if more else ""
            return f"Edited {name}.{also}"

    def _name(self, path: str) -> str:
        """Check a path and give the name of the file in the folder."""
        name = unicodedata.normalize("NFC", path.strip())
        name = name.removeprefix("./")
        if not name or name.startswith(("/", "\\", "~")) or name[1:2] == ":":
            message = "Give a plain file name such as `moving-to-lisbon.md`, not an absolute path."
            raise ToolError(message, reason="bad_path")
        if "/" in name or "\\" in name or name.startswith("."):
            message = "There are no folders here. Give a plain name such as `moving-to-lisbon.md`."
            raise ToolError(message, reason="bad_path")
        if not name.lower().endswith(SUFFIX):
            message = "Only files that end in `.md` can be read and written."
            raise ToolError(message, reason="bad_path")
        try:
            encoded = name.encode("utf-8")
        except UnicodeEncodeError:
            encoded = b""
        if not 0 < len(encoded) <= _MAX_SEGMENT_BYTES or not name.isprintable():
            message = "The file name is too long or holds characters that cannot be shown."
            raise ToolError(message, reason="bad_path")
        return name

    def _existing(self, path: str) -> str:
        name = self._name(path)
        if not self._is_file(name):
            message = f"There is no file {name}. Use the names you were told, or write a new file."
            raise ToolError(message, reason="unknown_file")
        return name

    def _is_file(self, name: str) -> bool:
        try:
            mode = (self._folder / name).lstat().st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ServiceUnavailable(_DISK, f"{name}: {error.strerror}") from error
        if not stat.S_ISREG(mode):
            message = f"{name} is not a plain file and cannot be used."
            raise ToolError(message, reason="bad_path")
        return True

    def _files(self) -> list[str]:
        return [name for name in os.listdir(self._folder) if name.lower().endswith(SUFFIX)]

    def _read(self, name: str) -> str:
        data = self._open(name, os.O_RDONLY)
        if not is_text(data):
            message = f"{name} is not readable text. Replace all of it with write."
            raise ToolError(message, reason="bad_text")
        return data.decode("utf-8")

    def _write(self, name: str, text: str) -> int:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            data = b"\0"  # half a character
        if not is_text(data):
            message = "The text holds control characters or half characters. Send plain text."
            raise ToolError(message, reason="bad_text")
        if is_unfinished(text):
            message = (
                f"{name} would have no text below its front matter and headings. Write what the "
                f"scene says below the second ---, or {DELETED_MARK} alone to take the file away."
            )
            raise ToolError(message, reason="no_text")
        most = self._limits.max_file_bytes
        if len(data) > most:
            message = f"The file would have {len(data)} bytes; at most {most} are allowed. Shorten."
            raise ToolError(message, reason="too_large")
        self._open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, data)
        return len(data)

    def _open(self, name: str, flags: int, data: bytes = b"") -> bytes:
        """Open without following a link, then write ``data`` or read everything."""
        try:
            descriptor = os.open(self._folder / name, flags | os.O_NOFOLLOW, 0o644)
            with os.fdopen(descriptor, "wb" if flags & os.O_WRONLY else "rb") as file:
                if flags & os.O_WRONLY:
                    file.write(data)
                    return b""
                return file.read()
        except OSError as error:
            raise ServiceUnavailable(_DISK, f"{name}: {error.strerror}") from error


class _Recorded:
    """Writes a call down when it ends, whichever way it ends."""

    def __init__(
        self, calls: list[ToolCall], tool: Literal["read", "write", "edit"], path: str
    ) -> None:
        self._calls, self._tool, self._path = calls, tool, path
        self.size = 0

    def __enter__(self) -> _Recorded:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._calls.append(ToolCall(self._tool, self._path, self.size))
        elif isinstance(error, ToolError):
            self._calls.append(ToolCall(self._tool, self._path, 0, error.reason))

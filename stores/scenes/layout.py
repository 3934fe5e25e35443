"""How a scope's folder is laid out on disk, read without any lock.

Raises ``OSError`` as the system gives it, and ``StoreMismatch`` for what cannot be read.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from stores.errors import StoreMismatch
from stores.scenes.generation import EMPTY, Generation, Pointer, digest
from stores.scenes.names import SUFFIX

__all__ = [
    "LOCK",
    "MANIFEST",
    "POINTER",
    "SCOPE",
    "edited_files",
    "folder_name",
    "generation_numbers",
    "manifest_of",
    "md_files",
    "pointer_of",
]

POINTER, MANIFEST, SCOPE, LOCK = "current", "manifest.json", "scope", "lock"

_GENERATION = re.compile(r"g(\d{6,})")


def folder_name(number: int) -> str:
    """Give the name of a generation's folder."""
    return f"g{number:06d}"


def generation_numbers(home: Path) -> list[int]:
    """Give the numbers of all generations on disk, in order; one may not have become current."""
    found = (_GENERATION.fullmatch(name) for name in _names(home))
    return sorted(int(match[1]) for match in found if match is not None)


def _names(home: Path) -> list[str]:
    try:
        return os.listdir(home)
    except FileNotFoundError:  # a scope that has no folder yet
        return []


def md_files(folder: Path) -> dict[str, bytes]:
    """Read the regular ``.md`` files of a folder, by name; links and anything else are not seen."""
    files: dict[str, bytes] = {}
    for name in sorted(os.listdir(folder)):
        path = folder / name
        hidden = name.startswith(".") or not name.lower().endswith(SUFFIX)
        if not hidden and stat.S_ISREG(path.lstat().st_mode):
            files[name] = path.read_bytes()
    return files


def edited_files(home: Path, number: int) -> dict[str, bytes] | None:
    """Give the files of a generation if they are not what its manifest says, else ``None``."""
    if number == 0:
        return None
    files = md_files(home / folder_name(number))
    found = {name: digest(data) for name, data in files.items()}
    return None if found == manifest_of(home, number).digests else files


def manifest_of(home: Path, number: int) -> Generation:
    """Read what is known of a generation; number 0 is empty."""
    if number == 0:
        return EMPTY
    data = (home / folder_name(number) / MANIFEST).read_bytes()
    try:
        return Generation.from_json(data)
    except ValueError:
        raise _damaged(home, f"{folder_name(number)}/{MANIFEST}") from None


def pointer_of(home: Path) -> Pointer:
    """Read the pointer; without one nothing has become current yet."""
    try:
        return Pointer.from_json((home / POINTER).read_bytes())
    except FileNotFoundError:
        return Pointer()
    except ValueError:
        return _recovered(home)


def _recovered(home: Path) -> Pointer:
    """Point to the newest whole generation. No crash of ours damages the pointer; a disk may."""
    for number in reversed(generation_numbers(home)):
        try:
            generation = manifest_of(home, number)
            whole = generation.digests.keys() <= md_files(home / folder_name(number)).keys()
        except (OSError, StoreMismatch):
            continue
        if whole:
            return Pointer(number, generation.token)
    raise _damaged(home, POINTER)


def _damaged(home: Path, what: str) -> StoreMismatch:
    message = f"{home / what} cannot be read; put it back from a backup, or move {home} away"
    return StoreMismatch(message)

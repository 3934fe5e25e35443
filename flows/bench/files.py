"""Finds and reads the data files of a benchmark; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import orjson

from stores.errors import UserError

__all__ = ["json_of", "load_json", "one_file", "read_json"]

T = TypeVar("T")


def one_file(folder: Path, *patterns: str) -> Path:
    """Find the one file of a folder that matches; a file given in its place is taken as it is.

    Raises :class:`~stores.errors.UserError` when there is none or more than one.
    """
    found = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    if len(found) == 1:
        return found[0]
    wanted = " or ".join(patterns)
    if not found:
        message = f"--data: no {wanted} in {folder}; docs/benchmark-quality.md says where it is"
        raise UserError(message)
    message = f"--data: {len(found)} files match {wanted} in {folder}; leave one of them there"
    raise UserError(message)


def read_json(path: Path, kind: type[T]) -> T:
    """Read a JSON file whose top is a ``kind``."""
    return json_of(path.read_bytes(), str(path), kind)


def json_of(text: str | bytes, where: str, kind: type[T]) -> T:
    """Read JSON whose top is a ``kind``; raises ``UserError`` that says where it is not."""
    value = load_json(text)
    if not isinstance(value, kind):
        message = f"{where}: is not the JSON {kind.__name__} that this benchmark has there"
        raise UserError(message)
    return value


def load_json(text: str | bytes) -> Any:
    """Read JSON; ``None`` when it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None

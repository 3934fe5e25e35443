"""One replay of a generation at a time on this data folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stores.errors import UserError

__all__ = ["only_one"]


@contextmanager
def only_one(folder: Path, generation: str) -> Iterator[None]:
    """Hold a generation's folder for this process; the lock dies with it.

    Raises :class:`~stores.errors.UserError` when another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "replay.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another process replays into generation {generation}; stop it first"
            raise UserError(message) from None
        yield
    finally:
        os.close(descriptor)

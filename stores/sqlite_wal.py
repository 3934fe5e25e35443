"""A SQLite file that several processes may open at once, also when it is new."""

from __future__ import annotations

import sqlite3
import time

__all__ = ["use_write_ahead_log"]

_LOOK_EVERY_S = 0.02


def use_write_ahead_log(connection: sqlite3.Connection, within_s: float) -> None:
    """Let a file go over to its write-ahead log, once whoever writes to it has ended.

    SQLite waits for nobody in this one statement, whatever the connection's time limit is.
    Raises :class:`sqlite3.OperationalError` when that takes longer than ``within_s`` seconds.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_EVERY_S)
        else:
            return

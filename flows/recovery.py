"""What a killed run left half written in the recovery store, taken out before the next one starts.

Bytewax writes the snapshots of an epoch row by row and moves the epoch's frontier when all are
there. A run that is killed in between leaves rows of an epoch that never closed. The next run
resumes before them and does not read them, but it does not delete them either, and it counts
its epochs on from the same number: where a key has nothing to say in that epoch, the dead row
stays, and the run after that takes it for the key's state. Windows that it shows as closed are
then in no stage: lost. Held by ``tests/flows/test_recovery.py``; found by seed 65 of the fault rig.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from stores.errors import ServiceUnavailable

__all__ = ["drop_unfinished", "resume_epoch"]


def drop_unfinished(folder: Path) -> int:
    """Delete the snapshots of epochs that never closed, and say how many there were.

    Idempotent, and safe to be killed in. No run may be using the store. Raises
    :class:`~stores.errors.ServiceUnavailable` when a file of it cannot be read or written.
    """
    epoch = resume_epoch(folder)
    if epoch is None:
        return 0
    dropped = 0
    for part in _parts(folder):
        with _opened(part) as connection, connection:
            sql = "DELETE FROM snaps WHERE snap_epoch >= ?"
            dropped += connection.execute(sql, (epoch,)).rowcount
    return dropped


def resume_epoch(folder: Path) -> int | None:
    """Give the epoch at which the next run begins; ``None`` when there was no run yet.

    As Bytewax finds it: how far every worker of the newest run had come, or had begun.
    """
    runs: dict[int, tuple[int, int]] = {}
    fronts: dict[tuple[int, int], int] = {}
    for part in _parts(folder):
        with _opened(part) as connection:
            sql = "SELECT ex_num, worker_count, resume_epoch FROM exs"
            runs |= {run: (workers, begun) for run, workers, begun in connection.execute(sql)}
            sql = "SELECT ex_num, worker_index, worker_frontier FROM fronts"
            fronts |= {(run, worker): front for run, worker, front in connection.execute(sql)}
    if not runs:
        return None
    newest = max(runs)
    workers, begun = runs[newest]
    return min(fronts.get((newest, worker), begun) for worker in range(workers))


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.sqlite3"))


@contextmanager
def _opened(part: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(part)) as connection:
            yield connection
    except sqlite3.Error as error:
        service = "recovery store"
        raise ServiceUnavailable(service, f"{part}: {error}") from error

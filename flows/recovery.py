"""What a killed run left half written in the recovery store, taken out before the next one starts.

Bytewax writes the snapshots of an epoch row by row and moves the epoch's frontier when all are
there. A run that is killed in between leaves rows of an epoch that never closed. The next run
resumes before them and does not read them, but it does not delete them either, and it counts
its epochs on from the same number: where a key has nothing to say in that epoch, the dead row
stays, and the run after that takes it for the key's state. Windows that it shows as closed are
then in no stage: lost. Held by ``tests/flows/test_recovery.py``; found by seed 65 of the fault rig.

``sediment run`` does this by itself, and so do the flows when Bytewax's own command runs them.
Both need the whole store in one folder; of a cluster, in that of one process.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from stores.errors import ServiceUnavailable, SettingsError

__all__ = [
    "SNAPSHOT_FORMAT",
    "check_format",
    "check_log",
    "drop_unfinished",
    "guard_plain_run",
    "resume_epoch",
    "sole_user",
]

SNAPSHOT_FORMAT = 1
"""Form of what flows pickle into snapshots. One more when an older one cannot be read any more:
``tests/flows/test_snapshot_format.py`` goes red then."""

_SHARE_S = 5.0
"""Seconds that a process waits for one of its cluster which is taking rows out."""
_log = logging.getLogger(__name__)


# --- rows of an epoch that never closed ------------------------------------------------------


def drop_unfinished(folder: Path) -> int:
    """Delete the snapshots of epochs that never closed, and say how many there were.

    Idempotent, and safe to be killed in. No run may be using the store, and ``folder`` must
    hold all of its files. Raises :class:`~stores.errors.ServiceUnavailable` when a file of it
    cannot be read or written.
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


def _is_whole(folder: Path) -> bool:
    """Say whether a folder holds every file of its recovery store, or none."""
    count, found = 0, set[int]()
    for part in _parts(folder):
        with _opened(part) as connection:
            for index, parts in connection.execute("SELECT part_index, part_count FROM parts"):
                found.add(index)
                count = max(count, parts)
    return len(found) == count


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


# --- snapshots of another version ------------------------------------------------------------


def check_format(folder: Path) -> None:
    """Refuse snapshots that this version cannot read; mark a store that has none yet.

    Raises :class:`~stores.errors.SettingsError`, before anything of the store is changed.
    """
    mark = folder / "format"
    try:
        found = mark.read_text("utf-8").strip() if mark.exists() else ""
        if not found and resume_epoch(folder) is None:
            mark.write_text(f"{SNAPSHOT_FORMAT}\n", "utf-8")
            return
    except OSError as error:
        service = "recovery store"
        raise ServiceUnavailable(service, f"{mark}: {error.strerror}") from error
    if found != str(SNAPSHOT_FORMAT):
        message = (
            f"the snapshots in {folder} have format {found or 0}, and this version reads "
            f"{SNAPSHOT_FORMAT}. Run the version that wrote them to the end of its log, or move "
            "the folder away: the flow then reads from the beginning of the log, and what has a "
            "recorded answer is not asked again. docs/deploy.md#upgrade says more"
        )
        raise SettingsError(message)


def check_log(folder: Path, log: str) -> None:
    """Refuse snapshots of another log: its offsets would be taken for this one's.

    Records would be skipped unread, and nobody would notice. A store that does not say which
    log it is of, is of this one from now on. Raises :class:`~stores.errors.SettingsError`.

    :arg log: what tells the log from every other one that has such partitions.
    """
    mark = folder / "log"
    try:
        found = mark.read_text("utf-8").strip() if mark.exists() else ""
        if not found:
            mark.write_text(f"{log}\n", "utf-8")
            return
    except OSError as error:
        service = "recovery store"
        raise ServiceUnavailable(service, f"{mark}: {error.strerror}") from error
    if found != log:
        message = (
            f"the snapshots in {folder} are of {found}, and this run reads {log}: it would go on "
            "at offsets of the other one and skip what stands before. Give it a data folder of "
            "its own, or move the folder away: the flow then reads from the beginning. Only where "
            f"both hold the same records at the same offsets, delete {mark} instead"
        )
        raise SettingsError(message)


# --- one user at a time ----------------------------------------------------------------------


@contextmanager
def sole_user(folder: Path, *, in_cluster: bool = False) -> Iterator[None]:
    """Keep others off a recovery store, whether it is there yet or not.

    Two runs on one store would take out what the other is writing. The system lets go of it
    when the process dies, however it dies. Raises :class:`~stores.errors.SettingsError` when
    somebody else has it.

    :arg in_cluster: share it with the other processes of one run, which do the same.
    """
    with _lock_file(folder) as file:
        if not _taken(file, fcntl.LOCK_SH if in_cluster else fcntl.LOCK_EX):
            raise _in_use(folder)
        yield


def guard_plain_run(
    arguments: Sequence[str], environment: Mapping[str, str], log: str = ""
) -> IO[bytes] | None:
    """Make the recovery store fit for a run by Bytewax's own command, which does not do it.

    Processes of one cluster share the store: the first one takes out what a killed run left,
    before any of them can have begun, for each waits until all are there. Raises
    :class:`~stores.errors.SettingsError` when ``sediment run`` is using it, or when some of its
    files are elsewhere: what a killed run left could not be told from what is finished.

    :arg arguments: of the command.
    :arg log: which log the flow reads, see :func:`check_log`; empty is not asked.
    :returns: what holds the store; keep it until the process ends. ``None`` without a store.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-r", "--recovery-directory", type=Path)
    named = parser.parse_known_args(list(arguments))[0].recovery_directory
    folder = named or environment.get("BYTEWAX_RECOVERY_DIRECTORY")
    if not folder:
        return None
    folder = Path(folder)
    if not _is_whole(folder):
        message = (
            f"{folder} holds only some files of its recovery store. Put all of them into the "
            "folder of one process; the others of a cluster need an empty one"
        )
        raise SettingsError(message)
    file = _lock_file(folder)
    check_format(folder)
    if log:
        check_log(folder, log)
    if _taken(file, fcntl.LOCK_EX):
        dropped = drop_unfinished(folder)
        if dropped:
            _log.warning("%s: took out %d rows of an epoch that never closed", folder, dropped)
    deadline = time.monotonic() + _SHARE_S
    while not _taken(file, fcntl.LOCK_SH):  # as another process of the cluster does, or will
        if time.monotonic() > deadline:
            file.close()
            raise _in_use(folder)
        time.sleep(_SHARE_S / 100)
    return file


def _lock_file(folder: Path) -> IO[bytes]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder.with_name(f"{folder.name}.lock").open("ab")
    except OSError as error:
        service = "recovery store"
        raise ServiceUnavailable(service, f"{folder}: {error.strerror}") from error


def _taken(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file.fileno(), how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(folder: Path) -> SettingsError:
    message = (
        f"the recovery store {folder} is in use by another process: one flow runs once; stop the "
        "other one, or give this one a data folder of its own"
    )
    return SettingsError(message)

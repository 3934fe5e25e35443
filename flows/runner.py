"""Runs a dataflow until its input ends or somebody asks it to stop.

Asked to stop (SIGINT, SIGTERM), the sources end where they are, calls in flight get a grace
period, and everything unfinished goes into the last recovery snapshot, which the next run
resumes from. Killed instead, the next run resumes from the last snapshot before that and
repeats what came after it, with the same ids. Neither loses anything.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import FrameType

from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from flows.recovery import check_format, check_log, drop_unfinished, sole_user
from stores.errors import SedimentError, ServiceUnavailable

__all__ = [
    "STOPPING",
    "FlowRun",
    "Member",
    "PeerLost",
    "StopSignal",
    "SystemClock",
    "rare_gc",
    "recovery_store",
    "stop_on_signals",
    "wait_until_heard",
]

STOPPING = "stopping; once more to stop at once"
"""Said as soon as somebody asks: calls in flight may take seconds to end."""

_RECOVERY_PARTITIONS = 4
"""Files the recovery store is split into. Bytewax spreads them over workers; it can be read by
any number of workers, so this need not follow their number."""

_SHOW_CURSOR = b"\x1b[?25h"

_log = logging.getLogger(__name__)


class SystemClock:
    """The wall clock."""

    def now(self) -> datetime:
        """Give the current time in UTC."""
        return datetime.now(timezone.utc)


class StopSignal:
    """Says whether the flow was asked to stop. Thread-safe."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self._event = threading.Event()

    def __call__(self) -> bool:
        """Tell whether to stop; sources and stages poll this."""
        return self._event.is_set()

    def set(self) -> None:
        """Ask to stop."""
        self._event.set()


def rare_gc() -> None:
    """Let the cycle collector run rarely in this process, for good.

    A flow makes a dozen objects an event that live for a while and are in no cycle; with
    CPython's default threshold of 700 the collector looks at all of them again and again.
    Decode and window go from 29,700 to 39,000 events/s by 50,000; a replay, whose objects in
    flight are more than that, takes a fifteenth less processor time by 200,000.
    """
    gc.set_threshold(200_000, 20, 100)


def recovery_store(folder: Path, log: str = "") -> RecoveryConfig:
    """Open the recovery store in ``folder``; make it when there is none.

    It is made under another name and moved into place, so that a crash leaves none or a whole
    one. What a killed run left half written in it is taken out first. Raises
    :class:`~stores.errors.SettingsError` when its snapshots are of another version or log.

    :arg log: which log the flow reads, see :func:`flows.recovery.check_log`; empty is not asked.
    """
    if folder.exists():
        check_format(folder)
        if log:
            check_log(folder, log)
        drop_unfinished(folder)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = folder.with_name(f"{folder.name}.making")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        init_db_dir(unfinished, _RECOVERY_PARTITIONS)
        check_format(unfinished)
        if log:
            check_log(unfinished, log)
        unfinished.rename(folder)
    return RecoveryConfig(folder)


@dataclass(frozen=True, slots=True)
class Member:
    """The place of one process in a cluster that runs one flow together.

    :arg addresses: where the processes reach one another, ``host:port``, the same for all.
    :arg apart: they share no folder: the recovery store is in that of process 0, see
        :mod:`flows.cluster`. Otherwise all use one that :func:`recovery_store` has opened
        before any of them began.
    """

    number: int
    addresses: tuple[str, ...]
    apart: bool = False


class PeerLost(ServiceUnavailable):
    """Another process of the cluster is gone."""


def wait_until_heard(addresses: Sequence[str]) -> None:
    """Wait until somebody listens at each of these addresses of this machine.

    Bytewax connects to the processes before its own, and where nobody listens yet it tries again
    a second later, while all wait for it.
    """
    for one in addresses:
        while not _is_heard(one):
            time.sleep(0.01)


def _is_heard(address: str) -> bool:
    """Say whether somebody listens, without a connection: the port then is nobody else's."""
    host, _, port = address.rpartition(":")
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            mine.bind((host, int(port)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
    return False


class FlowRun:
    """One run of a dataflow, in a thread of its own so that signals and servers keep working.

    :arg recovery: the recovery store's folder; one flow per folder. A second run on it ends
        with a :class:`~stores.errors.SettingsError`.
    :arg snapshot_interval: at most this much work is repeated after a crash.
    :arg workers: threads of this process.
    :arg member: this process is one of several.
    :arg log: which log it reads; snapshots of another one are refused.
    """

    def __init__(
        self,
        build: Callable[[], Dataflow],
        recovery: Path,
        snapshot_interval: timedelta,
        workers: int = 1,
        member: Member | None = None,
        log: str = "",
    ) -> None:
        """Nothing runs before :meth:`start`."""
        self._build = build
        self._recovery = recovery
        self._snapshot_interval = snapshot_interval
        self._workers = workers
        self._member = member
        self._log = log
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="dataflow", daemon=True)

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """True until the input has ended, the flow has stopped or failed."""
        return self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end. Raises what ended the flow when that was an error.

        Of an error of Sediment's own, that one is raised and not Bytewax's wrapping of it; a
        recovery store that cannot be written, or the loss of another process of the cluster, is
        a :class:`~stores.errors.ServiceUnavailable`; the latter a :class:`PeerLost`.
        """
        self._thread.join(timeout)
        if not self._thread.is_alive() and self._error is not None:
            raise _cause(self._error, self._member)

    def _store(self) -> RecoveryConfig:
        member = self._member
        if member is None or (member.apart and member.number == 0):
            return recovery_store(self._recovery, self._log)
        if member.apart:
            nothing = self._recovery.with_name(f"{self._recovery.name}.elsewhere")
            nothing.mkdir(parents=True, exist_ok=True)
            return RecoveryConfig(nothing)
        return RecoveryConfig(self._recovery)

    def _main(self) -> None:
        rare_gc()
        try:
            member = self._member
            with sole_user(self._recovery, in_cluster=member is not None and not member.apart):
                if member is not None and not member.apart:
                    wait_until_heard(member.addresses[: member.number])
                cli_main(
                    self._build(),
                    workers_per_process=self._workers,
                    process_id=member.number if member else None,
                    addresses=list(member.addresses) if member else None,
                    epoch_interval=self._snapshot_interval,
                    recovery_config=self._store(),
                )
        except BaseException as error:  # raised again in wait(), in the caller's thread
            self._error = error


def _cause(error: BaseException, member: Member | None) -> BaseException:
    found: BaseException | None = error
    while found is not None and not isinstance(found, SedimentError):
        if "SqliteFailure" in str(found):  # Bytewax's own writing of snapshots
            service = "recovery store"
            why = "is the disk full? Free some space and start the flow again; nothing is lost"
            return ServiceUnavailable(service, f"{_in_sqlite(str(found))}; {why}")
        found = found.__cause__ or found.__context__
    if found is None and member is not None and type(error).__name__ == "PanicException":
        service = "cluster"  # Bytewax has no other word for a connection that is gone
        why = f"another of the {len(member.addresses)} processes of this flow is gone"
        return PeerLost(service, f"{why}; start all again, nothing is lost")
    return found or error


def _in_sqlite(text: str) -> str:
    """Take SQLite's own words out of what Bytewax makes of them."""
    said = re.search(r'Some\("(.*?)"\)', text)
    return said[1] if said else text


@contextmanager
def stop_on_signals(stop: StopSignal) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a request to stop; a second one ends the process at once."""

    def handle(signum: int, frame: FrameType | None) -> None:
        if stop():
            if os.isatty(2):  # a progress bar has hidden it, and nothing tidies up here
                os.write(2, _SHOW_CURSOR)
            _log.warning("stopped at once; the next run resumes from the last snapshot")
            os._exit(128 + signum)
        _log.info(STOPPING)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

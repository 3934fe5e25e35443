"""A replay by several processes: one Bytewax cluster on the loopback, which this process watches.

The processes are started by :func:`run_processes` and belong to it: they heed no signal of their
own, stop when they are told to, and end when it dies, however it dies. They share the recovery
store of the generation, so the next run may have any number of them, or be `sediment run`.

Nobody but the parent may write the generation's register, topics or collections into being: that
is done before the first of them starts.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from connectors.settings import Settings
from flows.opening import log_name, recovery_folder
from flows.recovery import sole_user
from flows.replay.counts import Counts
from flows.replay.plan import SharedTime
from flows.replay.running import POLL_S, Opener, Share, run_share
from flows.runner import Member, PeerLost, StopSignal, recovery_store
from stores.errors import SedimentError, ServiceUnavailable
from stores.generations import AnswerMode

__all__ = ["run_processes", "why_threads"]

_SAME_MOMENT_S = 1.0  # how long others are listened to once one has failed: it may say why
_END_S = 10.0
_context = get_context("spawn")  # a fork would share connections and locks with its parent


def why_threads(settings: Settings, answers: AnswerMode) -> str:
    """Say why a replay of these settings has to do with the threads of one process.

    Empty when several processes may work on it.
    """
    if settings.embedded:
        return "the log in files is written by one process"
    if not settings.milvus_uri:
        return "the embedded store belongs to one process (SEDIMENT_MILVUS_URI names a server)"
    if settings.llm_base_url and answers != "recorded" and not settings.redis_url:
        return "without SEDIMENT_REDIS_URL the limits on model calls hold in one process"
    return ""


def run_processes(
    share: Share,
    opener: Opener,
    count: int,
    stop: Callable[[], bool],
    show: Callable[[Counts], None],
) -> Counts:
    """Run a flow over history in ``count`` processes; return when all have ended.

    Once ``stop`` is true they stop as a flow does, and the next run goes on from there. When one
    fails or dies, the others are ended as well, and its error is raised; what they had not
    finished is in the last snapshot.

    :arg opener: called in each of them.
    :arg show: told a few times a second how far they are, together.
    """
    folder = recovery_folder(share.settings, share.flow)
    with sole_user(folder):
        recovery_store(folder, log_name(share.settings, share.flow))
    latest = [Counts()] * count

    def summed() -> Counts:
        return sum(latest, start=Counts())

    with _started(share, opener, count) as waiting:
        failures: list[BaseException] = []
        told, give_up = False, float("inf")
        while waiting and time.monotonic() < give_up:
            if stop() and not told:
                told = True
                for connection in waiting:
                    _tell(connection, "stop")
            ready = wait(list(waiting), POLL_S)
            for connection, number in [one for one in waiting.items() if one[0] in ready]:
                try:
                    said = connection.recv()
                except (EOFError, OSError):
                    said = _died(number, count)
                if isinstance(said, Counts):
                    latest[number] = said
                    continue
                del waiting[connection]
                if isinstance(said, BaseException):
                    failures.append(said)
                    give_up = min(give_up, time.monotonic() + _SAME_MOMENT_S)
            show(summed())
        if failures:
            raise min(failures, key=_says_little)
    return summed()


def _says_little(failure: BaseException) -> int:
    """Rank failures by what they say: one of ours, one that died, one that lost the others."""
    if isinstance(failure, PeerLost) or not isinstance(failure, SedimentError):
        return 2
    return 1 if isinstance(failure, _Died) else 0


class _Died(ServiceUnavailable):
    """A process of the replay ended without a word."""


def _died(number: int, count: int) -> _Died:
    message = (
        f"process {number + 1} of {count} died (killed, or out of memory?) and the others were "
        "ended. Nothing is lost: the same command goes on from the last snapshot"
    )
    return _Died("replay", message)


def _tell(connection: Connection, word: str) -> None:
    try:
        connection.send(word)
    except OSError:  # it has died; whoever listens to it finds out
        return


@contextmanager
def _started(share: Share, opener: Opener, count: int) -> Iterator[dict[Connection, int]]:
    """Start the processes; give the connection to each. None of them outlives the block."""
    with _reserved(count) as addresses:
        free_at = _context.Value("d", 0.0) if share.rate else None
        connections: list[Connection] = []
        processes = []
        try:
            for number in range(count):
                ours, theirs = _context.Pipe()
                process = _context.Process(
                    target=_work,
                    args=(share, opener, Member(number, addresses), free_at, theirs),
                    name=f"replay-{number}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                processes.append(process)
                connections.append(ours)
            yield {connection: number for number, connection in enumerate(connections)}
            for process in processes:
                process.join(_END_S)
        finally:
            for process in processes:
                process.kill()  # which heeds no other signal
            for process in processes:
                process.join()
            for connection in connections:
                connection.close()


@contextmanager
def _reserved(count: int) -> Iterator[tuple[str, ...]]:
    """Reserve ports on the loopback, one for each process.

    They stay bound here, so that nobody is given one of them meanwhile; a process may bind its
    own all the same, because nobody listens there.
    """
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in held:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        yield tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in held)
    finally:
        for one in held:
            one.close()


# --- in a process ----------------------------------------------------------------------------


def _work(
    share: Share, opener: Opener, member: Member, free_at: SharedTime | None, parent: Connection
) -> None:
    """Run one member of the cluster, and say what it comes to."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Standard output is the parent's; Bytewax prints there that it waits for the others.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    stop = StopSignal()
    threading.Thread(target=_heed, args=(parent, stop), daemon=True).start()
    try:
        with opener(share.settings) as opened:
            run_share(share, opened, stop, parent.send, member=member, free_at=free_at)
        parent.send("done")
    except BaseException as error:
        parent.send(error if isinstance(error, SedimentError) else _told(error))
        raise SystemExit(1) from error


def _heed(parent: Connection, stop: StopSignal) -> None:
    """Do what the parent says; without it, end at once: what is not finished is in a snapshot."""
    while True:
        try:
            said: Any = parent.recv()
        except (EOFError, OSError):
            os._exit(1)
        if said == "stop":
            stop.set()


def _told(error: BaseException) -> BaseException:
    """Give an error that can be sent: one of somebody else's may hold what cannot be pickled."""
    return RuntimeError("".join(traceback.format_exception(error)))

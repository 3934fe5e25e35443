"""Where a flow can be hurt: named points that its wrapped parts pass, and what happens there.

A point is passed ``before`` and ``after`` a side effect, and counted. An :class:`Injection` says
what happens at which passing. Everything that happens is noted in a file, so that it can be
proved afterwards that it did.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stores.errors import ServiceUnavailable

__all__ = ["POINTS", "Happened", "Injection", "Points", "open_gate", "read_trace"]

Action = Literal["kill", "term", "gate", "fail", "slow"]

POINTS: dict[str, str] = {
    "answer.before": "a model's answer came and is nowhere yet",
    "answer.between": "it is on the topic and not in the journal",
    "answer.after": "it is recorded and not used yet",
    "atoms.read": "a scope's atoms are about to be read",
    "atoms.before": "atoms are about to be written",
    "atoms.half": "half of a window's atoms are written",
    "atoms.after": "atoms are written, nobody has heard of it",
    "events.before": "a batch of events is about to be indexed",
    "events.half": "half of a batch is indexed",
    "events.after": "the batch is indexed",
    "rename.before": "a scene or persona is on disk and not current yet",
    "rename.after": "it is current, and nobody has been told",
    "profiles.before": "profiles are about to be written to the index",
    "profiles.half": "half of them are written",
    "profiles.after": "they are written",
    "produce.before": "a record is about to be produced",
    "produce.after": "it is delivered",
    "given_up.after": "the outcome of a window that was given up is delivered",
    "snapshot.before": "an epoch is about to wait for its deliveries",
    "snapshot.flushed": "all of them are there, the snapshot is not written",
    "snapshot.written": "the recovery store has changed on disk",
    "retry": "a call failed and waits for its retry",
}

_GATE_S = 240.0
_GATE_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Injection:
    """What happens at the ``count``-th passing of a point, and the ``times`` - 1 after it.

    ``kill`` and ``term`` send the signal to the process itself. ``gate`` holds whoever passes
    until :func:`open_gate`. ``fail`` raises ``ServiceUnavailable``. ``slow`` sleeps.

    :arg records: instead of a count: at the first passing after so many records were produced.
        How often a writer is asked for a snapshot depends on how fast the machine is; that it
        is asked for one after it has produced does not.
    """

    action: Action
    point: str
    count: int = 1
    times: int = 1
    seconds: float = 0.0
    records: int = 0

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ValueError(self.point)


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of the trace: what happened in which process."""

    process: int
    action: str
    point: str
    count: int


class Points:
    """Counts the passings of one process and does what is injected. Thread-safe."""

    def __init__(self, injections: Iterable[Injection], folder: Path, process: int) -> None:
        self._injections = tuple(injections)
        self._folder = folder
        self._process = process
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._trace = os.open(folder / "trace", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def wants(self, point: str) -> bool:
        """Say whether anything is injected at a point, so that it pays to make it one."""
        return any(one.point == point for one in self._injections)

    def passed(self, point: str) -> None:
        """Pass a point. Raises what is injected there."""
        with self._lock:
            self._counts[point] += 1
            count = self._counts[point]
            produced = self._counts["produce.before"]
        for one in self._injections:
            counted = one.count <= count < one.count + one.times
            if one.point == point and (produced >= one.records if one.records else counted):
                self._do(one, count)

    def note(self, action: str, point: str = "-", count: int = 0) -> None:
        """Write a line of the trace; it outlives the process."""
        os.write(self._trace, f"{self._process} {action} {point} {count}\n".encode())

    def _do(self, one: Injection, count: int) -> None:
        self.note(one.action, one.point, count)
        if one.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_GATE_S)  # other threads may run on for a moment; this one does not
        elif one.action == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        elif one.action == "gate":
            self._wait_at_gate()
        elif one.action == "slow":
            time.sleep(one.seconds)
        else:
            raise ServiceUnavailable("store", f"injected at {one.point}")

    def _wait_at_gate(self) -> None:
        gate = _gate(self._folder, self._process)
        deadline = time.monotonic() + _GATE_S
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(_GATE_POLL_S)


def open_gate(folder: Path, process: int) -> None:
    """Let whoever waits at a gate of a process go on."""
    _gate(folder, process).touch()


def _gate(folder: Path, process: int) -> Path:
    return folder / f"gate-{process}"


def read_trace(folder: Path) -> list[Happened]:
    """Read what happened so far, in order."""
    path = folder / "trace"
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [
        Happened(int(process), action, point, int(count))
        for process, action, point, count in (line.split() for line in lines)
    ]

"""A run on a disk that is full, and one of several processes: what each waits for."""

from __future__ import annotations

import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from random import Random

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource

from flows import runner
from flows.runner import FlowRun, wait_until_heard
from stores.errors import ServiceUnavailable

KEYS = 20


def kept(out: list[tuple[str, int]], items: int) -> Dataflow:
    """Keep kilobytes for every key, and count its items."""
    flow = Dataflow("kept")
    source = TestingSource([(str(n % KEYS), n) for n in range(items)], batch_size=KEYS)
    stream = op.input("in", flow, source)

    def keep(state: tuple[int, bytes] | None, number: int) -> tuple[tuple[int, bytes], int]:
        count = (state[0] if state else 0) + 1
        return (count, Random(number).randbytes(4000)), count

    op.output("out", op.stateful_map("keep", stream, keep), TestingSink(out))
    return flow


def test_a_recovery_store_on_a_full_disk_is_said_and_goes_on(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: SQLite takes both as I/O errors."""
    out: list[tuple[str, int]] = []
    folder = tmp_path / "recovery" / "kept"

    def run(items: int) -> None:
        made = FlowRun(lambda: kept(out, items), folder, timedelta(0))
        made.start()
        made.wait()

    run(2 * KEYS)
    largest = max(path.stat().st_size for path in folder.iterdir())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 20_000, before[1]))
    try:
        with pytest.raises(ServiceUnavailable, match=r"recovery store: .*start the flow again"):
            run(500 * KEYS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run(500 * KEYS)
    assert sorted(out[-KEYS:]) == sorted((str(key), 500) for key in range(KEYS))


def test_a_second_signal_gives_the_terminal_its_cursor_back() -> None:
    """A progress bar hides it, and a process that ends at once tidies up nothing."""
    program = """
import os, signal
from flows.runner import StopSignal, stop_on_signals
with stop_on_signals(StopSignal()):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
"""
    ours, terminal = pty.openpty()
    try:
        ended = subprocess.run([sys.executable, "-c", program], stderr=terminal, check=False)
        said = os.read(ours, 1000)
    finally:
        os.close(ours)
        os.close(terminal)
    assert ended.returncode == 128 + signal.SIGINT
    assert b"\x1b[?25h" in said
    assert b"stopped at once" in said


def test_a_process_waits_until_those_before_it_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Semaphore(0)

    def look(address: str) -> bool:
        found = heard(address)
        looked.release()
        return found

    heard = runner._is_heard
    monkeypatch.setattr(runner, "_is_heard", look)
    with socket.socket() as reserved, socket.socket() as other:
        for one in (reserved, other):  # as the parent holds the port meanwhile
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        host, port = reserved.getsockname()
        waiting = threading.Thread(target=wait_until_heard, args=([f"{host}:{port}"],), daemon=True)
        waiting.start()
        for _ in range(3):
            assert looked.acquire(timeout=30)
        assert waiting.is_alive()
        other.bind((host, port))
        other.listen()
        waiting.join(30)
        assert not waiting.is_alive()
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()  # it asked without a connection, which would be taken for a process

"""The command of many fault runs: it can be stopped without losing what it has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.waiting import until

pytestmark = pytest.mark.usefixtures("kafka_broker")


def test_ctrl_c_ends_what_has_begun_tells_it_and_leaves_no_process(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    asked = ["--runs", "1000", "--seed", "40", "--ledger", str(ledger)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as soak:
        assert soak.stderr is not None
        assert any(line.startswith("1: held") for line in soak.stderr)
        os.killpg(soak.pid, signal.SIGINT)
        told, said = soak.communicate(timeout=300)
    assert soak.returncode == 130, said
    assert "Seeded fault runs" in told
    assert "all held" in told
    assert "Traceback" not in said
    assert 1 <= len(ledger.read_bytes().splitlines()) < 5
    until(lambda: not _runs(soak.pid))


def _runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

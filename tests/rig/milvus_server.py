"""A real Milvus server: release 2.3.5, carried by the PyPI package ``milvus``.

The last package of its kind. It has no full-text search, so it stands for every server on which
the store runs dense-only. The package is fetched once with pip into ``.cache/`` and unpacked
there, never installed: it would bring its own, older client.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.needs import missing

__all__ = ["milvus_server", "waits_its_turn"]

waits_its_turn = pytest.mark.timeout(900)
"""For what uses a server: it may first have to wait for that of another test."""

_RELEASE = "2.3.5"
_CACHE = Path(__file__).parents[2] / ".cache" / f"milvus-{_RELEASE}"
_NEEDED = f"the package milvus=={_RELEASE} (x86-64 Linux), fetched with pip into .cache/"
_LOCK = Path(tempfile.gettempdir()) / f"sediment-milvus-server-{os.getuid()}.lock"
_STOP_S = 60.0
_SERVE = """
import sys
from milvus import MilvusServer
server = MilvusServer()
server.set_base_dir(sys.argv[1])
server.start()
print(server.listen_port, flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process of this user has a server: its etcd always takes port 2380."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _package() -> Path:
    unpacked = _CACHE / "unpacked"
    if not unpacked.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--dest", str(_CACHE), f"milvus=={_RELEASE}"]
        fetched = subprocess.run(command, check=False, capture_output=True)
        wheels = list(_CACHE.glob("*.whl"))
        if fetched.returncode != 0 or not wheels:
            missing(_NEEDED)
        draft = _CACHE / "draft"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(draft)
        draft.rename(unpacked)
    return unpacked


@contextmanager
def milvus_server(folder: Path) -> Iterator[str]:
    """Run a server with its data in ``folder``; give its URI. Waits for one that runs already."""
    with _alone(), _started(folder) as uri:
        yield uri


@contextmanager
def _started(folder: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(_package())},
        start_new_session=True,  # Ctrl-C is for whoever runs it, and stops it by closing its input
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            missing(f"{_NEEDED}; it did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the server, and what started it
            process.wait()
        process.stdout.close()

"""A real redis-server on a free port, in its own folder, that keeps nothing on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.rig.needs import missing

__all__ = ["RedisServer", "redis_server", "running_redis"]

_START_TIMEOUT_S = 20.0


class RedisServer:
    """A handle to stop and start the server; it forgets everything when it stops."""

    def __init__(self, program: str, folder: Path, port: int) -> None:
        self._program = program
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "",
                 "--appendonly", "no", "--dir", str(self._folder)],
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for whoever runs it, and stops it in order
            )  # fmt: skip
        give_up = time.monotonic() + _START_TIMEOUT_S
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError as error:
                    if self._process.poll() is not None or time.monotonic() > give_up:
                        self.stop()
                        log_text = (self._folder / "redis.log").read_text(errors="replace")
                        message = f"redis-server did not start:\n{log_text}"
                        raise RuntimeError(message) from error
                    time.sleep(0.02)

    def stop(self) -> None:
        """Stop it the hard way; a server that is stopped already stays so."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running_redis(folder: Path) -> Iterator[RedisServer]:
    """Run a server for as long as the block; needs the program, not pytest's fixtures."""
    program = shutil.which("redis-server")
    if program is None:
        missing("redis-server (Debian package redis-server)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    server = RedisServer(program, folder, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for the session. Use a key prefix of your own, and start what you stop."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server

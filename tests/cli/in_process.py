"""Runs the ``sediment`` command inside the test's own process: the same ``main``, no start-up."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from connectors.filelog import FileLog
from connectors.log import EndAt, StartAt
from flows.cli.main import main
from flows.runner import SystemClock
from stores.records import LogRecord

__all__ = ["ANA", "InProcess", "Printed", "write_lines"]

ANA = ("--tenant", "acme", "--agent", "helper", "--user", "ana")


@dataclass(frozen=True)
class Printed:
    """What a command printed; white space is one blank each, so that no width matters."""

    out: str
    err: str


@dataclass(frozen=True)
class InProcess:
    """One data folder, and the Sediment settings in effect for its commands."""

    data_dir: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, code: int = 0) -> Printed:
        """Run a command, check its exit code, give what it printed."""
        found, out, err = self._call(arguments)
        assert found == code, f"{arguments}: exit code {found}\n{out}\n{err}"
        return Printed(" ".join(out.split()), " ".join(err.split()))

    def text(self, *arguments: str) -> str:
        """Run a command that succeeds; give stdout as it is."""
        found, out, err = self._call(arguments)
        assert found == 0, f"{arguments}: exit code {found}\n{out}\n{err}"
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run a command with ``--json`` and read what it printed."""
        found, out, err = self._call((*arguments, "--json"))
        assert found == code, f"{arguments}: exit code {found}\n{out}\n{err}"
        return json.loads(out)

    def logged(self, topic: str = "sediment.l0.events") -> list[LogRecord]:
        """Read a topic of the file log."""
        log = FileLog(self.data_dir / "log", SystemClock())
        return list(log.read(topic, StartAt.beginning(), EndAt.latest()))

    def _call(self, arguments: tuple[str, ...]) -> tuple[object, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with (
            self._environment(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            before = sys.argv
            sys.argv = ["sediment", *arguments]
            try:
                main()
                code: object = 0
            except SystemExit as ended:
                code = ended.code
            finally:
                sys.argv = before
        return code, out.getvalue(), err.getvalue()

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        before = dict(os.environ)
        for name in [name for name in before if name.startswith("SEDIMENT_")]:
            del os.environ[name]
        os.environ.update({"SEDIMENT_DATA_DIR": str(self.data_dir), **self.env})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def write_lines(path: Path, *lines: object) -> Path:
    """Write JSON Lines; a string or bytes stands as it is, to write bad ones."""
    raw = [
        line if isinstance(line, bytes) else line.encode() if isinstance(line, str) else
        orjson.dumps(line)
        for line in lines
    ]  # fmt: skip
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path

"""Runs the ``sediment`` command as its users do: another process, its own data folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.in_process import InProcess

__all__ = ["Sediment"]


@dataclass(frozen=True)
class Sediment:
    """One installation: a data folder and the environment it runs in."""

    data_dir: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Give the environment of a command: ours, without other Sediment settings."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SEDIMENT_")}
        return {**inherited, "SEDIMENT_DATA_DIR": str(self.data_dir), "COLUMNS": "200", **self.env}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and return at once."""
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli.main", *arguments],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        """Run a command that succeeds, to its end, and give what it printed."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, f"{arguments}: {process.returncode}\n{out}\n{err}"
        return out

    @property
    def here(self) -> InProcess:
        """The same command in this process: no start-up of three seconds, for what only looks."""
        return InProcess(self.data_dir, {"COLUMNS": "200", **self.env})

    def memories(self, user: str, tenant: str = "demo", agent: str = "companion") -> str:
        """Give the memories of one user, byte for byte as the command prints them."""
        return self.here.text(
            "memories", "list", "--tenant", tenant, "--agent", agent, "--user", user, "--json"
        )  # fmt: skip

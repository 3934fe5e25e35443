"""The lines of the README's five minutes, run by a shell as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli import Sediment
from tests.e2e.test_up import running

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_five_minutes_of_the_readme_work_line_by_line(tmp_path: Path) -> None:
    section = re.search(r"## Five minutes\n\n```\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert section is not None
    first, *lines, last = section.group(1).splitlines()
    assert first.startswith("export SEDIMENT_DATA_DIR=")
    assert last.split("#")[0].split() == [".venv/bin/sediment", "up"]

    sediment = Sediment(tmp_path)
    printed = {line.split()[1]: _shell(line, sediment) for line in lines}
    assert list(printed) == ["ingest", "run", "memories", "recall"]
    assert "146 events written" in printed["ingest"]
    assert "reached the end of the log" in printed["run"]
    shown = re.search(
        r"\(`memories list`\):\n\n```\n(.*?)```", README.read_text("utf-8"), re.DOTALL
    )
    assert shown is not None
    memories = [line.strip() for line in printed["memories"].splitlines()]
    assert all(line.strip() in memories for line in shown.group(1).splitlines())
    assert "moved to Lisbon" in printed["recall"]
    with running(sediment, "up") as service:
        assert service.http.get("/healthz").status_code == 200
        service.stop()


def _shell(line: str, sediment: Sediment) -> str:
    """Run a line; ``sediment`` is the one of this interpreter, wherever its folder is."""
    script = line.replace(".venv/bin/sediment", f"{sys.executable} -m flows.cli.main")
    done = subprocess.run(
        ["bash", "-euc", script],
        env=sediment.environment(),
        cwd=README.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout

"""``sediment bench speed`` hands over to the benchmarks of the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli import bench_speed
from tests.cli.in_process import InProcess


@pytest.fixture
def sediment(tmp_path: Path) -> InProcess:
    return InProcess(tmp_path / "data", {})


def test_the_benchmarks_get_what_was_asked_for(
    sediment: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    told = "import sys, pathlib; pathlib.Path('told').write_text(' '.join(sys.argv[1:])); exit(1)"
    (tmp_path / "benchmarks" / "__main__.py").write_text(told)
    monkeypatch.setattr(bench_speed, "_ROOT", tmp_path)
    out = tmp_path / "out"
    sediment.run(
        "bench", "speed", "recall", "scenes", "--out", str(out), "--peer", "mem0",
        "--sizes", "1000,5000", "--json", code=1,
    )  # fmt: skip
    asked = (tmp_path / "told").read_text()
    assert asked == f"recall scenes --out {out} --sizes 1000,5000 --peer mem0 --json"


def test_without_a_checkout_it_says_what_to_do(
    sediment: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_speed, "_ROOT", tmp_path)
    refused = sediment.run("bench", "speed", code=2)
    assert "run this from a checkout of the source" in refused.err

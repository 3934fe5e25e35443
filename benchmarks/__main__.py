"""Every speed table in one run: what ``sediment bench speed`` and ``make bench`` call.

    python -m benchmarks [WHAT ...] [--out DIR] [--sizes 1000,...] [--peer mem0] [--json]

Each benchmark is a module here and runs as a process of its own, one after the other, so that
none measures what another left behind. In ``--out``: what each printed (``NAME.json``), all rows
as ``figures.json`` and ``figures.csv``, and ``report.html`` with the tables and the curves. One
that fails is named in all of them, and the others go on; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import COLUMNS, Curve, Row, curves_of, rows_of, show, written
from benchmarks.report import to_html
from flows.cli.common import progress_bar

BENCHMARKS = (
    "async_stage",
    "pipeline",
    "window_to_recall",
    "store",
    "recall",
    "query_load",
    "embeddings",
    "faults",
    "reconcile",
    "replay",
    "scenes",
)
PEERS = {"mem0": "peer_mem0"}
SIZES = (1000, 5000, 20_000, 100_000)
RESULTS = Path(__file__).parent / "results"
_MANY = 10_000  # memories from which a recall is asked fewer questions: each takes long


def commands(name: str, sizes: Sequence[int], out: Path) -> list[list[str]]:
    """Give the arguments of each time a benchmark runs."""
    if name == "recall":
        return [
            [name, "--memories", str(size), "--questions", "50" if size > _MANY else "200"]
            for size in sizes
        ]
    if name == "reconcile":
        return [[name, "--sizes", ",".join(map(str, sizes))]]
    if name in PEERS.values():
        return [[name, "--folder", str(out / "peer")]]
    return [[name]]


def run(arguments: Sequence[str]) -> Any:
    """Run a benchmark once; give what it printed. Raises ``ValueError`` with its last words."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{arguments[0]}", *arguments[1:], "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise ValueError(words[-1])
    return json.loads(done.stdout)


def machine() -> dict[str, Any]:
    """Say what the figures were measured on, and how busy it was."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "load_average_1_min": round(os.getloadavg()[0], 2),
    }


def to_csv(rows: Sequence[Row]) -> str:
    """Write ``figures.csv``: one line a row, numbers with six digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = asdict(row)
        writer.writerow([written(values[name]) for name in COLUMNS])
    return text.getvalue()


def tell(rows: Sequence[Row], failed: Mapping[str, str], report: Path) -> None:
    """Print the table, what failed, and where the report is."""
    show("speed", rows)
    console = Console()
    for name, why in failed.items():
        console.print(f"failed: {name}: {why}")
    console.print(f"report: {report}")


def measure(
    wanted: Sequence[str], sizes: Sequence[int], out: Path
) -> tuple[list[Row], list[Curve], dict[str, str], dict[str, int]]:
    """Run the benchmarks; give rows, curves, why those that failed did, and seconds of each."""
    printed: dict[str, list[Any]] = {}
    failed: dict[str, str] = {}
    took_s: dict[str, int] = {}
    rows: list[Row] = []
    plan = [(name, arguments) for name in wanted for arguments in commands(name, sizes, out)]
    with progress_bar() as bar:
        task = bar.add_task("benchmarks", total=len(plan))
        for name, arguments in plan:
            command = " ".join(arguments)
            bar.update(task, description=command)
            began = time.perf_counter()
            try:
                printed.setdefault(name, []).append(run(arguments))
            except ValueError as error:
                failed[command] = str(error)
            took_s[command] = round(time.perf_counter() - began)
            bar.advance(task)
    for name, documents in printed.items():
        (out / f"{name}.json").write_text(json.dumps(documents, indent=2))
        rows += rows_of(name, documents)
    return rows, curves_of(printed), failed, took_s


def main() -> int:
    """Run what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(BENCHMARKS)}; all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="memories at which costs are measured"
    )
    parser.add_argument("--peer", choices=sorted(PEERS), help="measure another system beside it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    if unknown := sorted({*given.what} - {*BENCHMARKS}):
        parser.error(f"{', '.join(unknown)}: no benchmark; there are {', '.join(BENCHMARKS)}")
    try:
        sizes = sorted({int(size) for size in given.sizes.split(",")})
    except ValueError:
        parser.error("--sizes: give whole numbers with commas between, such as 1000,10000")
    if sizes[0] < SIZES[0]:
        parser.error(f"--sizes: give {SIZES[0]} or more")
    # A peer alone is a run too: what was asked for, and it.
    wanted = [*(given.what or ([] if given.peer else BENCHMARKS))]
    wanted += [PEERS[given.peer]] if given.peer else []
    given.out.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"benchmarks": wanted, "sizes": sizes, "started": machine()}
    began = time.perf_counter()
    rows, curves, failed, took_s = measure(wanted, sizes, given.out)
    seconds = round(time.perf_counter() - began)
    config |= {"seconds": seconds, "seconds_of_each": took_s, "ended": machine()}
    told = {
        "config": config,
        "figures": [asdict(row) for row in rows],
        "curves": [asdict(curve) for curve in curves],
        "failed": failed,
    }
    (given.out / "figures.json").write_text(json.dumps(told, indent=2))
    (given.out / "figures.csv").write_text(to_csv(rows))
    report = given.out / "report.html"
    report.write_text(to_html(rows, curves, failed, config))
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        tell(rows, failed, report)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

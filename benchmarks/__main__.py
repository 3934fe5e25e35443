"""``make bench``: every benchmark, one after the other; tables here, JSON in ``results/``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

BENCHMARKS = (
    "async_stage",
    "pipeline",
    "store",
    "recall",
    "embeddings",
    "faults",
    "reconcile",
    "replay",
    "scenes",
)
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(BENCHMARKS)}; all")
    wanted = parser.parse_args().what or BENCHMARKS
    RESULTS.mkdir(exist_ok=True)
    for name in wanted:
        print(f"--- {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        (RESULTS / f"{name}.json").write_text(done.stdout)
        print(done.stdout, flush=True)


if __name__ == "__main__":
    main()

"""``sediment bench speed``: how fast, and how cost grows; the measuring is in ``benchmarks/``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.common import Json
from stores.errors import UserError

__all__ = ["speed"]

_ROOT = Path(__file__).parents[2]

What = Annotated[
    list[str] | None,
    typer.Argument(help="Benchmarks to run, such as pipeline or recall [default: all]"),
]
Out = Annotated[Path, typer.Option("--out", help="Folder of the results.", file_okay=False)]
Sizes = Annotated[
    str, typer.Option("--sizes", help="Memories at which growing costs are measured.")
]
Peer = Annotated[
    str,
    typer.Option(
        "--peer",
        help="Measure this system beside Sediment: mem0. Installed into --out, from your index.",
    ),
]


def speed(
    what: What = None,
    out_folder: Out = Path("results/speed"),
    sizes: Sizes = "",
    peer: Peer = "",
    json: Json = False,
) -> None:
    """Measure speed: pipeline, replay, recall, scenes, reconcile, each beside its ceiling.

    Real Kafka and milvus-lite, a scripted model and embeddings over HTTP. Runs from a checkout of
    the source with what the tests need. Writes tables, curves and a report into --out. With
    --peer and no names, only the peer is measured.

    Example: sediment bench speed recall reconcile --out results/speed
    """
    if not (_ROOT / "benchmarks" / "__main__.py").exists():
        message = (
            "the speed benchmarks use the test servers, which are not installed; run this from a "
            "checkout of the source, set up by: make setup"
        )
        raise UserError(message)
    options = ["--out", str(out_folder.resolve())]
    options += ["--sizes", sizes] if sizes else []
    options += ["--peer", peer] if peer else []
    options += ["--json"] if json else []
    command = [sys.executable, "-m", "benchmarks", *(what or ()), *options]
    raise typer.Exit(subprocess.run(command, cwd=_ROOT, check=False).returncode)

"""The ``sediment`` command.

Exit codes: 0 done; 1 done in part, or a check found something; 2 cannot do it as asked;
3 a dependency cannot be reached; 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flows import PIPELINE
from flows.cli.admin import config, topics
from flows.cli.audit import audit
from flows.cli.bench import bench
from flows.cli.common import errors_for_people, set_up_logging
from flows.cli.demo import demo
from flows.cli.dlq import dlq
from flows.cli.doctor import doctor
from flows.cli.edit import edit
from flows.cli.export import export, import_
from flows.cli.forget import forget, reject
from flows.cli.generations import generations
from flows.cli.ingest import ingest
from flows.cli.keys import keys
from flows.cli.mcp import mcp
from flows.cli.memories import memories, recall
from flows.cli.persona import persona
from flows.cli.rebuild import rebuild
from flows.cli.replay import replay
from flows.cli.run import run
from flows.cli.scenes import scenes
from flows.cli.serve import serve, up
from flows.cli.status import status

__all__ = ["app", "main"]

app = typer.Typer(
    name="sediment",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Turn conversation events into layered, long-lived memory for AI agents.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(PIPELINE)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what happens.")] = False,
) -> None:
    set_up_logging(verbose)


for verb in (demo, ingest, run, up, serve, recall, status, audit, rebuild, export):
    app.command()(verb)
app.command("import")(import_)
app.command()(replay)
app.command()(forget)
app.command()(reject)
app.command()(edit)
app.command()(mcp)
app.add_typer(generations, name="generations")
app.add_typer(bench, name="bench")
app.add_typer(doctor, name="doctor")
app.add_typer(memories, name="memories")
app.add_typer(scenes, name="scenes")
app.add_typer(persona, name="persona")
app.add_typer(dlq, name="dlq")
app.add_typer(topics, name="topics")
app.add_typer(config, name="config")
app.add_typer(keys, name="keys")


def main() -> None:
    """Run the command line; errors of Sediment's own become one line and an exit code."""
    with errors_for_people():
        app()


if __name__ == "__main__":
    main()

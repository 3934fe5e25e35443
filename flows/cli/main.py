"""The ``sediment`` command.

Exit codes: 0 done; 1 done in part, or a check found something; 2 cannot do it as asked;
3 a dependency cannot be reached; 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows import PIPELINE
from flows.cli.common import errors_for_people, set_up_logging

__all__ = ["app", "main"]

_VERBS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "demo"),
    "ingest": ("ingest", "ingest"),
    "run": ("run", "run"),
    "up": ("serve", "up"),
    "serve": ("serve", "serve"),
    "recall": ("memories", "recall"),
    "status": ("status", "status"),
    "audit": ("audit", "audit"),
    "rebuild": ("rebuild", "rebuild"),
    "export": ("export", "export"),
    "import": ("export", "import_"),
    "replay": ("replay", "replay"),
    "forget": ("forget", "forget"),
    "reject": ("forget", "reject"),
    "edit": ("edit", "edit"),
    "mcp": ("mcp", "mcp"),
    "generations": ("generations", "generations"),
    "bench": ("bench", "bench"),
    "doctor": ("doctor", "doctor"),
    "memories": ("memories", "memories"),
    "scenes": ("scenes", "scenes"),
    "persona": ("persona", "persona"),
    "dlq": ("dlq", "dlq"),
    "topics": ("admin", "topics"),
    "config": ("admin", "config"),
    "keys": ("keys", "keys"),
}
"""Each verb: the module of ``flows.cli`` that has it, and its name there."""


class _Commands(Mapping[str, Any]):
    """The verbs' commands, each loaded when it is asked for.

    A verb starts without loading what the others stand on: that takes seconds of processor time.
    """

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_VERBS)

    def __len__(self) -> int:
        return len(_VERBS)


@cache
def _command(name: str) -> Any:
    module, attribute = _VERBS[name]
    verb = getattr(import_module(f"flows.cli.{module}"), attribute)
    alone = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    if isinstance(verb, typer.Typer):
        alone.add_typer(verb, name=name)
    else:
        alone.command(name)(verb)
    return typer.main.get_group(alone).commands[name]


class _Verbs(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": _Commands()})


app = typer.Typer(
    name="sediment",
    cls=_Verbs,
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


def main() -> None:
    """Run the command line; errors of Sediment's own become one line and an exit code."""
    with errors_for_people():
        app()


if __name__ == "__main__":
    main()

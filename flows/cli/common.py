"""What every verb shares: options, output, and how an error becomes one line and an exit code."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any, cast

import orjson
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from connectors.log_lines import LineWriter, format_named
from connectors.settings import Settings, load_settings
from stores.errors import SedimentError, Transient, UserError
from stores.ids import scope_parts

__all__ = [
    "EXIT_CODES",
    "Agent",
    "Brokers",
    "DataDir",
    "Json",
    "Team",
    "Tenant",
    "User",
    "err",
    "errors_for_people",
    "local_time",
    "memory_settings_from",
    "out",
    "print_json",
    "progress_bar",
    "scope_label",
    "scope_of",
    "settings_from",
]

EXIT_CODES = {
    0: "done",
    1: "done in part: some input was refused, or a check found something",
    2: "cannot do it as asked: an option, a setting or a file is wrong",
    3: "a dependency cannot be reached; try again",
    130: "interrupted",
}
"""What the exit code of every verb means."""

_ONE_LINE = 10_000
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Embedded data folder [default: SEDIMENT_DATA_DIR or .sediment]"
    ),
]
Brokers = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        help="Kafka bootstrap servers [default: SEDIMENT_BROKERS; none is the embedded log]",
    ),
]
Tenant = Annotated[str, typer.Option("--tenant", help="Tenant id.")]
Agent = Annotated[str, typer.Option("--agent", help="Agent id.")]
User = Annotated[str, typer.Option("--user", help="User id.")]
Team = Annotated[str, typer.Option("--team", help="Team id, where the scope has one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def settings_from(**overrides: Any) -> Settings:
    """Read the settings, with what was given on the command line on top."""
    return load_settings(**overrides)


def memory_settings_from(**overrides: Any) -> Settings:
    """Read the settings for what reads or writes memory, and name the generation it is about.

    That is the one that is set, else the one that was promoted.
    """
    from flows.opening import resolved

    settings = load_settings(**overrides)
    if settings.embedded and not settings.milvus_uri and not settings.data_dir.exists():
        err.print(  # a name that was misspelt looks like a memory that was lost
            f"there is no data folder {settings.data_dir} yet; --data-dir or SEDIMENT_DATA_DIR "
            "names another",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    return resolved(settings)


def scope_of(settings: Settings, tenant: str, agent: str, user: str, team: str) -> str:
    """Build the scope key, or say which option is missing."""
    return settings.scope_of(tenant=tenant, agent=agent, user=user, team=team)


def scope_label(scope: str) -> str:
    """Write a scope for people."""
    return " / ".join(scope_parts(scope))


def local_time(moment: datetime) -> str:
    """Write a moment as date and minute, in UTC."""
    return f"{moment:%Y-%m-%d %H:%M}"


def print_json(value: Any) -> None:
    """Print a JSON document, keys in the order given, one trailing newline."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")
    sys.stdout.flush()


def progress_bar() -> Progress:
    """Make the progress bars of long work, on stderr; a pipe gets their last state only."""
    return Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        auto_refresh=err.is_terminal,  # drawing ten times a second what no pipe is shown
    )


@contextmanager
def errors_for_people() -> Iterator[None]:
    """Show an error of Sediment's own as one line and end with its exit code.

    So too one of the file system: a folder that may not be written, a disk that is full.
    """
    try:
        yield
    except SedimentError as error:
        err.print(f"[bold red]error:[/] {_escaped(error.message)}", soft_wrap=True)
        code = 3 if isinstance(error, Transient) else 2 if isinstance(error, UserError) else 1
        raise SystemExit(code) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None
    except OSError as error:
        full = error.errno in _DISK_FULL
        if not full and error.filename is None:
            raise  # not about a file: a bug of ours
        where = f"{error.filename}: " if error.filename is not None else ""
        done = "; free some space and do it again" if full else ""
        told = _escaped(f"{where}{error.strerror}{done}")
        err.print(f"[bold red]error:[/] {told}", soft_wrap=True)
        raise SystemExit(3 if full else 2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def set_up_logging(verbose: bool) -> None:
    """Log to stderr: warnings, or everything of ours when asked; as text or JSON by the settings.

    As JSON, what is said to people there becomes such lines as well.
    """
    try:
        name = load_settings().log_format
    except SedimentError:  # the verb says what is wrong with them
        name = "text"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(format_named(name))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if verbose:
        for logger in ("flows", "connectors", "stores", "sediment"):
            logging.getLogger(logger).setLevel(logging.INFO)
    if name == "json":
        err.file = cast("IO[str]", LineWriter(sys.stderr, format_named(name)))
        err.width = _ONE_LINE

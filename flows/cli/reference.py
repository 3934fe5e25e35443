"""The reference pages, made from the code: settings, commands, metrics.

``python -m flows.cli.reference --write`` writes them to ``docs/``; a test checks that they are
what the code says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import typer
from pydantic import SecretStr

from connectors import metrics
from connectors.settings import Settings
from flows.cli.common import EXIT_CODES
from flows.cli.main import app

__all__ = ["PAGES", "pages"]

_NOTE = "<!-- Made by `python -m flows.cli.reference --write`; do not edit. -->\n"
_DOCS = Path(__file__).parents[2] / "docs"


def configuration() -> str:
    """Describe every setting."""
    lines = [
        "# Configuration",
        "",
        "A setting comes, in this order, from the command line, the environment, the TOML file "
        "that `SEDIMENT_CONFIG` names (lower-case names without the prefix), its default here. "
        "`sediment config show` prints what is in effect, secrets masked.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        if isinstance(default, tuple):
            default = "[" + ", ".join(f'"{one}"' for one in default) + "]"
        if isinstance(default, dict) and default:
            default = orjson.dumps(default).decode()
        shown = f"`{default}`" if default not in ("", None, {}) else ""
        lines.append(f"| `SEDIMENT_{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Describe every command with its options."""
    lines = ["# Commands", "", "Every verb has `--help`. Exit codes:", "", "| code | means |"]
    lines += ["|---|---|", *(f"| {code} | {text} |" for code, text in EXIT_CODES.items()), ""]
    group = typer.main.get_command(app)
    for path, command in _verbs("sediment", group):
        lines += [f"## `{path}`", "", _plain(command.help or ""), "", "```", _usage(path, command)]
        lines += ["```", ""]
        # typer brings its own copy of click, so its classes are known by their attributes only.
        options = [option for option in command.params if getattr(option, "help", None)]
        if options:
            lines += ["| argument | meaning |", "|---|---|"]
            lines += [f"| `{_spelling(option)}` | {option.help} |" for option in options]
            lines.append("")
    return "\n".join(lines)


def _verbs(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    for name, one in inner.items():
        yield from _verbs(f"{path} {name}", one)


def _plain(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _usage(path: str, command: Any) -> str:
    pieces = [path]
    for param in command.params:
        if _is_argument(param):
            pieces.append(_spelling(param) if param.required else f"[{_spelling(param)}]")
        elif param.required:
            pieces.append(f"{param.opts[0]} {param.name.upper()}")
    return " ".join([*pieces, "[OPTIONS]"])


def _spelling(param: Any) -> str:
    if _is_argument(param):
        return str(param.metavar or param.name.upper())
    return ", ".join([*param.opts, *param.secondary_opts])


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def metrics_page() -> str:
    """Describe every metric."""
    lines = [
        "# Metrics",
        "",
        "The query service serves them at `/metrics`, in Prometheus' text format; those of a flow "
        "beside it (`sediment up`) are there too.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for name in metrics.__all__:
        metric = getattr(metrics, name)
        (family,) = metric.describe()
        suffix = "_total" if family.type == "counter" else ""
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        lines.append(f"| `{family.name}{suffix}` | {family.type} | {labels} | {_doc(family)} |")
    return "\n".join(lines) + "\n"


def _doc(family: object) -> str:
    return str(getattr(family, "documentation", ""))


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "commands.md": commands,
    "metrics.md": metrics_page,
}


def pages() -> dict[Path, str]:
    """Give each page's path and text."""
    return {_DOCS / name: f"{_NOTE}\n{make()}" for name, make in PAGES.items()}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")

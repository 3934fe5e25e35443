"""Every command that a page shows is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from flows.cli.main import app
from tests.docs.pages import PAGES

_BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?sediment (.*)$")


def commands(text: str) -> Iterator[str]:
    """Give the arguments of each ``sediment`` line in the code blocks of a page."""
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            found = _COMMAND.match(line)
            if found:
                yield found.group(1)


def check(line: str) -> None:
    """Parse a line as the command line would; raises an error of typer's."""
    words = shlex.split(line, comments=True)
    for cut in ("|", ">", "&", "&&", "2>"):
        words = words[: words.index(cut)] if cut in words else words
    command = get_command(app)
    parent = None
    while True:
        context = typer.Context(command, info_name=command.name, parent=parent)
        _, rest, _ = command.make_parser(context).parse_args(list(words))
        if not isinstance(command, TyperGroup) or (not rest and command.invoke_without_command):
            break
        _, found, words = command.resolve_command(context, rest)
        assert found is not None
        command, parent = found, context
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if rest and not arguments:
        message = f"takes no {rest}"
        raise typer.BadParameter(message)


LINES = [
    (page.name, line)
    for page in PAGES
    if page.name != "commands.md"  # made from the command line itself
    for line in commands(page.read_text("utf-8"))
]


@pytest.mark.parametrize(("page", "line"), LINES, ids=[f"{page}: {line}" for page, line in LINES])
def test_a_page_shows_commands_that_exist(page: str, line: str) -> None:
    check(line)


def test_there_are_pages_with_commands() -> None:
    assert {"README.md", "run-on-kafka.md", "replay.md", "dead-letters.md"} <= {
        page for page, _ in LINES
    }


@pytest.mark.parametrize(
    "line", ["remember this", "run --no-such-option", "memories lst", "status more words"]
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises(TyperException):
        check(line)

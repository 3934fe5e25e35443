"""What the pages say against the code: references, tables, links, commands, names of tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from _pytest.mark import ParameterSet

from connectors.kafka.topics import TOPICS
from connectors.settings import Settings
from flows.cli.main import app
from flows.cli.reference import pages
from flows.extract.answer import REFUSALS
from stores.records import DECODE_REASONS, SKIP_REASONS
from tests.docs.pages import PAGES, ROOT, code_in, links_in, tables_of

DOCS = ROOT / "docs"


def by_name(page: Path) -> ParameterSet:
    return pytest.param(page, id=page.name)


EVERY_PAGE = pytest.mark.parametrize("page", [by_name(page) for page in PAGES])


# --- what is made from the code --------------------------------------------------------------


@pytest.mark.parametrize("page", [by_name(page) for page in pages()])
def test_reference_pages_are_what_the_code_says(page: Path) -> None:
    hint = "run `python -m flows.cli.reference --write`"
    assert page.read_text() == pages()[page], hint


# --- what is written by hand -----------------------------------------------------------------


def table(page: str, first_column: str) -> dict[str, str]:
    """Read the table with this first heading: its second column by code name."""
    (rows,) = [rows for rows in tables_of(DOCS / page) if rows[0][0] == first_column]
    return {
        name: cells[1].replace("`", "")
        for cells in rows[1:]
        for name in re.findall(r"`([^`]+)`", cells[0])
    }


@pytest.mark.parametrize(
    ("first_column", "reasons"),
    [("reason of `skipped`", SKIP_REASONS), ("reason of `refused`", REFUSALS)],
)
def test_concepts_tell_every_reason(first_column: str, reasons: dict[str, str]) -> None:
    assert table("concepts.md", first_column) == reasons


def test_operate_tells_every_reason_of_a_refused_record() -> None:
    assert DECODE_REASONS.keys() <= table("operate.md", "reason").keys()


def test_run_on_kafka_tells_every_topic() -> None:
    told = table("run-on-kafka.md", "topic")
    assert told == {spec.name: spec.key for spec in TOPICS}


@EVERY_PAGE
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links_in(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    """Give the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EVERY_PAGE
def test_every_test_named_is_there(page: Path) -> None:
    for name, test in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text()):
        source = ROOT / name
        assert source.is_file(), f"{page.name}: {name}"
        assert not test or f"def {test}(" in source.read_text(), f"{page.name}: {name}::{test}"


@EVERY_PAGE
def test_every_setting_named_is_one(page: Path) -> None:
    known = {f"SEDIMENT_{name.upper()}" for name in Settings.model_fields} | {"SEDIMENT_CONFIG"}
    for code in code_in(page):
        named = {name for name in re.findall(r"\bSEDIMENT_[A-Z_]+\b", code) if name[-1] != "_"}
        assert named <= known, f"{page.name}: {named - known}"


@EVERY_PAGE
def test_every_command_shown_is_one(page: Path) -> None:
    shown = [words for code in code_in(page) if (words := command_words(code))]
    for words in shown:
        problem = what_is_wrong(words)
        assert not problem, f"{page.name}: sediment {' '.join(words)}: {problem}"


def test_a_wrong_command_is_noticed() -> None:
    assert what_is_wrong(["run", "l1", "--workers", "2"]) == ""
    assert what_is_wrong(["topics"]) == ""
    assert what_is_wrong(["rewind"]) == "no command rewind"
    assert what_is_wrong(["topics", "drop"]) == "no command drop"
    assert what_is_wrong(["run", "--from", "0"]) == "no option --from"


_COMMAND = re.compile(r"^(?:export )?(?:[A-Z_]+=\S+ )*(?:\S*/)?sediment (.+)$")


def command_words(code: str) -> list[str]:
    """Give what follows ``sediment`` in a line that calls it; nothing for other lines."""
    found = _COMMAND.match(code.strip())
    if found is None or found[1].startswith("<"):
        return []
    return shlex.split(found[1], comments=True)


def what_is_wrong(words: list[str]) -> str:
    """Walk the command tree along ``words``; say what it does not know."""
    command: Any = typer.main.get_command(app)
    for word in words:
        inner = getattr(command, "commands", None)
        if word.startswith("--"):
            known = {name for param in command.params for name in param.opts + param.secondary_opts}
            if word.partition("=")[0] not in known | {"--help"}:
                return f"no option {word}"
        elif inner is not None and word != "[OPTIONS]":
            if word not in inner:
                return f"no command {word}"
            command = inner[word]
    return ""

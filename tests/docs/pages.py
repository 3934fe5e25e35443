"""Reads the pages: which there are, their tables, code and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PAGES", "ROOT", "code_in", "links_in", "tables_of"]

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CELL_BREAK = re.compile(r"(?<!\\)\|")


def links_in(page: Path) -> list[str]:
    """Give the targets of all links."""
    return _LINK.findall(_FENCE.sub("", page.read_text()))


def code_in(page: Path) -> Iterator[str]:
    """Give every line of a fenced block and every piece of inline code."""
    text = page.read_text()
    for block in _FENCE.findall(text):
        yield from block.splitlines()
    yield from _INLINE.findall(_FENCE.sub("", text))


def tables_of(page: Path) -> list[list[list[str]]]:
    """Give every table as rows of cells, the heading first."""
    tables: list[list[list[str]]] = []
    inside = False
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        if not inside:
            tables.append([])
            inside = True
        if not re.fullmatch(r"[|\-: ]+", line):
            cells = _CELL_BREAK.split(line.strip().strip("|"))
            tables[-1].append([cell.strip() for cell in cells])
    return tables

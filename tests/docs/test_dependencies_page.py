"""``docs/dependencies.md`` has one line for each dependency of ``pyproject.toml``."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import pytest

from tests.docs.pages import ROOT, tables_of

RUNTIME, OTEL, DEVELOPMENT = tables_of(ROOT / "docs" / "dependencies.md")


def project() -> dict[str, Any]:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def names(requirements: list[str]) -> list[str]:
    return [re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in requirements]


@pytest.mark.parametrize(
    ("table", "declared"),
    [
        (RUNTIME, project()["dependencies"]),
        (OTEL, project()["optional-dependencies"]["otel"]),
        (DEVELOPMENT, project()["optional-dependencies"]["dev"]),
    ],
    ids=["runtime", "otel", "development"],
)
def test_each_dependency_has_its_line(table: list[list[str]], declared: list[str]) -> None:
    lines = table[1:]
    assert [cells[0].strip("`") for cells in lines] == names(declared)
    for package, *cells in lines:
        assert len(cells) == 3 and all(cells), f"{package}: what for, who keeps it, without it"

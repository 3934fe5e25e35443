"""The house rules that a machine can check: who imports whom, file length, names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "stores": {"stores"},
    "connectors": {"connectors", "stores"},
    "flows": {"flows", "connectors", "stores"},
}
MOST_LINES = 450
MODULES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def imports(source: str) -> Iterator[str]:
    """Give the full name of every module imported, at any depth of the code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def forbidden(package: str, source: str) -> list[str]:
    """Give what a module of ``package`` imports and may not."""
    strangers = {*MAY_IMPORT, "tests", "benchmarks"} - MAY_IMPORT[package]
    return [
        name for name in imports(source) if name[0] == "." or name.partition(".")[0] in strangers
    ]


def test_there_are_modules() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == MAY_IMPORT.keys()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_stands_below_them(package: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): names
        for path in (ROOT / package).rglob("*.py")
        if (names := forbidden(package, path.read_text()))
    }
    assert not wrong


def test_a_wrong_import_is_noticed_wherever_it_stands() -> None:
    assert forbidden("stores", "import connectors.settings") == ["connectors.settings"]
    assert forbidden("connectors", "def f():\n    from flows import parts") == ["flows"]
    assert forbidden("flows", "if TYPE_CHECKING:\n    from tests.rig import kafka") == ["tests.rig"]
    assert forbidden("flows", "from . import window") == ["."]
    assert forbidden("flows", "import stores.ids, connectors.log, flows.window") == []


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_module_is_named_utils() -> None:
    names = {part for path in MODULES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not names & {"util", "utils", "helper", "helpers", "misc"}

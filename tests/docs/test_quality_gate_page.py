"""The page on the quality gate against the code: every rule, mode and warning."""

from __future__ import annotations

from typing import get_args

from connectors.settings import DEFAULT_GATE_CHARS, DEFAULT_GATE_MODES, GateMode
from flows.gate.policy import WARNINGS
from tests.docs.pages import ROOT, tables_of

PAGE = ROOT / "docs" / "quality-gate.md"


def _column(heading: str, column: int) -> dict[str, str]:
    (table,) = [table for table in tables_of(PAGE) if table[0][0] == heading]
    return {row[0].strip("`"): row[column] for row in table[1:]}


def test_every_rule_stands_there_with_its_default() -> None:
    assert _column("rule", 2) == DEFAULT_GATE_MODES


def test_every_mode_stands_there() -> None:
    assert set(_column("mode", 1)) == set(get_args(GateMode))


def test_every_warning_and_the_limit_stand_there() -> None:
    text = PAGE.read_text()
    assert all(f"`{warning}`" in text for warning in WARNINGS)
    assert f"more than {DEFAULT_GATE_CHARS} characters" in text

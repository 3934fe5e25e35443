"""The corpus of conversations: every case holds, and every case can fail."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.corpus.broken_rules import BREAKS
from tests.corpus.cases import CONVERSATIONS, Case, failures, load

CASES = load(CONVERSATIONS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_what_is_remembered_of_a_conversation(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.parametrize("rule", sorted(BREAKS))
def test_every_case_of_a_rule_fails_without_the_rule(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case for case in CASES if case["rule"] == rule]
    assert cases, f"no case is about {rule}"
    BREAKS[rule](monkeypatch)
    assert [case["id"] for case in cases if not failures(case)] == []


def test_every_case_is_about_a_rule_that_can_be_broken() -> None:
    assert {case["rule"] for case in CASES} == set(BREAKS)
    assert [
        name for name, times in Counter(case["id"] for case in CASES).items() if times > 1
    ] == []


def test_the_corpus_speaks_the_languages_it_should() -> None:
    spoken = Counter(case["lang"] for case in CASES)
    assert len(CASES) >= 150
    assert spoken["en"] >= 60
    assert spoken["zh"] >= 50
    assert spoken["ja"] >= 10
    assert spoken["ko"] >= 10

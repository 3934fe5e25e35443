"""How a real model's memories are compared with what a case asks for."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.real_model import corpus_figures
from benchmarks.real_model_corpus import chosen_cases
from benchmarks.real_model_scoring import Asked, asked_of, score


def kept(text: str, **fields: Any) -> dict[str, Any]:
    return {"text": text, "type": "persona", "start": None, "until": None, **fields}


LUND = Asked(({"text": "User lives in Lund"},), ("User lives in Oslo",), ("hunter2",))


@pytest.mark.parametrize(
    ("texts", "missed", "forbidden"),
    [
        (["User has lived in Lund for years"], 0, 0),
        (["User likes tea"], 1, 0),
        (["User lives in Lund", "User lives in Oslo"], 0, 1),
        (["User lives in Lund", "User may live in Oslo some day if work and visa allow"], 0, 0),
        (["User lives in Lund, password hunter2"], 0, 1),
        ([], 1, 0),
    ],
)
def test_memories_are_compared_by_their_words(
    texts: list[str], missed: int, forbidden: int
) -> None:
    found = score(LUND, [kept(text) for text in texts], texts)
    assert (len(found.missed), len(found.kept)) == (missed, forbidden)
    assert found.right is (missed == forbidden == 0)


def test_a_field_that_differs_is_named_and_no_miss() -> None:
    asked = Asked(({"text": "User lives in Lund", "type": "persona"},), (), ())
    found = score(asked, [kept("User lives in Lund", type="episodic")], [])
    assert (found.right, found.fields) == (True, ("type",))


def test_what_stood_in_a_slot_before_is_forbidden_at_the_end() -> None:
    asked = asked_of(
        {
            "rules": [
                {"text": "User lives in Porto.", "slot": "home.city"},
                {"text": "User moved to Faro.", "slot": "home.city"},
            ],
            "last_of_slot": {"home.city": "User moved to Faro."},
        }
    )
    assert [one["text"] for one in asked.required] == ["User moved to Faro."]
    assert asked.forbidden == ("User lives in Porto.",)


def test_every_case_can_be_asked_of_a_model_and_every_rule_comes_before_a_second_of_one() -> None:
    cases = chosen_cases(per_rule=1, limit=None)
    assert len({case["rule"] for case in cases}) == len(cases)
    everything = chosen_cases(per_rule=None, limit=None)
    assert cases == everything[: len(cases)]
    assert all(asked_of(case) for case in everything)


def test_figures_hold_no_text() -> None:
    case = {"id": "a", "rule": "dates", "lang": "en", "keep": [{"text": "User lives in Lund"}]}
    line = {
        "id": "a", "ended": "ok", "complaints": [], "counts": {"extract-chat calls": 1},
        "refused": {"question": 1}, "atoms": [kept("User lives in Lund", status="active")],
    }  # fmt: skip
    figures = corpus_figures([case], {"a": line})
    assert figures["by_rule"]["all"]["right"] == 1
    assert figures["refused"] == {"question": 1}
    assert "Lund" not in str(figures)

"""Which texts count as one value when a person has rejected it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.value_keys import value_keys

VALUE = "Helen lives in Room 10, Oslo."

SAME = {
    "case": "HELEN LIVES IN ROOM 10, OSLO.",
    "final punctuation": "Helen lives in Room 10, Oslo!?",
    "white space": "  Helen\tlives \u00a0in\u3000Room\n10, Oslo. ",
    "width": "Ｈｅｌｅｎ lives in Room １０, Oslo.",
    "zero width": "He\u200blen li\u200dves in Room 10\ufeff, Oslo.",
    "soft hyphen": "He\u00adlen lives in Room 10, Oslo.",
    "joiner": "H\u034felen lives in Room 10, Oslo.",
    "filler": "Helen\u3164 lives in Room 10, Oslo.",
    "selector": "Helen\ufe0f lives in Room 10, Oslo\U000e0101.",
    "direction": "\u202eHelen\u202c lives in Room 10, Oslo.",
    "Cyrillic": "\u041d\u0435l\u0435n liv\u0435s in R\u043e\u043em 10, \u041esl\u043e.",
    "Greek capital": "\u0397elen lives in Room 10, Oslo.",
    "Greek small": "Helen lives in R\u03bf\u03bfm 10, Osl\u03bf.",
    "mathematical": "\U0001d407elen lives in Room 10, Oslo.",
    "digit for letter": "Helen lives in R00m 1O, 0slo.",
    "I for l": "HeIen Iives in Room 10, OsIo.",
    "rn for m": "Helen lives in Roorn 10, Oslo.",
}

OTHER = [
    "Helen lives in Room 11, Oslo.",
    "Helen lives in Room 10, Bergen.",
    "Helena lives in Room 10, Oslo.",
    "Helen does not live in Room 10, Oslo.",
    "Helen's home is Room 10 in Oslo.",  # a paraphrase: it may pass
    "",
]


def same(one: str, other: str, scope: str = "s") -> bool:
    return bool(set(value_keys("s", one)) & set(value_keys(scope, other)))


@pytest.mark.parametrize("how", SAME)
def test_a_value_in_disguise_is_the_same(how: str) -> None:
    assert same(VALUE, SAME[how])
    assert same(SAME[how], VALUE)


@pytest.mark.parametrize("text", OTHER)
def test_another_value_is_another(text: str) -> None:
    assert not same(VALUE, text)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("用户住在上海。", " 用户住在上海", True),
        ("用户住在上海", "用户住在北京", False),
        ("Ο ΗΛΙΟΣ", "ο ηλιος", True),
        ("Пользователь живёт в Омске", "пользователь живёт в омске.", True),
        ("Пользователь живёт в Омске", "Пользователь живёт в Томске", False),
        ("straße", "STRASSE", True),
        ("résumé", "re\u0301sume\u0301", True),
        ("résumé", "resume", False),
    ],
)
def test_values_in_other_scripts(one: str, other: str, equal: bool) -> None:
    assert same(one, other) is equal


def test_another_scope_has_keys_of_its_own() -> None:
    assert not same(VALUE, VALUE, scope="other")


@given(st.text())
def test_any_text_has_keys_and_the_same_ones_in_capitals(text: str) -> None:
    if text.upper().lower() == text.lower():
        assert same(text, text.upper())
    assert value_keys("s", text) == value_keys("s", f" {text} ")

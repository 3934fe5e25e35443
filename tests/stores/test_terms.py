"""Words as search compares them: forms of a word agree, other scripts are left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.slots import slot_words
from stores.terms import index_terms, query_terms


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("She lives in Porto", "where does she live"),
        ("I moved to two companies", "which company did she move to"),
        ("allergic to NUTS", "nut allergic?"),
        ("we’re hiking", "who hikes"),
        ("I use Kafka daily", "KAFKA"),
    ],
)
def test_forms_of_a_word_agree(said: str, asked: str) -> None:
    assert set(query_terms(asked).split()) <= set(index_terms(said).split())


def test_words_that_say_nothing_are_left_out_unless_nothing_else_was_asked() -> None:
    assert index_terms("Who is the one that was there?") == "one"
    assert query_terms("Who was there?") == "who was there"
    assert query_terms("  ?!  ") == ""


@pytest.mark.parametrize("text", ["我在用Kafka处理数据", "東京に住んでいます", "서울에 살아요"])
def test_other_scripts_are_kept_for_the_server(text: str) -> None:
    kept = "".join(char for char in text if ord(char) > 0x2FF)
    assert kept == "".join(char for char in index_terms(text) if ord(char) > 0x2FF)


@given(st.text(max_size=300))
def test_any_text_has_terms_and_terms_are_stable_words(text: str) -> None:
    terms = index_terms(text)
    assert terms == " ".join(terms.split())
    assert set(index_terms(text).split()) <= set(query_terms(text).split()) or not terms


@given(st.text(min_size=1, max_size=30), st.text(max_size=50))
def test_any_slot_has_words_or_none(slot: str, text: str) -> None:
    assert isinstance(slot_words(slot, text), str)


def test_slot_words_speak_the_language_of_the_atom() -> None:
    assert "lives in" in slot_words("home.city", "User moved to Porto.")
    assert "住在" in slot_words("home.city", "用户搬到了苏州。")
    assert slot_words("allergy.hazelnuts", "User is allergic.").endswith("hazelnuts")
    assert slot_words("family.sister.job", "用户妹妹是药剂师。").endswith("做什么")
    assert slot_words("family.mia.age", "Mia is 7.").endswith("how old")
    assert slot_words("shoe.size", "User wears 38.") == ""


@given(st.text(st.characters(max_codepoint=127), max_size=300))
def test_the_short_way_of_a_text_in_ascii_gives_the_same_terms(text: str) -> None:
    assert index_terms(text) == index_terms(f"{text} \N{RIGHT SINGLE QUOTATION MARK}")

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connectors.query.relevance import OFFLINE_FLOOR, Relevance
from stores.terms import index_terms

UNLIKE, ALIKE = OFFLINE_FLOOR - 0.02, OFFLINE_FLOOR + 0.02


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Where does she live?", "The user lives in Porto"),
        ("What is the capital of Mongolia?", "User read about Mongolia"),
        ("她住在哪里？", "用户住在柏林"),
        ("用户喜欢什么音乐", "用户喜欢古典音乐"),
        ("何か飲み物は好き？", "飲み物は緑茶が好き"),
        ("어디에 살아요", "부산에 살아요"),
        ("Kafka还在用吗", "用户在公司用 Kafka"),
    ],
)
def test_shared_words_make_a_hit_count(question: str, text: str) -> None:
    assert Relevance(question, OFFLINE_FLOOR)(text, UNLIKE)
    assert Relevance(question, OFFLINE_FLOOR)(text, None)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What is the boiling point of tungsten?", "User has a boiling temper at this point"),
        ("Who won the 1954 world cup?", "Ana won a bet"),
        ("How do I configure a BGP route reflector?", "I jog along the river route"),
        ("请解释量子纠缠", "用户住在柏林"),
        ("qwertyuiop zxcvb", "The user lives in Porto"),
    ],
)
def test_a_hit_that_shares_next_to_nothing_does_not(question: str, text: str) -> None:
    shares = question.startswith("What is the boiling")
    assert Relevance(question, OFFLINE_FLOOR)(text, UNLIKE) is shares
    assert Relevance(question, OFFLINE_FLOOR)(text, ALIKE)


def test_a_question_of_stop_words_is_about_everything() -> None:
    assert Relevance("Who am I?", OFFLINE_FLOOR)("The user is called Ana", UNLIKE)


def test_without_a_known_scale_every_near_hit_counts() -> None:
    relevant = Relevance("Where does she live?", None)
    assert relevant("Something else", 0.1)
    assert not relevant("Something else", None)


ROOTS = [
    "die", "lie", "tie", "sky", "happy", "early", "ugly", "hop", "hope", "relate", "sensible",
    "live", "run", "study", "try", "move", "general", "naïve", "über", "o'neil", "cat", "concat",
    "start", "restart", "art", "party", "2024", "b2b", "łódź", "用户", "柏林", "кот",
]  # fmt: skip
ENDS = ["", "s", "es", "ed", "ing", "ies", "ied", "ly", "ness", "ation", "ability", "'s", "’s", "y"]
IRREGULAR = ["dying", "lying", "tying", "dies", "lied", "skies", "skis"]
a_word = st.one_of(
    st.sampled_from(IRREGULAR),
    st.builds("{}{}".format, st.sampled_from(ROOTS), st.sampled_from(ENDS)),
)
a_text = st.lists(
    st.tuples(a_word, st.sampled_from([" ", "-", "_", "'", "，", ""])), max_size=8
).map(lambda pairs: "".join(word + mark for word, mark in pairs))


@given(question=a_word, text=a_text)
@example(question="lying", text="dying'dying'lying")
def test_looking_at_beginnings_finds_what_stemming_every_word_finds(
    question: str, text: str
) -> None:
    """The short way and the long one: every word of the text stemmed."""
    words = Relevance(question, None)._words
    if not words or not index_terms(question).strip():
        return
    terms = set(index_terms(text).split())
    folded = unicodedata.normalize("NFKC", text).casefold()
    latin = {
        word for word in words if not set(word) - set("abcdefghijklmnopqrstuvwxyz'0123456789ïüó")
    }
    found = len(latin & terms) + sum(word in folded for word in words - latin)
    needed = max(1, -(-len(words) * 3 // 10))
    assert Relevance(question, None)(text, None) is (found >= needed)


@pytest.mark.parametrize(
    ("question", "names", "text", "counts"),
    [
        ("What did Mara paint?", {"Mara Santos"}, "Mara bakes bread", False),
        ("What did Mara paint?", {"Mara Santos"}, "Mara paints boats", True),
        ("What did MARA paint?", {"mara"}, "Mara bakes bread", False),
        ("What did Maramaris paint?", {"Mara"}, "Maramaris bakes bread", True),
        ("小林喜欢什么音乐", {"小林"}, "小林住在杭州", False),
        ("小林喜欢什么音乐", {"小林"}, "小林喜欢古典音乐", True),
        ("Who is Mara?", {"Mara"}, "Bo bakes bread", True),
        ("What did Mara paint?", set(), "Mara bakes bread", True),
    ],
)
def test_a_name_left_out_is_no_word_that_is_shared(
    question: str, names: set[str], text: str, counts: bool
) -> None:
    assert Relevance(question, OFFLINE_FLOOR).without(names)(text, None) is counts

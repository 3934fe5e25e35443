from __future__ import annotations

import pytest

from connectors.query.relevance import OFFLINE_FLOOR, Relevance

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

from __future__ import annotations

import pytest

from flows.extract.prompt import Line
from flows.extract.told import in_third_person, is_question, only_assistant_said
from stores.records import Window
from tests.rig.events import sourced
from tests.rig.fake_chat import ENGLISH, FakeChat, answer, extract, memory, window


@pytest.mark.parametrize(
    ("copied", "told"),
    [
        ("I'm a nurse and my wife works in Oslo.", "User is a nurse and their wife works in Oslo."),
        ("My sister is Ann.", "User's sister is Ann."),
        ("明天我要去面试。", "明天用户要去面试。"),
        ("User moved to Ghent with my two cats.", "User moved to Ghent with their two cats."),
        ("User 我明天要去看海。", "用户明天要去看海。"),
        ("User 想搬到厦门", "用户想搬到厦门"),
        ("User는 부산에서 살아요.", "사용자는 부산에서 살아요."),
        ("Userの猫はクロです", "ユーザーの猫はクロです"),
        ("User 札幌に住んでいます。", "ユーザーは札幌に住んでいます。"),
        ("私は札幌に住んでいます。", "ユーザーは札幌に住んでいます。"),
        ("저는 부산에 살아요.", "사용자는 부산에 살아요."),
    ],
)
def test_a_copied_line_is_told_of_the_user(copied: str, told: str) -> None:
    assert in_third_person(copied) == told
    assert in_third_person(told) == told


@pytest.mark.parametrize(
    "text",
    [
        "User's motto is: I never give up",
        'The shop is called "My Way"',
        "Ich wohne in Bergen",
        "札幌に住んでいます。",
        "用户说我行我素是他的座右铭",
        "Imogen lives in Oslo",
    ],
)
def test_what_is_no_copy_stays_as_it_is(text: str) -> None:
    assert in_third_person(text) == text


def test_questions_are_known_in_both_scripts() -> None:
    assert is_question("Does the user like tea?")
    assert is_question("你打算搬到厦门吗？")
    assert is_question("User asked why Python fails at work")
    assert is_question("User wants to know how to descale a kettle")
    assert is_question("用户询问如何订票")
    assert not is_question("User asked that answers stay short")
    assert not is_question("User asked Ben to marry them")
    assert not is_question("用户希望回答简短")


GUESSED = window(
    sourced("u1", content="Any tips for the weekend?"),
    sourced("a1", seconds=10, role="assistant", content="You live near the coast, so go sailing."),
)
CONFIRMED = window(
    sourced("a1", role="assistant", content="So you moved to Bergen for good?"),
    sourced("u1", seconds=10, content="Yes, for good."),
)
SAID_BOTH = window(
    sourced("u1", content="I live near the coast now."),
    sourced("a1", seconds=10, role="assistant", content="You live near the coast, how lovely!"),
)


@pytest.mark.parametrize(
    ("events", "text", "sources", "kept"),
    [
        (GUESSED, "User lives near the coast, so go sailing", ["m1"], False),
        (GUESSED, "User lives near the coast, so go sailing", ["m1", "m2"], False),
        (CONFIRMED, "User moved to Bergen for good", ["m1", "m2"], True),
        (SAID_BOTH, "User lives near the coast", ["m1"], True),
        (ENGLISH, "User lives in Oslo", ["m1"], True),
    ],
)
def test_a_guess_of_the_assistant_is_refused_whatever_source_is_named(
    events: Window, text: str, sources: list[str], kept: bool
) -> None:
    extraction = extract(FakeChat(answer(memory(text=text, sources=sources))), events)
    assert bool(extraction.memories) is kept
    assert [one.reason for one in extraction.refused] == ([] if kept else ["not_said_by_user"])


def test_a_copy_is_kept_in_the_third_person() -> None:
    found = extract(FakeChat(answer(memory(text="I moved to Oslo last week."))))
    assert [one.text for one in found.memories] == [
        "User moved to Oslo last week (2026-02-16 – 2026-02-22)."
    ]


def test_without_a_later_assistant_line_nothing_is_only_the_assistants() -> None:
    assert not only_assistant_said("User lives in Oslo", [_line(0)], [_line(0)])


def _line(number: int) -> Line:
    return Line(f"m{number + 1}", ENGLISH.events[number], "I moved to Oslo")

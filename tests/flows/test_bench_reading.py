"""The reader's choice is read as the official script does, free answers go to the judge."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import pytest

from flows.bench.data import Question
from flows.bench.reading import Reader, right_choice
from stores.errors import MalformedAnswer, OversizedInput, RateLimited, SedimentError
from stores.protocols import ChatAnswer, ChatRequest

QUESTION = Question(
    id="q",
    type="t",
    text="Which sport?",
    history_id="h",
    visible=1,
    asked_at=datetime(2024, 1, 1, tzinfo=timezone.utc),
    answer="b",
    half="dev",
    options=("(a) Rowing", "(b) Climbing", "(c) Chess", "(d) Darts"),
)
FREE = replace(QUESTION, options=(), answer="climbing")


@dataclass
class Script:
    """Gives what it is told to, one after the other."""

    answers: list[str | SedimentError]
    name: str = "script"
    asked: list[ChatRequest] = field(default_factory=list)

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, SedimentError):
            raise answer
        return ChatAnswer(answer, self.name, 70, 7, 0.1)


async def _no_sleep(seconds: float) -> None:
    del seconds


def reader(*answers: str | SedimentError, judge: Script | None = None) -> Reader:
    return Reader(Script(list(answers)), judge, at_once=2, sleep=_no_sleep)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<final_answer>(b)", True),
        ("<final_answer> b </final_answer>", True),
        ("I weigh (a) and (b). <final_answer>(b)</final_answer>", True),
        ("(b)", True),
        ("The answer is B.", True),
        ("I weigh (a) and (b).", False),
        ("<final_answer>(a) or (b)", False),
        ("<final_answer>(a)", False),
        ("<final_answer>", False),
        ("Only (b) fits. <final_answer>", True),  # the whole answer names one letter
        ("", False),
    ],
)
def test_a_choice_is_right_when_it_names_that_letter_alone(text: str, right: bool) -> None:
    assert right_choice(text, "b") is right


def test_every_row_is_asked_in_the_same_words() -> None:
    script = Script(["(b)", "(a)"])
    asking = Reader(script, None, at_once=1, sleep=_no_sleep)

    async def both() -> list[bool]:
        return [
            (await asking.read(QUESTION, "")).correct,
            (await asking.read(QUESTION, "I climb.")).correct,
        ]

    assert asyncio.run(both()) == [True, False]
    without, with_notes = (request.messages[1][1] for request in script.asked)
    assert without.replace("(no notes)", "I climb.", 1) == with_notes
    assert "(c) Chess" in without


def test_a_judge_decides_on_free_answers() -> None:
    judge = Script(["Yes.", "no, that is rowing"], name="judge")
    right = asyncio.run(reader("She climbs.", judge=judge).read(FREE, "x"))
    wrong = asyncio.run(reader("She rows.", judge=judge).read(FREE, "x"))
    assert (right.correct, wrong.correct) == (True, False)
    assert (right.judge_prompt_tokens, right.judge_completion_tokens) == (70, 7)
    assert "Right answer: climbing" in judge.asked[0].messages[1][1]
    assert "She climbs." in judge.asked[0].messages[1][1]


def test_to_abstain_is_judged_without_a_gold_answer() -> None:
    judge = Script(["yes"])
    asyncio.run(reader("I do not know.", judge=judge).read(replace(FREE, abstain=True), "x"))
    assert "not known" in judge.asked[0].messages[1][1]
    assert "climbing" not in judge.asked[0].messages[1][1]


def test_a_busy_server_is_asked_again_and_a_broken_answer_counts_as_wrong() -> None:
    patient = reader(RateLimited("busy"), RateLimited("busy"), "(b)")
    assert asyncio.run(patient.read(QUESTION, "")).correct
    broken = asyncio.run(reader(MalformedAnswer("it was cut off")).read(QUESTION, ""))
    assert (broken.correct, broken.error) == (False, "it was cut off")


def test_a_server_that_stays_busy_stops_the_run() -> None:
    with pytest.raises(RateLimited):
        asyncio.run(reader(*[RateLimited("busy")] * 4).read(QUESTION, ""))


def test_a_context_that_the_reader_does_not_take_counts_as_wrong_and_says_so() -> None:
    answered = asyncio.run(reader(OversizedInput("8192 tokens at most")).read(QUESTION, "long"))
    assert not answered.correct
    assert "longer than the reader takes" in answered.error


def test_what_a_model_thinks_aloud_is_neither_judged_nor_a_verdict() -> None:
    judge = Script(["<think>no, or is it?</think>\nYes."], name="judge")
    asking = reader("<think>rowing, I guess</think>\nClimbing.", judge=judge)
    assert asyncio.run(asking.read(FREE, "x")).correct
    assert "rowing" not in judge.asked[0].messages[1][1]

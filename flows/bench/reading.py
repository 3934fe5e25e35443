"""A reader answers from what a row found; the answer is checked by its letter, or by a judge.

Both are asked through the recorded answers: the same question with the same context is asked
once, whichever row or run it belongs to.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime

from flows.async_stage.retry import RetryPolicy
from flows.bench.data import Question
from flows.prompts import load_prompt
from stores.errors import MalformedAnswer, OversizedInput, Transient
from stores.protocols import ChatAnswer, ChatModel, ChatRequest

__all__ = ["Reader", "Reading", "letters_of", "right_choice"]

_CHOICE, _FREE, _JUDGE = "bench-choice", "bench-free", "bench-judge"
_READER_TOKENS, _JUDGE_TOKENS = 2048, 1024
"""Room to think before the answer, which is short; a model that thinks is cut off below it."""
_MARK, _END_MARK = "<final_answer>", "</final_answer>"
_IN_BRACKETS = re.compile(r"\(([a-d])\)")
_ALONE = re.compile(r"\b([a-d])\b")
_NO_NOTES = "(no notes)"
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_TOO_LONG = "the context is longer than the reader takes"
_YES = re.compile(r"\W*yes\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reading:
    """What became of one answer.

    :arg prompt_tokens: of the reader's request, as its server counted.
    :arg error: why there is no answer; it then counts as wrong.
    """

    correct: bool
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latency_s: float = 0.0
    judge_prompt_tokens: int = 0
    judge_completion_tokens: int = 0
    error: str = ""


class Reader:
    """Asks the reader, and where the answer is free text the judge.

    A ``Transient`` error is tried again as the stages do it, then raised: the run stops, and
    goes on when it is started again. An answer that is cut off or empty counts as wrong, and so
    does a context that is longer than the reader takes: the line says why.

    :arg at_once: calls in flight.
    """

    def __init__(
        self,
        reader: ChatModel,
        judge: ChatModel | None,
        *,
        at_once: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = reader.name
        self.judge_name = judge.name if judge is not None else ""
        self._reader = reader
        self._judge = judge
        self._at_once = at_once
        self._sleep = sleep
        self._slots: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    async def read(self, question: Question, context: str) -> Reading:
        """Answer one question and say whether the answer is right."""
        try:
            answer = await self._ask(self._reader, reader_request(question, context, self.name))
        except MalformedAnswer as error:
            return Reading(correct=False, error=error.message)
        except OversizedInput:
            return Reading(correct=False, error=_TOO_LONG)
        cost = Reading(
            correct=False,
            text=answer.text,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            latency_s=answer.latency_s,
        )
        if question.options:
            return replace(cost, correct=right_choice(answer.text, question.answer))
        assert self._judge is not None
        request = judge_request(question, answer.text, self.judge_name)
        try:
            verdict = await self._ask(self._judge, request)
        except MalformedAnswer as error:
            return replace(cost, error=f"judge: {error.message}")
        return replace(
            cost,
            correct=_YES.match(_THOUGHT.sub("", verdict.text)) is not None,
            judge_prompt_tokens=verdict.prompt_tokens,
            judge_completion_tokens=verdict.completion_tokens,
        )

    async def _ask(self, chat: ChatModel, request: ChatRequest) -> ChatAnswer:
        loop = asyncio.get_running_loop()
        slots = self._slots.setdefault(loop, asyncio.Semaphore(self._at_once))
        async with slots:
            for wait in RetryPolicy().backoff_s:
                try:
                    return await chat.complete(request)
                except Transient as error:
                    await self._sleep(max(wait, error.retry_after or 0.0))
            return await chat.complete(request)


def reader_request(question: Question, context: str, model: str) -> ChatRequest:
    """Ask the reader; every row asks in the same words, only the context differs."""
    prompt = load_prompt(_CHOICE if question.options else _FREE)
    values = {
        "context": context or _NO_NOTES,
        "question": question.text,
        "options": "\n".join(question.options),
        "today": _day(question.asked_at),
    }
    return ChatRequest(
        model=model,
        messages=(("system", prompt.system), ("user", prompt.fill(values))),
        prompt_version=prompt.version,
        max_tokens=_READER_TOKENS,
    )


def judge_request(question: Question, answer: str, model: str) -> ChatRequest:
    """Ask the judge whether an answer says what the gold answer says."""
    prompt = load_prompt(_JUDGE)
    wanted = f"Right answer: {question.answer}"
    if question.abstain:
        wanted = "Right answer: that this is not known, or not so. Any other claim is wrong."
    said = _THOUGHT.sub("", answer).strip()
    values = {"question": question.text, "wanted": wanted, "answer": said}
    return ChatRequest(
        model=model,
        messages=(("system", prompt.system), ("user", prompt.fill(values))),
        prompt_version=prompt.version,
        max_tokens=_JUDGE_TOKENS,
    )


def right_choice(text: str, letter: str) -> bool:
    """Say whether an answer chooses ``letter``, by the rule of PersonaMem's own script.

    What stands behind the last ``<final_answer>`` must name that one letter and no other; if it
    does not, the whole answer may.

    >>> right_choice("Either (a) or (b). <final_answer>(b)", "b"), right_choice("(a) or (b)", "b")
    (True, False)
    """
    final = text.strip()
    if _MARK in final:
        final = final.split(_MARK)[-1].strip()
    final = final.removesuffix(_END_MARK).strip()
    return letters_of(final) == {letter} or letters_of(text) == {letter}


def letters_of(text: str) -> set[str]:
    """Give the letters that a text names: those in brackets, or else those that stand alone."""
    lowered = text.lower()
    return set(_IN_BRACKETS.findall(lowered)) or set(_ALONE.findall(lowered))


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"

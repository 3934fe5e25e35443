"""A chat model for tests of the extractor, with prepared answers, and windows to ask about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from connectors.tokens import count_tokens
from flows.extract.llm import LlmExtractor
from stores.protocols import ChatAnswer, ChatRequest
from stores.records import Extraction, SourcedEvent, Window
from tests.rig import extraction_script
from tests.rig.events import sourced

__all__ = [
    "CHINESE",
    "ENGLISH",
    "FakeChat",
    "ScriptedChat",
    "answer",
    "body_of",
    "extract",
    "memory",
    "window",
]

BUDGET = 4000


class FakeChat:
    """Gives prepared answers in order, the last one again and again, and keeps the requests."""

    name = "fake"

    def __init__(self, *answers: str | Exception, finish: str = "stop", recorded: bool = False):
        self._answers = list(answers)
        self._finish, self._recorded = finish, recorded
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return ChatAnswer(answer, self.name, 100, 10, 0.5, self._finish, self._recorded)


class ScriptedChat(FakeChat):
    """Answers by the rig's script."""

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        self.requests.append(request)
        text = extraction_script.answer(body_of(request))
        return ChatAnswer(text, self.name, 100, 10, 0.5)


def body_of(request: ChatRequest) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in request.messages]}


def window(*events: SourcedEvent, background: Sequence[SourcedEvent] = ()) -> Window:
    return Window("w1", "acme/helper/ana", "s1", events, tuple(background), "turns")


ENGLISH = window(
    sourced("u1", content="I moved to Oslo last week, and I work as a nurse."),
    sourced("a1", seconds=10, role="assistant", content="Lovely! Shall I use Celsius?"),
    sourced("u2", seconds=20, content="Yes please, always use Celsius from now on."),
)
CHINESE = window(sourced("u1", content="我上周三搬到了上海，现在在一家医院当护士。"))


def memory(**fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "text": "User lives in Oslo",
        "type": "persona",
        "priority": 80,
        "sources": ["m1"],
        "slot": None,
        "activity_start": None,
        "activity_end": None,
    }
    return {**given, **fields}


def answer(*memories: Any) -> str:
    return orjson.dumps({"memories": list(memories)}).decode()


def extract(
    chat: FakeChat, events: Window = ENGLISH, error: str | None = None, budget: int = BUDGET
) -> Extraction:
    extractor = LlmExtractor(chat, count_tokens=count_tokens, prompt_budget=budget)
    return asyncio.run(extractor.extract(events, error))

"""The model as a replay sees it: counted, forbidden, or only pretended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import orjson

from stores.errors import NoRecordedAnswer
from stores.protocols import ChatAnswer, ChatModel, ChatRequest

__all__ = ["AnswerTally", "CountedChat", "NobodyToAsk", "PretendedChat"]


class AnswerTally:
    """How many answers were asked for and how many were there already, with their tokens.

    Tokens are those of the call that gave the answer, prompt and answer together. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = self.asked_tokens = 0
        self.saved = self.saved_tokens = self.saved_answer_tokens = 0

    def count(self, answer: ChatAnswer) -> None:
        """Count one answer."""
        tokens = answer.prompt_tokens + answer.completion_tokens
        with self._lock:
            if answer.recorded:
                self.saved += 1
                self.saved_tokens += tokens
                self.saved_answer_tokens += answer.completion_tokens
            else:
                self.asked += 1
                self.asked_tokens += tokens


class CountedChat:
    """A chat model whose answers are counted."""

    def __init__(self, chat: ChatModel, tally: AnswerTally) -> None:
        self.name = chat.name
        self._chat = chat
        self._tally = tally

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Ask, and count what was answered."""
        answer = await self._chat.complete(request)
        self._tally.count(answer)
        return answer


class NobodyToAsk:
    """A model that has no answer: for a replay with recorded answers only."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Raise :class:`~stores.errors.NoRecordedAnswer`: the item becomes a dead letter."""
        message = (
            f"no answer is recorded for this {request.prompt_version} request to {request.model}; "
            "replay with --answers missing to ask for it"
        )
        raise NoRecordedAnswer(message)


class PretendedChat:
    """Answers at once with the least that the request's schema allows, and asks nobody.

    Its answers are not ``stop``, so nothing records them. Its prompt tokens are counted here.
    """

    def __init__(self, name: str, count_tokens: Callable[[str], int]) -> None:
        self.name = name
        self._count_tokens = count_tokens

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Give the emptiest answer."""
        return ChatAnswer(
            text=orjson.dumps(_least(request.schema or {"type": "object"})).decode(),
            model=request.model,
            prompt_tokens=sum(self._count_tokens(content) for _, content in request.messages),
            completion_tokens=0,
            latency_s=0.0,
            finish_reason="pretended",
        )


def _least(schema: dict[str, Any]) -> object:
    """Give the smallest value that a schema of ours takes."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if isinstance(kind, list):
        return None if "null" in kind else _least({**schema, "type": kind[0]})
    if kind == "object":
        return {name: _least(schema["properties"][name]) for name in schema.get("required", ())}
    least: dict[object, object] = {"array": [], "string": "", "integer": 0, "number": 0}
    return least.get(kind, False)

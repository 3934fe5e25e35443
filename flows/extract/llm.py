"""Extract: a window in, memories out, by a chat model. Then memories become atoms.

Depends only on the window and its background, never on earlier answers: so windows run in
parallel and a replay needs no order between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from connectors.llm import parse_json_answer
from flows.extract.answer import Checked, check_answer
from flows.extract.prompt import Shown, escape, plan_requests, room_beside
from flows.prompts import load_prompt
from stores.errors import MalformedAnswer
from stores.protocols import ChatAnswer, ChatModel, ChatRequest
from stores.records import ATOM_TYPES, Extraction, Window

__all__ = ["ANSWER_SCHEMA", "CODE_VERSION", "LlmExtractor"]

CODE_VERSION = 1
"""Raise it when the same answer could give other memories: it is part of every atom id."""

_PROMPT = "extract-chat"
_COMPLAINT_CHARS = 400


def _nullable(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),  # strict mode: every property, null where there is none
        "additionalProperties": False,
    }


ANSWER_SCHEMA: dict[str, Any] = _object(
    memories={
        "type": "array",
        "items": _object(
            text={"type": "string"},
            type={"type": "string", "enum": list(ATOM_TYPES)},
            priority={"type": "integer"},
            sources={"type": "array", "items": {"type": "string"}},
            slot=_nullable("string"),
            activity_start=_nullable("string"),
            activity_end=_nullable("string"),
        ),
    }
)
"""JSON Schema of the answer, within what strict structured output allows."""


class LlmExtractor:
    """Finds memories by asking a chat model, once per window that fits the prompt budget.

    A window over the budget is asked about in several requests, one after the other; nothing a
    user said is left out. Raises what ``chat`` raises, and
    :class:`~stores.errors.MalformedAnswer` with a message that says what to change. Give that
    message to the next call: the request it is about is asked again with the complaint in it,
    the others word for word as before, so that their recorded answers are found. Of a redriven
    window the recorded answers that were refused are not heard a second time: the first answer
    counts if it is good, and what follows a complaint is asked anew.

    :arg count_tokens: counts a text's tokens.
    :arg prompt_budget: prompt tokens of one request at most.
    :arg answer_tokens: answer tokens of one request at most.
    """

    def __init__(
        self,
        chat: ChatModel,
        *,
        count_tokens: Callable[[str], int],
        prompt_budget: int = 10_000,
        answer_tokens: int = 4096,
    ) -> None:
        """Load the prompt. Raises ``ValueError`` when the budget is too small for it."""
        self._chat = chat
        self._count_tokens = count_tokens
        self._answer_tokens = answer_tokens
        self._prompt = load_prompt(_PROMPT)
        self._room = room_beside(self._prompt, prompt_budget, count_tokens)
        self.version = f"llm/{self._prompt.version}/{chat.name}/{CODE_VERSION}"

    async def extract(self, window: Window, previous_error: str | None) -> Extraction:
        """Extract once. No user text: an empty extraction, and the model is not asked."""
        requests = plan_requests(window, self._room, self._count_tokens)
        complaints = _complaints(previous_error, len(requests))
        checked = Checked()
        prompt_tokens = completion_tokens = 0
        for number, shown in enumerate(requests, start=1):
            heard = complaints.get(number)
            answer = await self._chat.complete(self._request(window, shown, heard))
            if not answer.recorded:
                prompt_tokens += answer.prompt_tokens
                completion_tokens += answer.completion_tokens
            try:
                check_answer(
                    _parsed(answer),
                    shown.lines,
                    checked,
                    instructions=self._prompt.system,
                    last_chance=heard is not None,
                )
            except MalformedAnswer as error:
                attempt = heard.attempt + 1 if heard else 1
                complaints[number] = _Complaint(attempt, number, len(requests), error.message)
                message = "\n".join(str(complaints[key]) for key in sorted(complaints))
                raise MalformedAnswer(message) from error
        return Extraction(
            tuple(checked.memories), tuple(checked.refused), prompt_tokens, completion_tokens
        )

    def _request(self, window: Window, shown: Shown, complaint: _Complaint | None) -> ChatRequest:
        version = self._prompt.version
        redriven = window.events[0].redriven
        if complaint and redriven:
            # Else it would be the request of the time before, with its recorded, wrong answer.
            version = f"{version} {redriven.letter}"
        return ChatRequest(
            model=self._chat.name,
            messages=(
                ("system", self._prompt.system),
                ("user", shown.fill(self._prompt, complaint.to_model() if complaint else "")),
            ),
            prompt_version=version,
            schema=ANSWER_SCHEMA,
            max_tokens=self._answer_tokens,
        )


def _parsed(answer: ChatAnswer) -> object:
    if answer.finish_reason == "length":
        # The parser would say where the JSON ends; what the model can change is its length.
        message = "the answer was too long and cut off; give fewer memories with shorter texts"
        raise MalformedAnswer(message)
    return parse_json_answer(answer.text)


@dataclass(frozen=True, slots=True)
class _Complaint:
    """What was wrong with an answer, as it travels from one attempt to the next.

    It is written out with its attempt: were two complaints equal word for word, the third
    request would equal the second and find its recorded, still wrong, answer.
    """

    attempt: int
    request: int
    requests: int
    what: str

    def __str__(self) -> str:
        what = " ".join(self.what.split())[:_COMPLAINT_CHARS]
        return f"answer {self.attempt} to request {self.request} of {self.requests}: {what}"

    def to_model(self) -> str:
        """Say it to the model. What an error quotes is data as well, so it is escaped."""
        what = escape(self.what)
        return f"Your answer {self.attempt} was refused: {what}. Answer again, as asked above."


_COMPLAINT = re.compile(r"answer (\d+) to request (\d+) of (\d+): ([^\n]*)")


def _complaints(error: str | None, requests: int) -> dict[int, _Complaint]:
    """Read an error back, by request; one that is not ours is about every request."""
    if not error:
        return {}
    found = [
        _Complaint(int(match[1]), int(match[2]), int(match[3]), match[4])
        for match in _COMPLAINT.finditer(error)
    ]
    if not found:
        what = " ".join(error.split())[:_COMPLAINT_CHARS]
        found = [_Complaint(1, number, requests, what) for number in range(1, requests + 1)]
    return {complaint.request: complaint for complaint in found}

"""Extract: a window in, memories out, by a chat model. Then memories become atoms.

Depends only on the window and its background, never on earlier answers: so windows run in
parallel and a replay needs no order between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from connectors.llm import parse_json_answer
from connectors.metrics import SCENES_SEGMENTED
from connectors.settings import Settings
from flows.extract.answer import Checked, Kept, check_answer
from flows.extract.guidance import Guidance, load_guidance
from flows.extract.modes import LEAST_PRIORITY, MODES, ExtractMode, Mode, least_in_words
from flows.extract.prompt import Shown, escape, plan_requests, room_beside
from flows.extract.segments import as_scenes
from flows.prompts import Prompt, load_prompt
from stores.errors import MalformedAnswer
from stores.ids import content_id
from stores.protocols import ChatAnswer, ChatModel, ChatRequest
from stores.records import AtomType, Extraction, Window

__all__ = ["CODE_VERSION", "LlmExtractor"]

CODE_VERSION = 3
"""Raise it when the same answer could give other memories: it is part of every atom id."""

_COMPLAINT_CHARS = 400
_SEGMENTS_KEPT = SCENES_SEGMENTED.labels("kept")


@dataclass(frozen=True, slots=True)
class _Ready:
    """A mode with its prompt filled in, and the tokens of conversation that fit beside it."""

    mode: Mode
    prompt: Prompt
    room: int


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
    :arg mode: what to look for where the guidance says nothing else.
    :arg least: priority from which a memory of a type is kept, for types that differ from
        :data:`~flows.extract.modes.LEAST_PRIORITY`.
    :arg guidance: what single scopes care about.
    :arg prompt_budget: prompt tokens of one request at most.
    :arg answer_tokens: answer tokens of one request at most.
    """

    def __init__(
        self,
        chat: ChatModel,
        *,
        count_tokens: Callable[[str], int],
        mode: ExtractMode = "chat",
        least: Mapping[AtomType, int] | None = None,
        guidance: Guidance | None = None,
        prompt_budget: int = 10_000,
        answer_tokens: int = 4096,
    ) -> None:
        """Load the prompts. Raises ``ValueError`` when the budget is too small for one."""
        self._chat = chat
        self._count_tokens = count_tokens
        self._answer_tokens = answer_tokens
        self._guidance = guidance or Guidance()
        self._least = {**LEAST_PRIORITY, **(least or {})}
        self._default: ExtractMode = mode
        modes = {mode, *(entry.mode for entry in self._guidance.entries if entry.mode)}
        self._ready = {name: self._read(MODES[name], prompt_budget) for name in sorted(modes)}
        self.version = "/".join(
            ("llm", self._ready[mode].prompt.version, chat.name, str(CODE_VERSION))
        )
        if self._guidance.entries or self._least != LEAST_PRIORITY:
            # Other memories from the same window must have other ids.
            least_too = repr(sorted(self._least.items()))
            self.version += f"/{content_id(self._guidance.digest(), least_too)[:8]}"

    @classmethod
    def configured(
        cls, settings: Settings, chat: ChatModel, count_tokens: Callable[[str], int]
    ) -> LlmExtractor:
        """Make it as the settings say.

        Raises :class:`~stores.errors.SettingsError` when the guidance file is wrong.
        """
        return cls(
            chat,
            count_tokens=count_tokens,
            mode=settings.extract_mode,
            least=settings.extract_least_priority,
            guidance=load_guidance(settings.extract_guidance),
            answer_tokens=settings.llm_max_tokens,
        )

    def _read(self, mode: Mode, prompt_budget: int) -> _Ready:
        prompt = load_prompt(mode.prompt).with_system(
            {"least": least_in_words(mode, self._least), "slots": ", ".join(mode.slots)}
        )
        return _Ready(mode, prompt, room_beside(prompt, prompt_budget, self._count_tokens))

    async def extract(self, window: Window, previous_error: str | None) -> Extraction:
        """Extract once. No user text: an empty extraction, and the model is not asked."""
        entry = self._guidance.of(window.events[0].event)
        ready, guidance = self._ready[entry.mode or self._default], entry.to_model()
        room = ready.room - self._count_tokens(guidance)
        requests = plan_requests(window, room, self._count_tokens)
        complaints = _complaints(previous_error, len(requests))
        checked = Checked()
        prompt_tokens = completion_tokens = 0
        for number, shown in enumerate(requests, start=1):
            heard = complaints.get(number)
            asked = self._request(window, shown, ready, guidance, heard)
            answer = await self._chat.complete(asked)
            if not answer.recorded:
                prompt_tokens += answer.prompt_tokens
                completion_tokens += answer.completion_tokens
            try:
                check_answer(
                    _parsed(answer),
                    shown.lines,
                    checked,
                    kept_if=Kept(ready.mode, self._least),
                    instructions=ready.prompt.system,
                    last_chance=heard is not None,
                )
            except MalformedAnswer as error:
                attempt = heard.attempt + 1 if heard else 1
                complaints[number] = _Complaint(attempt, number, len(requests), error.message)
                message = "\n".join(str(complaints[key]) for key in sorted(complaints))
                raise MalformedAnswer(message) from error
        scenes = as_scenes(checked.segments)
        _SEGMENTS_KEPT.inc(len(scenes))
        for segments, _ in checked.segments:
            for reason in segments.dropped:
                SCENES_SEGMENTED.labels(reason).inc()
        return Extraction(
            tuple(checked.memories),
            tuple(checked.refused),
            prompt_tokens,
            completion_tokens,
            scenes,
        )

    def _request(
        self,
        window: Window,
        shown: Shown,
        ready: _Ready,
        guidance: str,
        complaint: _Complaint | None,
    ) -> ChatRequest:
        version = ready.prompt.version
        redriven = window.events[0].redriven
        if complaint and redriven:
            # Else it would be the request of the time before, with its recorded, wrong answer.
            version = f"{version} {redriven.letter}"
        told = complaint.to_model() if complaint else ""
        lines = (*shown.background, *shown.lines)
        return ChatRequest(
            model=self._chat.name,
            messages=(
                ("system", ready.prompt.system),
                ("user", shown.fill(ready.prompt, told, guidance)),
            ),
            prompt_version=version,
            schema=ready.mode.schema,
            max_tokens=self._answer_tokens,
            scope=window.scope,
            event_ids=tuple(line.sourced.event.event_id for line in lines),
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

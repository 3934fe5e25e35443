"""The scene agent: a model that reads, writes and edits files of a copy, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from connectors.metrics import SCENE_STEPS
from flows.prompts import Prompt
from flows.scenes.errors import Complaint, RunRefused
from flows.scenes.question import (
    STEPS_SCHEMA,
    Opening,
    Step,
    read_steps,
    request_in,
    results_text,
    steps_text,
)
from stores.errors import MalformedAnswer, RequestTimedOut
from stores.protocols import ChatModel, ChatRequest, Clock
from stores.scenes import SceneSandbox, ToolError

__all__ = ["AgentLimits", "AgentRun", "SceneAgent"]

_UNREADABLE_IN_A_ROW = 3
_READ_AHEAD_CHARS = 6000
"""A folder of no more text, some 1,500 tokens, is read before the model is asked: it would read it
anyway, and that is one answer and one repetition of the request less."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """How far one run may go.

    :arg steps: answers of the model. A merge takes four: read, write, mark, done.
    :arg time: from the first request to the last answer.
    :arg tokens: of all requests and answers together; each request repeats the ones before.
    :arg answer_tokens: of one answer.
    :arg at_once: answers asked for at once, over all runs of the process. More runs than that may
        be under way: while some wait for the model, others read, check and write their files.
    """

    steps: int = 20
    time: timedelta = timedelta(seconds=300)
    tokens: int = 200_000
    answer_tokens: int = 4096
    at_once: int = 60


@dataclass(frozen=True, slots=True)
class AgentRun:
    """How a run went.

    :arg request: reason of a persona request in its last words; empty without one.
    """

    request: str
    answers: int
    prompt_tokens: int
    completion_tokens: int


class SceneAgent:
    """Runs the loop: ask, do the steps, tell what came of them, until ``done``.

    Every request is the whole conversation so far, so every answer is recorded under what led to
    it, and a run that was killed finds all of them again.

    :arg prompt: :func:`flows.prompts.load_prompt` of ``scenes-chat`` or ``scenes-work``.
    """

    def __init__(self, chat: ChatModel, prompt: Prompt, clock: Clock, limits: AgentLimits) -> None:
        self._chat = chat
        self._prompt = prompt
        self._clock = clock
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.at_once)
        self.generator = f"{prompt.version} {chat.name}"

    async def run(
        self, opening: Opening, sandbox: SceneSandbox, complaint: Complaint, redriven: str = ""
    ) -> AgentRun:
        """Let the model work on the copy until it is done.

        Raises :class:`RunRefused` when it goes on for too long or cannot be read,
        :class:`~stores.errors.RequestTimedOut` at the time limit, and what model and disk raise.

        :arg redriven: dead letters this run is about; else a redriven run would hear the answers
            again that it was given up for.
        """
        messages = opening.messages(self._prompt, complaint)
        if 0 < sum(len(file.body) for file in opening.files.values()) <= _READ_AHEAD_CHARS:
            ahead = [Step("read", path) for path in sorted(opening.files)]
            results, _ = await asyncio.to_thread(_do, ahead, sandbox, must_write=False)
            read = ("assistant", steps_text(ahead)), ("user", results_text(results))
            messages = (*messages, *read)
        version = f"{self._prompt.version} {redriven}".strip()
        event_ids = tuple(event for atom in opening.atoms for event in atom.source_event_ids)
        atom_ids = opening.atom_ids()
        # An empty folder with news that ends empty is no run: those atoms are not shown again.
        must_write = not opening.files and any(one.status == "active" for one in opening.atoms)
        ends = self._clock.now() + self._limits.time
        prompt_tokens = completion_tokens = unreadable = 0
        for number in range(1, self._limits.steps + 1):
            if self._clock.now() >= ends:
                message = f"a scene run took longer than {self._limits.time.total_seconds():g} s"
                raise RequestTimedOut(message)
            request = ChatRequest(
                model=self._chat.name,
                messages=messages,
                prompt_version=version,
                schema=STEPS_SCHEMA,
                max_tokens=self._limits.answer_tokens,
                scope=opening.scope,
                event_ids=event_ids,
                atom_ids=atom_ids,
            )
            text = ""
            try:
                async with self._slots:
                    answer = await self._chat.complete(request)
                text = answer.text
                prompt_tokens += answer.prompt_tokens
                completion_tokens += answer.completion_tokens
                if answer.finish_reason == "length":
                    message = "the answer was cut off; write less in one answer"
                    raise MalformedAnswer(message)
                steps = read_steps(text)
            except MalformedAnswer as error:
                unreadable += 1
                if unreadable >= _UNREADABLE_IN_A_ROW:
                    raise RunRefused(error.message, reason=error.reason) from error
                told = f"That could not be used: {error.message}. Answer in the form asked for."
                messages = (*messages, ("assistant", text), ("user", told))
                continue
            unreadable = 0
            results, words = await asyncio.to_thread(_do, steps, sandbox, must_write)
            if words is not None:
                SCENE_STEPS.observe(number)
                return AgentRun(request_in(words), number, prompt_tokens, completion_tokens)
            if prompt_tokens + completion_tokens > self._limits.tokens:
                message = f"it used more than {self._limits.tokens} tokens; read less"
                raise RunRefused(message, reason="token_limit")
            messages = (*messages, ("assistant", text), ("user", results_text(results)))
        message = f"it was not done after {self._limits.steps} answers; do more in each"
        raise RunRefused(message, reason="step_limit")


def _do(
    steps: Sequence[Step], sandbox: SceneSandbox, must_write: bool
) -> tuple[list[tuple[int, str, str]], str | None]:
    """Do the steps in order; give what came of each, and the last words when it is done.

    An answer in which a change was refused does not end the run, so that it can be put right. A
    read that found nothing changes nothing, and is no reason to go on.

    :arg must_write: the run may not end before anything was written.
    """
    results: list[tuple[int, str, str]] = []
    refused = False
    for number, step in enumerate(steps, start=1):
        if step.tool == "done":
            if refused:
                results.append((number, "error", "not done yet: a change before was refused"))
            elif must_write and not _has_written(sandbox):
                results.append((number, "error", "not done yet: there is no scene; write one"))
            else:
                return results, step.text
            break
        try:
            results.append((number, "ok", _call(step, sandbox)))
        except ToolError as error:
            refused = refused or step.tool != "read"
            results.append((number, "error", error.message))
    return results, None


def _has_written(sandbox: SceneSandbox) -> bool:
    return any(call.tool != "read" and call.refused is None for call in sandbox.calls)


def _call(step: Step, sandbox: SceneSandbox) -> str:
    if step.tool == "read":
        return sandbox.read(step.path)
    if step.tool == "write":
        return sandbox.write(step.path, step.text)
    return sandbox.edit(step.path, step.old, step.new)

"""The model client: asks an OpenAI-compatible endpoint, and records what it answered.

Three parts, from the outside in: :class:`RecordedChat` looks in the journal first,
:class:`OpenAIChat` asks, :func:`parse_json_answer` reads what came back.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from connectors import tracing
from connectors.json_answer import parse_json_answer
from connectors.llm_limits import CallGate, CallUse
from connectors.metrics import ANSWERS_RECORDED_HITS, LLM_CALLS, LLM_TOKENS
from connectors.openai_api import Endpoint, error_text, well_formed
from connectors.settings import Settings
from connectors.together import Together
from stores.errors import (
    MalformedAnswer,
    OversizedInput,
    SedimentError,
    ServiceUnavailable,
    Transient,
)
from stores.protocols import AnswerJournal, ChatAnswer, ChatModel, ChatRequest

if TYPE_CHECKING:
    import openai

__all__ = ["OpenAIChat", "RecordedChat", "make_chat", "parse_json_answer"]


# --- asking ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What the server was found to understand. Compatible servers differ in these three."""

    format: Literal["json_schema", "json_object", "plain"] = "json_schema"
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True


_SIMPLER_FORMAT: dict[str, Literal["json_object", "plain"]] = {
    "json_schema": "json_object",
    "json_object": "plain",
}
_SERVICE = "llm"
_FORMAT_REFUSED = (400, 404, 422)
_FORMAT_BROKE = (500, 501)
_THE_FORMAT = re.compile(r"response_format|json_schema|json_object")


class OpenAIChat:
    """Asks an OpenAI-compatible endpoint, once per call, without retries.

    A schema is sent as a strict ``json_schema``; a server that refuses it is asked for
    ``json_object``, then for plain text, and what it took is remembered for the life of this
    object. So a prompt describes its answer's form in words as well. In the same way
    ``max_tokens`` becomes ``max_completion_tokens`` and ``temperature`` is left out for
    models that refuse them.

    An answer that was cut off, withheld, refused or empty raises
    :class:`~stores.errors.MalformedAnswer`, so that the stage asks again and says why.

    :arg model: the name this model goes by in versions; a request names its own model.
    :arg timeout_s: time limit of one whole call.
    :arg gate: where a call waits for its turn; without one it is made at once.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: str = "",
        timeout_s: float = 180.0,
        gate: CallGate | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = model
        self._gate = gate
        self._endpoint = Endpoint(_SERVICE, base_url, api_key, timeout_s, clock)
        self._dialect = _Dialect()

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Ask once; the only further calls are those that find out what the server takes."""
        dialect = self._dialect
        while True:
            async with self._turn(request) as use:
                with tracing.span("llm", _about(request), kind="CLIENT"):
                    answer = await self._ask(request, dialect, use)
            if isinstance(answer, ChatAnswer):
                self._dialect = dialect
                return answer
            dialect = answer

    def _turn(self, request: ChatRequest) -> AbstractAsyncContextManager[CallUse | None]:
        return self._gate.call(request) if self._gate is not None else nullcontext()

    async def _ask(
        self, request: ChatRequest, dialect: _Dialect, use: CallUse | None
    ) -> ChatAnswer | _Dialect:
        """Ask in one dialect; give the answer, or the simpler dialect to ask in."""
        import openai

        started = time.perf_counter()
        try:
            body = await self._endpoint.post("/chat/completions", _body(request, dialect))
            _count_tokens(body, request, use)
            answer = _read_answer(body, request, time.perf_counter() - started)
        except openai.APIStatusError as error:
            explained = self._endpoint.explain(error)
            LLM_CALLS.labels(request.model, explained.reason).inc()
            if use is not None:
                use.failed(explained)
            too_long = isinstance(explained, OversizedInput)
            simpler = None if too_long else _simpler(dialect, request, error)
            if simpler is None:
                raise explained from None
            return simpler
        except SedimentError as error:
            LLM_CALLS.labels(request.model, error.reason).inc()
            if use is not None and not isinstance(error, MalformedAnswer):  # that one was paid
                use.failed(error)
            raise
        LLM_CALLS.labels(request.model, "ok").inc()
        return answer

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        await self._endpoint.aclose()


def _about(request: ChatRequest) -> tracing.Attributes:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": request.model,
        "sediment.prompt_version": request.prompt_version,
    }


def _body(request: ChatRequest, dialect: _Dialect) -> dict[str, object]:
    body: dict[str, object] = {
        "model": request.model,
        "messages": [
            {"role": role, "content": well_formed(content)} for role, content in request.messages
        ],
        dialect.tokens_field: request.max_tokens,
    }
    if dialect.temperature:
        body["temperature"] = request.temperature
    if request.schema is not None and dialect.format == "json_schema":
        name = re.sub(r"[^A-Za-z0-9_-]", "-", request.prompt_version)[:64]
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": name, "strict": True, "schema": request.schema},
        }
    elif request.schema is not None and dialect.format == "json_object":
        body["response_format"] = {"type": "json_object"}
    return body


def _simpler(
    dialect: _Dialect, request: ChatRequest, error: openai.APIStatusError
) -> _Dialect | None:
    if error.status_code in _FORMAT_BROKE:
        # llama-cpp-python answers 500 to a format that it does not know; else 500 is an outage.
        if not _THE_FORMAT.search(error_text(error)):
            return None
    elif error.status_code not in _FORMAT_REFUSED or error.code == "model_not_found":
        return None
    if error.param == "max_tokens" and dialect.tokens_field == "max_tokens":
        return replace(dialect, tokens_field="max_completion_tokens")
    if error.param == "temperature" and dialect.temperature:
        return replace(dialect, temperature=False)
    if request.schema is not None and dialect.format in _SIMPLER_FORMAT:
        return replace(dialect, format=_SIMPLER_FORMAT[dialect.format])
    return None


def _usage(body: object) -> tuple[int, int]:
    """Give the tokens of prompt and answer as the server counted them."""
    if not isinstance(body, dict):
        # Proxies answer 200 with an error page.
        raise ServiceUnavailable(_SERVICE, "the answer's body is not a JSON object")
    usage = body.get("usage") or {}
    return int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)


def _count_tokens(body: object, request: ChatRequest, use: CallUse | None) -> None:
    prompt_tokens, completion_tokens = _usage(body)
    LLM_TOKENS.labels(request.model, "prompt").inc(prompt_tokens)
    LLM_TOKENS.labels(request.model, "completion").inc(completion_tokens)
    tracing.note(
        {
            "gen_ai.usage.input_tokens": prompt_tokens,
            "gen_ai.usage.output_tokens": completion_tokens,
        }
    )
    if use is not None and (prompt_tokens or completion_tokens):  # some servers do not count
        use.used(prompt_tokens, completion_tokens)


def _read_answer(body: Any, request: ChatRequest, latency_s: float) -> ChatAnswer:
    prompt_tokens, completion_tokens = _usage(body)
    try:
        choice: dict[str, Any] = body["choices"][0]
        message: dict[str, Any] = choice["message"]
    except (KeyError, IndexError, TypeError):
        raise ServiceUnavailable(_SERVICE, "the answer's body holds no choice") from None
    finish_reason = str(choice.get("finish_reason") or "stop")
    if finish_reason == "length":
        text = f"the answer was cut off at {request.max_tokens} tokens; answer shorter"
        raise MalformedAnswer(text)
    if finish_reason == "content_filter":
        text = "the answer was withheld by the server's content filter"
        raise MalformedAnswer(text)
    if message.get("refusal"):
        text = "the answer was a refusal; answer in the form that was asked for"
        raise MalformedAnswer(text)
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        text = "the answer was empty; answer in the form that was asked for"
        raise MalformedAnswer(text)
    return ChatAnswer(
        text=well_formed(content),
        model=str(body.get("model") or request.model),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        latency_s=latency_s,
        finish_reason=finish_reason,
    )


# --- recording -------------------------------------------------------------------------------

_UNRECORDED_KEPT = 1000
"""More than calls can be in flight, each of a few kilobytes."""


class RecordedChat:
    """Asks nothing twice: an answer is recorded under its request's hash before it is used.

    - A crash between the answer and the record repeats that call; after the record, never.
    - Two identical requests at once, in one loop, ask once; both get the answer or the error.
    - Two processes that ask the same at once both get the answer that was recorded first.
    - Only answers with the finish reason ``stop`` are recorded; another one is returned and
      forgotten.
    - A journal that is down fails the call with its own ``Transient``; an answer that came
      but could not be recorded is not used. It is kept for the next time it is asked for, in this
      process: otherwise an outage of the journal would be paid for at every retry.
    """

    def __init__(self, chat: ChatModel, journal: AnswerJournal) -> None:
        self.name = chat.name
        self._chat = chat
        self._journal = journal
        self._asking: dict[
            tuple[asyncio.AbstractEventLoop, str], asyncio.Future[ChatAnswer | None]
        ] = {}
        self._unrecorded: dict[str, ChatAnswer] = {}
        self._recorded = Together(self._look_up)

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Give the recorded answer, or ask and record."""
        messages = tuple((role, well_formed(content)) for role, content in request.messages)
        if messages != request.messages:
            request = replace(request, messages=messages)
        key = request.request_hash()
        loop = asyncio.get_running_loop()
        while True:
            other = self._asking.get((loop, key))
            if other is None:
                return await self._lead(loop, key, request)
            # Shielded: one waiter that is cancelled must not cancel it for the others.
            answer = await asyncio.shield(other)
            if answer is not None:
                return answer

    async def _lead(
        self, loop: asyncio.AbstractEventLoop, key: str, request: ChatRequest
    ) -> ChatAnswer:
        mine: asyncio.Future[ChatAnswer | None] = loop.create_future()
        self._asking[loop, key] = mine
        try:
            answer = await self._ask(key, request)
        except SedimentError as error:
            mine.set_exception(error)
            mine.exception()  # mark as seen: there may be no waiter
            raise
        else:
            mine.set_result(answer)
            return answer
        finally:
            del self._asking[loop, key]
            if not mine.done():
                mine.set_result(None)  # cancelled: whoever waits asks itself

    async def _ask(self, key: str, request: ChatRequest) -> ChatAnswer:
        recorded = await self._recorded(key)
        if recorded is not None:
            ANSWERS_RECORDED_HITS.inc()
            tracing.note({"sediment.recorded_answer": True})
            return recorded
        answer = self._unrecorded.get(key) or await self._chat.complete(request)
        if answer.finish_reason != "stop":
            return answer
        self._keep(key, answer)
        kept = await asyncio.to_thread(self._record, key, request, answer)
        self._unrecorded.pop(key, None)
        return answer if kept.text == answer.text else kept

    def _keep(self, key: str, answer: ChatAnswer) -> None:
        self._unrecorded[key] = answer
        if len(self._unrecorded) > _UNRECORDED_KEPT:  # of questions that nobody asks again
            del self._unrecorded[next(iter(self._unrecorded))]

    def _look_up(self, keys: Sequence[str]) -> Sequence[ChatAnswer | Exception | None]:
        try:
            return self._journal.get_many(keys)
        except Exception as error:
            if isinstance(error, Transient) or len(keys) == 1:
                return [error] * len(keys)
        # One of them cannot be read: whoever asked for it is told, and nobody else.
        return [found for key in keys for found in self._look_up([key])]

    def _record(self, key: str, request: ChatRequest, answer: ChatAnswer) -> ChatAnswer:
        self._journal.put(key, request.prompt_version, answer, request.about)
        return self._journal.get(key) or answer


def make_chat(
    settings: Settings, journal: AnswerJournal, gate: CallGate | None = None
) -> ChatModel | None:
    """Make the recorded model client; ``None`` without an endpoint: extraction is by rules.

    :arg gate: where calls wait for the limits; what is recorded needs none.
    """
    if not settings.llm_base_url:
        return None
    chat = OpenAIChat(
        settings.llm_model,
        base_url=settings.llm_base_url,
        api_key=settings.llm_api_key.get_secret_value(),
        timeout_s=settings.llm_timeout_s,
        gate=gate,
    )
    return RecordedChat(chat, journal)

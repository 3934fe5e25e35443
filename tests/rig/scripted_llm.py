"""A scripted OpenAI-compatible server: real HTTP on loopback, in a thread of its own.

It serves ``POST /v1/chat/completions``, ``POST /v1/embeddings`` and ``GET /v1/models`` and says
``scripted`` wherever a model would say its name. What it does with a request is a *script*: a
callable from the request to a :class:`Step`, or ``None`` for the default answer.

    with scripted_llm(script=in_turn(rate_limited(2), server_error())) as server:
        ...  # base_url=server.url
        assert server.count() == 3

HTTP/1.1 is spoken by hand on asyncio streams: it costs a third of a web framework, and a
connection can be cut in the middle of a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

__all__ = [
    "Received",
    "Script",
    "ScriptedLlm",
    "Step",
    "at_random",
    "bag_of_words",
    "broken_json",
    "cut_off",
    "hang",
    "in_turn",
    "llm_server",
    "no_memories",
    "rate_limited",
    "refusal",
    "refused",
    "says",
    "scripted_llm",
    "server_error",
    "slow",
    "when",
    "wrong_schema",
]

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"


@dataclass
class Received:
    """One request, and what became of it. Times are monotonic seconds."""

    number: int
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    started: float
    ended: float | None = None
    status: int | None = None

    def prompt(self) -> str:
        """All messages of a chat request, one after the other."""
        return "\n".join(str(message["content"]) for message in self.body.get("messages", ()))


@dataclass(frozen=True)
class Step:
    """What to do with one request.

    :arg latency_s: wait before answering.
    :arg text: the chat answer's text; ``None`` means the server's ``answer`` function.
    :arg raw: the whole body, sent as it is.
    :arg cut: close the connection after half of the body.
    :arg hang: never answer; the connection stays open until the client gives up.
    """

    latency_s: float = 0.0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    refusal: str | None = None
    finish_reason: str = "stop"
    raw: bytes | None = None
    cut: bool = False
    hang: bool = False


Script = Callable[[Received], "Step | None"]


# --- steps and scripts -----------------------------------------------------------------------


def slow(latency_s: float) -> Step:
    return Step(latency_s=latency_s)


def says(text: str, *, finish_reason: str = "stop") -> Step:
    return Step(text=text, finish_reason=finish_reason)


def wrong_schema() -> Step:
    return says('{"scripted": "this is not the schema that was asked for"}')


def broken_json() -> Step:
    return says('{"memories": [{"text": "scripted and cut')


def refusal() -> Step:
    return Step(refusal="scripted: I cannot help with that.")


def refused(
    status: int, code: str | int | None = None, param: str | None = None, message: str = "scripted"
) -> Step:
    """An error answer as OpenAI writes it. Its text echoes nothing."""
    error = {"message": message, "type": "scripted", "code": code, "param": param}
    return Step(status=status, raw=orjson.dumps({"error": error}))


def rate_limited(retry_after: float | str | None = None) -> Step:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return replace(refused(429, "rate_limit_exceeded"), headers=headers)


def server_error(status: int = 500) -> Step:
    return refused(status)


def hang() -> Step:
    return Step(hang=True)


def cut_off() -> Step:
    return Step(cut=True)


def in_turn(*steps: Step | None) -> Script:
    """The first request gets the first step, and so on; then the default answer."""
    left = list(steps)
    return lambda _: left.pop(0) if left else None


def when(predicate: Callable[[Received], bool], then: Step | Script) -> Script:
    """Script only the requests that the predicate picks."""
    script = then if callable(then) else (lambda _: then)
    return lambda request: script(request) if predicate(request) else None


def at_random(rate: float, seed: int, step: Step) -> Script:
    """Give ``step`` to a share of the requests.

    Which ones depends on the seed, the request's body and how often that body was seen, and
    not on the order of arrival: so concurrent runs fail in the same places.
    """
    seen: Counter[bytes] = Counter()

    def script(request: Received) -> Step | None:
        body = orjson.dumps(request.body, option=orjson.OPT_SORT_KEYS)
        seen[body] += 1
        chance = random.Random(f"{seed}|{seen[body]}|".encode() + body).random()
        return step if chance < rate else None

    return script


def no_memories(request: dict[str, Any]) -> str:
    """The default chat answer: a valid extraction that found nothing."""
    del request
    return '{"memories": []}'


# --- embeddings ------------------------------------------------------------------------------


@lru_cache(maxsize=20_000)
def _word(word: str, dimension: int) -> NDArray[np.float32]:
    seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big")
    return np.random.default_rng(seed).standard_normal(dimension, dtype=np.float32)


def bag_of_words(text: str, dimension: int) -> NDArray[np.float32]:
    """A vector of length 1: the sum of one random vector a word, so same words are near.

    Chinese, which has no spaces, counts by character. Deterministic on every machine.
    """
    words = re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text.lower()) or [""]
    total = np.sum([_word(word, dimension) for word in words], axis=0)
    vector: NDArray[np.float32] = (total / np.linalg.norm(total)).astype(np.float32)
    return vector


# --- server ----------------------------------------------------------------------------------


class ScriptedLlm:
    """The running server: its address and what it saw. Made by :func:`scripted_llm`."""

    def __init__(
        self, script: Script | None, answer: Callable[[dict[str, Any]], str], dimension: int
    ) -> None:
        self.script = script
        self.answer = answer
        self.dimension = dimension
        self.requests: list[Received] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-llm", daemon=True)

    @property
    def url(self) -> str:
        """The base URL for a client, ``/v1`` included."""
        return f"http://127.0.0.1:{self.port}/v1"

    def count(self, path: str = CHAT) -> int:
        """Requests of one kind so far."""
        return sum(request.path == path for request in self.requests)

    def clear(self) -> None:
        """Forget what was seen."""
        self.requests = []
        self.max_in_flight = self.in_flight

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._connection(reader, writer))
            connections.add(task)
            task.add_done_callback(connections.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; give whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        body = orjson.loads(data) if data else {}
        request = Received(len(self.requests), path, headers, body, time.monotonic())
        self.requests.append(request)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            step = (self.script and self.script(request)) or Step()
            if step.hang:
                await reader.read(1)  # until the client closes
                return False
            if step.latency_s:
                await asyncio.sleep(step.latency_s)
            status, content = self._content(request, step)
            request.status = status
            writer.write(_head(status, len(content), step.headers))
            if step.cut:
                writer.write(content[: len(content) // 2])
                await writer.drain()
                return False
            writer.write(content)
            await writer.drain()
            return True
        finally:
            request.ended = time.monotonic()
            self.in_flight -= 1

    def _content(self, request: Received, step: Step) -> tuple[int, bytes]:
        if step.raw is not None:
            return step.status, step.raw
        if request.path == CHAT:
            return step.status, orjson.dumps(self._chat(request, step))
        if request.path == EMBEDDINGS:
            return step.status, orjson.dumps(
                self._embeddings(request.body), option=orjson.OPT_SERIALIZE_NUMPY
            )
        if request.path == MODELS:
            model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "scripted"}
            return step.status, orjson.dumps({"object": "list", "data": [model]})
        return 404, b'{"error": {"message": "scripted: no such path", "code": "not_found"}}'

    def _chat(self, request: Received, step: Step) -> dict[str, Any]:
        text = step.text
        if text is None and step.refusal is None:
            text = self.answer(request.body)
        prompt_tokens = len(request.prompt()) // 4
        completion_tokens = len(text or "") // 4
        return {
            "id": f"scripted-{request.number}",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": step.refusal},
                    "finish_reason": step.finish_reason,
                }
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }

    def _embeddings(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        dimension = body.get("dimensions") or self.dimension
        data = [
            {"object": "embedding", "index": index, "embedding": bag_of_words(text, dimension)}
            for index, text in enumerate(texts)
        ]
        tokens = sum(len(text) for text in texts) // 4
        return {
            "object": "list",
            "data": data,
            "model": "scripted",
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }


def _head(status: int, length: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {length}", "", ""]
    return "\r\n".join(lines).encode("latin-1")


@contextmanager
def scripted_llm(
    script: Script | None = None,
    *,
    answer: Callable[[dict[str, Any]], str] = no_memories,
    dimension: int = 64,
) -> Iterator[ScriptedLlm]:
    """Run the server for as long as the block; ``script`` and ``answer`` may be set meanwhile.

    :arg answer: from a chat request's body to the answer's text, where no step gives one.
    :arg dimension: of embeddings whose request does not name ``dimensions``.
    """
    server = ScriptedLlm(script, answer, dimension)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def llm_server() -> Iterator[ScriptedLlm]:
    """A fresh server that finds no memories; set ``script`` and ``answer`` as the test needs."""
    with scripted_llm() as server:
        yield server

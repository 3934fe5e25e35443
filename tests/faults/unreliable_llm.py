"""The scripted model of a run: fails one call in five, in every way a model can fail.

Which windows it fails, how and how often depends on the variant alone, never on the order or
the number of processes that ask. A window fails twice at most, so that none is given up but for
poison: then a disturbed run ends as an undisturbed one.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from random import Random

from tests.faults.conversation import FORBIDDEN, POISON
from tests.rig import scripted_llm
from tests.rig.extraction_script import answer, shown_lines
from tests.rig.scripted_llm import CHAT, Received, ScriptedLlm, Step

__all__ = ["FAILURES", "Unreliable", "UnreliableLlm"]

FAILURE_RATE = 0.2
_COMPLAINT = "Your answer "  # so begins what is added when an answer is refused
_connection: ContextVar[asyncio.StreamWriter] = ContextVar("connection")


def _reset() -> Step:
    """Cut the connection with a reset and without an answer."""
    sock = _connection.get().get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionResetError


FAILURES: dict[str, Callable[[], Step]] = {
    "timeout": scripted_llm.hang,
    "rate limited": scripted_llm.rate_limited,
    "rate limited, with a time": lambda: scripted_llm.rate_limited(0.2),
    "500": scripted_llm.server_error,
    "503": lambda: scripted_llm.server_error(503),
    "408": lambda: scripted_llm.refused(408),
    "connection reset": _reset,
    "truncated body": scripted_llm.cut_off,
    "body is not JSON": lambda: Step(raw=b"<html>busy</html>"),
    "broken JSON": scripted_llm.broken_json,
    "wrong schema": scripted_llm.wrong_schema,
    "refusal": scripted_llm.refusal,
    "cut at the token limit": lambda: scripted_llm.says('{"memories": [', finish_reason="length"),
    "empty": lambda: scripted_llm.says(""),
}
"""Every way of failing, by name."""


class Unreliable:
    """The script of one run.

    :arg on_chat: called at each question with how many came before it, e.g. to kill who asks.
    :arg down: windows that fail with 500 for now, by a word in them.
    """

    def __init__(self, variant: int, on_chat: Callable[[int], None] | None = None) -> None:
        self._variant = variant
        self._asked: Counter[str] = Counter()
        self._total = 0
        self.on_chat = on_chat
        self.down = ""
        self.failed: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Count the questions."""
        return self._total

    def __call__(self, request: Received) -> Step:
        if request.path != CHAT:
            return Step()
        said, extraction = _question(request)
        self._asked[said] += 1
        self._total += 1
        if self.on_chat is not None:
            self.on_chat(self._total - 1)
        if extraction and POISON in said:
            return scripted_llm.broken_json()
        if extraction and FORBIDDEN in said:
            return scripted_llm.refused(403)
        if extraction and self.down and self.down in said:
            return scripted_llm.server_error()
        asked = self._asked[said]
        rng = Random(f"{self._variant}|{asked}|{said}")
        if asked <= 2 and rng.random() < FAILURE_RATE:
            name = rng.choice(list(FAILURES))
            self.failed[name] += 1
            return FAILURES[name]()
        return Step(latency_s=rng.uniform(0.005, 0.04))


class UnreliableLlm(ScriptedLlm):
    """The scripted server, with the connection of each request at hand for a reset."""

    def __init__(self) -> None:
        super().__init__(None, answer, dimension=16)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _connection.set(writer)
        await super()._connection(reader, writer)


def _question(request: Received) -> tuple[str, bool]:
    """Give what a request is about, the same however often it is asked; and if it extracts."""
    try:
        return "|".join(text for _, _, _, text in shown_lines(request.body)), True
    except ValueError:
        asked: str = request.body["messages"][-1]["content"]
        return asked.partition(_COMPLAINT)[0], False

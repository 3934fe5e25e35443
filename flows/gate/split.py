"""One memory that tells too much, as several short ones.

By a model when there is one, else by sentence. Whatever a splitter gives is checked here before
it counts: nothing may be lost, added or brought in from elsewhere. A split that fails is no
error: the memory then stays as it was, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import orjson

from connectors.llm import parse_json_answer
from flows.extract.prompt import escape
from flows.gate.subject import plain, tokens
from flows.prompts import load_prompt
from stores.errors import MalformedAnswer, Terminal
from stores.protocols import ChatModel, ChatRequest
from stores.records import CHAT_TYPES, Memory, Window

__all__ = ["ModelSplitter", "RuleSplitter", "Splitter"]

_MAX_PIECES = 8
_SHOWN_CHARS = 400
_ANSWER_TOKENS = 4096
_OWN_WORDS = 0.5
"""Least share of a piece's words that are the memory's: the rest bends them ("lived")."""
_KEPT_WORDS = 0.6
"""Least share of the memory's words that its pieces have together."""


class Splitter(Protocol):
    """Cuts memories.

    ``version`` names who cut; it is part of the pieces' ids. Raises
    :class:`~stores.errors.Transient`; anything else that goes wrong is a split that failed.
    """

    version: str

    async def split(
        self, memories: Sequence[Memory], window: Window, said: Mapping[str, str]
    ) -> list[tuple[Memory, ...]]:
        """Give each memory's pieces, in the memories' order; none where the split failed.

        :arg said: what the user said, by event id.
        """
        ...


class RuleSplitter:
    """Cuts at the ends of sentences. A sentence that leans on the one before stays with it."""

    version = "split-rules/1"
    warning = "split_by_rules"

    async def split(
        self, memories: Sequence[Memory], window: Window, said: Mapping[str, str]
    ) -> list[tuple[Memory, ...]]:
        """Cut each memory; one of a single sentence cannot be cut."""
        del window, said
        return [self._pieces(memory) for memory in memories]

    def _pieces(self, memory: Memory) -> tuple[Memory, ...]:
        texts: list[str] = []
        for sentence in filter(None, map(str.strip, _SENTENCE.split(memory.text))):
            if texts and not _STANDS_ALONE.match(sentence):
                texts[-1] = f"{texts[-1]} {sentence}"
            else:
                texts.append(sentence)
        if not 1 < len(texts) <= _MAX_PIECES:
            return ()
        warnings = (self.warning,)
        return tuple(_piece(memory, text.rstrip(";；"), warnings=warnings) for text in texts)


_SENTENCE = re.compile(r"(?<=[;；。！？])\s*|(?<=[.!?])\s+(?=[^a-z\s])")
_STANDS_ALONE = re.compile(r"User\b|The user\b|用户|ユーザー|사용자")


class ModelSplitter:
    """Cuts by asking a chat model, once for all memories of a window that need it."""

    def __init__(self, chat: ChatModel) -> None:
        """Load the prompt."""
        self._chat = chat
        self._prompt = load_prompt("split-memory")
        self.version = self._prompt.version

    async def split(
        self, memories: Sequence[Memory], window: Window, said: Mapping[str, str]
    ) -> list[tuple[Memory, ...]]:
        """Ask once. One memory's bad pieces do not spoil those of another."""
        named = {event_id for memory in memories for event_id in memory.source_event_ids}
        ordinals = {
            sourced.event.event_id: f"m{number}"
            for number, sourced in enumerate(window.events, start=1)
            if sourced.event.event_id in named
        }
        try:
            answer = await self._chat.complete(self._request(memories, window, said, ordinals))
            given = _by_memory(parse_json_answer(answer.text))
        except Terminal:
            return [() for _ in memories]
        return [
            _checked(memory, given.get(number, []), ordinals, said)
            for number, memory in enumerate(memories, start=1)
        ]

    def _request(
        self,
        memories: Sequence[Memory],
        window: Window,
        said: Mapping[str, str],
        ordinals: Mapping[str, str],
    ) -> ChatRequest:
        messages = [
            (ordinal, said.get(event_id, "")[:_SHOWN_CHARS])
            for event_id, ordinal in ordinals.items()
        ]
        notes = [
            (number, memory.text, [ordinals[event_id] for event_id in memory.source_event_ids])
            for number, memory in enumerate(memories, start=1)
        ]
        filled = self._prompt.fill({"messages": _lines(messages), "notes": _lines(notes)})
        return ChatRequest(
            model=self._chat.name,
            messages=(("system", self._prompt.system), ("user", filled)),
            prompt_version=self._prompt.version,
            schema=_SCHEMA,
            max_tokens=_ANSWER_TOKENS,
            scope=window.scope,
            event_ids=tuple(ordinals),
        )


_PIECE: dict[str, Any] = {
    "of": {"type": "integer"},
    "text": {"type": "string"},
    "sources": {"type": "array", "items": {"type": "string"}},
    "holds_now": {"type": "boolean"},
}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "memories": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": _PIECE,
                "required": list(_PIECE),
                "additionalProperties": False,
            },
        }
    },
    "required": ["memories"],
    "additionalProperties": False,
}


def _lines(rows: Sequence[tuple[object, ...]]) -> str:
    return "\n".join(escape(orjson.dumps(row).decode()) for row in rows)


# --- the answer, checked ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    text: str
    sources: tuple[str, ...]
    holds_now: bool


def _by_memory(answer: object) -> dict[int, list[_Given | None]]:
    """Read an answer; ``None`` stands for a piece that is not in the form asked for."""
    items = answer.get("memories") if isinstance(answer, dict) else None
    if not isinstance(items, list):
        message = 'the answer must be one JSON object {"memories": [...]}'
        raise MalformedAnswer(message)
    found: dict[int, list[_Given | None]] = {}
    for item in items:
        number = item.get("of") if isinstance(item, dict) else None
        if isinstance(number, str) and number.isascii() and number.isdigit():
            number = int(number[:4])
        if isinstance(number, int) and not isinstance(number, bool):
            found.setdefault(number, []).append(_given(cast("dict[str, Any]", item)))
    return found


def _given(item: Mapping[str, Any]) -> _Given | None:
    text, sources = item.get("text"), item.get("sources")
    if isinstance(sources, str):
        sources = [sources]
    if not isinstance(text, str) or not isinstance(sources, list) or not sources:
        return None
    if not all(isinstance(source, str) for source in sources):
        return None
    return _Given(" ".join(text.split()), tuple(sources), item.get("holds_now") is not False)


def _checked(
    memory: Memory,
    given: Sequence[_Given | None],
    ordinals: Mapping[str, str],
    said: Mapping[str, str],
) -> tuple[Memory, ...]:
    """Give the pieces, or none when one of them cannot be trusted or something was lost."""
    pieces = [piece for piece in given if piece is not None]
    own = {ordinals[event_id]: event_id for event_id in memory.source_event_ids}
    texts = [piece.text for piece in pieces]
    if (
        len(pieces) != len(given)
        or not 1 < len(pieces) <= _MAX_PIECES
        or len({text.casefold() for text in texts}) != len(texts)
        or any(source not in own for piece in pieces for source in piece.sources)
        or not _tell_the_same(memory.text, texts, [said.get(one, "") for one in own.values()])
    ):
        return ()
    holding = [piece for piece in pieces if piece.holds_now]
    return tuple(
        _piece(
            memory,
            piece.text,
            sources=tuple(
                event_id for ordinal, event_id in own.items() if ordinal in piece.sources
            ),
            slot=memory.slot if holding == [piece] else None,
            over=not piece.holds_now,
        )
        for piece in pieces
    )


def _tell_the_same(whole: str, pieces: Sequence[str], said: Sequence[str]) -> bool:
    """Check that pieces are shorter than the whole, say all of it, and nothing beside it."""
    words, numbers = set(tokens(plain(whole))), _numbers(whole)
    known = numbers.union(*map(_numbers, said))
    found: set[str] = set()
    told: set[int] = set()
    for piece in pieces:
        own = set(tokens(plain(piece)))
        if not own or len(piece) >= len(whole) or len(own & words) < _OWN_WORDS * len(own):
            return False
        if not _numbers(piece) <= known:
            return False
        found |= own
        told |= _numbers(piece)
    return numbers <= told and len(found & words) >= _KEPT_WORDS * len(words)


def _numbers(text: str) -> set[int]:
    return {int(digits[:18]) for digits in re.findall(r"[0-9]+", plain(text))}


def _piece(
    memory: Memory,
    text: str,
    *,
    sources: tuple[str, ...] | None = None,
    slot: str | None = None,
    over: bool = False,
    warnings: tuple[str, ...] = (),
) -> Memory:
    """Make a piece. Dates go along only where the piece names the day they begin or end."""
    dates = (memory.activity_start, memory.activity_end, memory.valid_until)
    dated = any(moment and moment.strftime("%Y-%m-%d") in text for moment in dates)
    return replace(
        memory,
        text=text,
        # What is over is no trait and no standing rule any more.
        type="episodic" if over and memory.type in CHAT_TYPES else memory.type,
        source_event_ids=memory.source_event_ids if sources is None else sources,
        slot=slot,
        warnings=warnings,
        activity_start=memory.activity_start if dated else None,
        activity_end=memory.activity_end if dated else None,
        valid_until=memory.valid_until if dated else None,
    )

"""The scripted model's extraction answers: valid, deterministic, named scripted everywhere.

Not a model: it copies. Each user message gives one memory: what follows ``FACT:``, with a slot
when written ``FACT[home.city]:``, else the message's first sentence.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from tests.rig import layers_script, reconcile_script

__all__ = ["SCRIPTED_MODEL", "answer", "shown_lines"]

SCRIPTED_MODEL = "scripted"
"""Model name to configure, so that every atom says that it was made by a script."""

_FENCE = re.compile(r"<conversation>\n(.*?)\n?</conversation>", re.DOTALL)
_LINE = re.compile(
    r'(\S+) (\w+)(?: ("(?:[^"\\]|\\.)*"))?(?: (\w{3} \d{4}-\S+))? ("(?:[^"\\]|\\.)*")'
)
_FACT = re.compile(r"FACT(?:\[([\w.\-]+)\])?:\s*(.*)", re.DOTALL)
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s|$)|[。！？]|\n|$)", re.DOTALL)
_MAX_MEMORIES = 20
_MAX_CHARS = 300


def answer(request_body: dict[str, Any]) -> str:
    """Answer a chat request whose prompt shows a conversation, in the extraction schema.

    One that asks about known and new memories instead is answered in that of reconcile.

    Raises ``ValueError`` when the request shows none: then it is not an extraction.
    """
    if layers_script.is_asked(request_body):
        return layers_script.answer(request_body)
    if "<notes>\n" in request_body["messages"][-1]["content"]:
        return '{"memories": []}'  # asked to split memories: it cannot, so they stay as they are
    if reconcile_script.is_asked(request_body):
        return reconcile_script.answer(request_body)
    memories: list[dict[str, Any]] = []
    for ordinal, role, _, text in shown_lines(request_body):
        found = _FACT.match(text)
        slot, said = (found[1], found[2]) if found else (None, text)
        sentence = _SENTENCE.match(said)
        content = " ".join((sentence[0] if sentence else said).split())[:_MAX_CHARS]
        if role.split(" ")[0] == "user" and content:
            memories.append(
                {
                    "text": content,
                    "type": "persona",
                    "priority": 80 if found else 60,
                    "sources": [ordinal],
                    "slot": slot,
                    "when": None,
                }
            )
    return orjson.dumps({"memories": memories[:_MAX_MEMORIES], "scenes": []}).decode()


def shown_lines(request_body: dict[str, Any]) -> list[tuple[str, str, str | None, str]]:
    """Read (id, speaker, time, text) of every conversation line that a chat request shows.

    The time is ``None`` soon after the line above.
    """
    asked = request_body["messages"][-1]["content"]
    fence = _FENCE.search(asked)
    if fence is None:
        message = "the request shows no conversation"
        raise ValueError(message)
    lines: list[tuple[str, str, str | None, str]] = []
    for line in fence[1].split("\n"):
        found = _LINE.fullmatch(line)
        if found is None:
            message = f"no line of a conversation: {line[:80]}"
            raise ValueError(message)
        ordinal, role, name, time, text = found.groups()
        speaker = f"{role} {orjson.loads(name)}" if name else role
        lines.append((ordinal, speaker, time, orjson.loads(text)))
    return lines

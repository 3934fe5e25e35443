"""The scripted model's reconcile answers: valid, deterministic, by the words two texts share.

Not a model: it counts. Most words in common is a repeat, the same beginning is a newer value,
anything else is another fact.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

__all__ = ["answer", "is_asked", "line_of"]

_FENCED = re.compile(r"<(known|new)>\n(.*?)\n?</\1>", re.DOTALL)
_REPEAT = 0.8
_BEGINNING = 3


def is_asked(request_body: dict[str, Any]) -> bool:
    """Say whether a chat request asks what new memories do to known ones."""
    asked = request_body["messages"][-1]["content"]
    return [name for name, _ in _FENCED.findall(asked)] == ["known", "new"]


def answer(request_body: dict[str, Any]) -> str:
    """Answer a chat request, in the schema of reconcile."""
    shown = {
        name: [line_of(line) for line in body.split("\n")]
        for name, body in _FENCED.findall(request_body["messages"][-1]["content"])
    }
    known = {label: _words(text) for label, _, text in shown["known"]}
    decisions = []
    for label, _, text in shown["new"]:
        words = _words(text)
        repeats = [one for one in known if _shared(words, known[one]) >= _REPEAT]
        newer = [one for one in known if known[one][:_BEGINNING] == words[:_BEGINNING]]
        action = "skip" if repeats else "update" if newer else "store"
        targets = (repeats or newer)[:1]
        decisions.append({"memory": label, "action": action, "targets": targets, "text": None})
    return orjson.dumps({"decisions": decisions}).decode()


def line_of(line: str) -> list[str]:
    """Read a line of known or new memories: label, date, text."""
    label, said, text = line.split(" ", 2)
    return [label, said, orjson.loads(text)]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _shared(words: list[str], others: list[str]) -> float:
    return len(set(words) & set(others)) / max(1, len(set(words) | set(others)))

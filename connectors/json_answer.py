"""Reads the JSON in a model's answer, forgiving its form and never its content."""

from __future__ import annotations

import json
import re

import json_repair

from connectors.openai_api import well_formed
from stores.errors import MalformedAnswer

__all__ = ["parse_json_answer"]

_MAX_REPAIR_CHARS = 100_000  # about 25,000 tokens: longer than any answer we allow
_THOUGHT = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_PROSE_BRACKETS = re.compile(r"\[[^\[\]{}\"]*\]")
_START = re.compile(r"[{\[]")
_ELISION = re.compile(r",\s*(?:\.\.\.|…)\s*[}\]]")
_UNSURE = ("\\u", "NaN", "Infinity")
_LARGE = re.compile(r"[0-9](?:[eE]|[0-9]{99})")  # a number without either is no infinite one
_END = {"sediment.end.of.answer": 1}
_ANSWER_ONLY = "answer again with one JSON value and nothing else"


def parse_json_answer(text: str) -> object:
    r"""Read the one JSON object or array in a model's answer, forgiving its form.

    Forgiven: code fences, prose around it, thoughts in ``<think>``, comments, trailing commas,
    single or missing quotes, unescaped quotes and line breaks in strings, lone surrogates.
    Values are given as they stand: a number in quotes stays a string.

    Not forgiven, because something would be lost or made up without anybody noticing: an
    answer whose JSON does not end or leaves a part out as ``...``, several different objects,
    a key without a value, a key twice, ``NaN``. These, and answers with no object or array in
    them, raise :class:`~stores.errors.MalformedAnswer` with a message for the model.

    >>> parse_json_answer('Sure!\n```json\n{"a": "say "hi" now",}\n```')
    {'a': 'say "hi" now'}
    """
    text = _THOUGHT.sub("", well_formed(text)).strip().lstrip("\ufeff")
    if not text:
        message = f"the answer is empty; {_ANSWER_ONLY}"
        raise MalformedAnswer(message)
    try:
        value = _find(text)
        if not any(mark in text for mark in _UNSURE) and not _LARGE.search(text):
            return value
        # One round trip: refuses NaN, and cleans surrogates that were written as escapes.
        plain = well_formed(json.dumps(value, ensure_ascii=False, allow_nan=False))
        return json.loads(plain)
    except (ValueError, RecursionError):
        message = f"the answer is not JSON, and could not be repaired; {_ANSWER_ONLY}"
        raise MalformedAnswer(message) from None


def _find(text: str) -> object:
    values: list[object] = []
    at = 0
    while (start := _next_start(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError:
            brackets = _PROSE_BRACKETS.match(text, start)
            if brackets is None:
                values.append(_repair(text[start:]))
                break
            at = brackets.end()
        else:
            values.append(value)
    if not values:
        message = f"the answer holds no JSON object or array; {_ANSWER_ONLY}"
        raise MalformedAnswer(message)
    # "[1]" in prose is a citation, not the answer, when there is an object as well.
    objects = [value for value in values if isinstance(value, dict)] or values
    if any(value != objects[0] for value in objects):
        message = f"the answer holds several JSON values; {_ANSWER_ONLY}"
        raise MalformedAnswer(message)
    return objects[0]


def _next_start(text: str, at: int) -> int | None:
    found = _START.search(text, at)
    return None if found is None else found.start()


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        message = "a key stands twice"
        raise ValueError(message)
    return made


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_distinct)


def _repair(text: str) -> object:
    if len(text) > _MAX_REPAIR_CHARS:
        message = f"the answer is too long and not JSON; {_ANSWER_ONLY}"
        raise MalformedAnswer(message)
    if _ELISION.search(text):
        message = f"the answer leaves a part out as `...`; {_ANSWER_ONLY}, complete"
        raise MalformedAnswer(message)
    # Is it whole? The repairer closes what is open without saying so. A value set behind the
    # text tells: it comes out last on its own, and a closing mark before it changes nothing.
    mark = "}" if text[0] == "{" else "]"
    behind, closed = (
        json_repair.repair_json(f"{text}\n{closing}\n{json.dumps(_END)}", return_objects=True)
        for closing in ("", mark)
    )
    end = text.rfind(mark)
    ended = isinstance(behind, list) and behind[-1:] == [_END] and behind == closed
    if end < 0 or not ended or re.search(r"[{\[]", text[end:]):
        message = f"the answer's JSON does not end, as if cut off; {_ANSWER_ONLY}, shorter"
        raise MalformedAnswer(message)
    return json_repair.repair_json(text[: end + 1], return_objects=True, strict=True)

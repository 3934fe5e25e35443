"""A model's extraction answer, checked: each memory is kept, repaired or refused with a reason.

What can be put right without guessing is put right (a number as a string, an old type name);
anything else refuses that one memory, and the others stand. Only an answer as a whole that is
not what was asked for is an error.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NoReturn, cast

from flows.extract.prompt import Line
from stores.errors import MalformedAnswer
from stores.records import ATOM_TYPES, AtomType, Memory, RefusedMemory

__all__ = ["MAX_MEMORIES", "MAX_TEXT_CHARS", "REFUSALS", "Checked", "check_answer"]

MAX_MEMORIES = 20
MAX_TEXT_CHARS = 600

REFUSALS: dict[str, str] = {
    "not_an_object": "the entry is not a JSON object",
    "unknown_type": f"the type is none of {', '.join(ATOM_TYPES)}",
    "empty_text": "there is no text, or no letter or digit in it",
    "too_long": f"the text is longer than {MAX_TEXT_CHARS} characters",
    "leaked_json": "the text holds a piece of the answer's own JSON",
    "leaked_prompt": "the text repeats the instructions",
    "looping": "the text says the same words over and over",
    "no_source": "no source is named",
    "unknown_source": "a source is named that was not shown",
    "not_said_by_user": "every source is an assistant's message",
    "low_priority": "the priority is below what its type is kept from",
    "wrong_language": "the text is not in the language of the user's messages",
    "duplicate": "the same text is already among the window's memories",
    "too_many": f"the answer holds more than {MAX_MEMORIES} memories",
}
"""Why a proposed memory can be refused, by reason code."""

_LEAST_PRIORITY: dict[AtomType, int] = {"persona": 50, "episodic": 60, "instruction": 70}
_TYPE_ALIASES: dict[str, AtomType] = {
    "episode": "episodic",
    "instruct": "instruction",
    "preference": "persona",
}
_STRICT = -1

_LEAKED_KEY = re.compile(
    r"\\?[\"'](?:memories|text|type|priority|sources|slot|activity_start|activity_end)\\?[\"']\s*:"
)
_LEAKED_MARK = re.compile(r"</?(?:background|conversation)>|\{\{\w+\}\}", re.IGNORECASE)
_PROMPT_RUN = 40  # characters in common with the instructions that are no accident
_LOOP = re.compile(r"(.{4,80}?)\1{3,}")
_SOURCE_MARK = re.compile(r"\s*[\[(（]m\d+(?:\s*[,，、]\s*m\d+)*[\])）]")
_INVISIBLE = {"Cc", "Cs"}  # control characters, lone surrogates

_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d+)?)")
_ORDINAL = re.compile(r"m\d+")
_SLOT = re.compile(r"[a-z][a-z0-9_\-]*(?:\.[\w\-]+){0,3}")
_MAX_SLOT_CHARS = 60
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?\s*(Z|[+-]\d\d:?\d\d)?)?"
)
_YEARS = range(1900, 2201)  # beyond lies no plan of a user, and arithmetic overflows

_ENOUGH_LETTERS = 12
_CJK_SCRIPTS = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL"})
_CJK_WEIGHT = 3  # one such letter says about as much as three of an alphabet
_DOMINANT, _ABSENT = 0.5, 0.05
_MIXED = ""


@dataclass(slots=True)
class Checked:
    """What a window's answers gave so far."""

    memories: list[Memory] = field(default_factory=list)
    refused: list[RefusedMemory] = field(default_factory=list)


class _Refusal(Exception):
    """Ends the check of one memory."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def check_answer(
    answer: object,
    lines: Sequence[Line],
    into: Checked,
    *,
    instructions: str,
    last_chance: bool,
) -> None:
    """Check one parsed answer against the lines it was asked about; add the result to ``into``.

    Raises :class:`~stores.errors.MalformedAnswer`, and adds nothing, when the answer is not an
    object with a list ``memories``, or when a memory is in another language than its sources.
    On the ``last_chance`` such a memory is refused instead, and the rest stands.

    :arg instructions: the prompt's words, which no memory may repeat.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("memories"), list):
        message = 'the answer must be one JSON object {"memories": [...]}, [] when there are none'
        raise MalformedAnswer(message)
    items = cast("list[Any]", answer["memories"])
    instructions = _one_line(instructions)
    known = {_key(memory.text) for memory in into.memories}
    kept: list[Memory] = []
    refused: list[RefusedMemory] = []
    for number, item in enumerate(items, start=1):
        try:
            memory = _memory(item, lines, instructions)
            if _key(memory.text) in known:
                _refuse("duplicate")
            if len(kept) == MAX_MEMORIES:
                _refuse("too_many")
        except _Refusal as refusal:
            if refusal.reason == "wrong_language" and not last_chance:
                message = (
                    f"memory {number} is in another language than the user's messages; write "
                    "every text in the language of the user's messages it comes from"
                )
                raise MalformedAnswer(message) from None
            detail = f"memory {number}" + (f": {refusal.detail}" if refusal.detail else "")
            refused.append(RefusedMemory(refusal.reason, detail))
        else:
            known.add(_key(memory.text))
            kept.append(memory)
    into.memories += kept
    into.refused += refused


def _refuse(reason: str, detail: str = "") -> NoReturn:
    raise _Refusal(reason, detail)


def _memory(item: object, lines: Sequence[Line], instructions: str) -> Memory:
    if not isinstance(item, dict):
        _refuse("not_an_object", type(item).__name__)
    kind = _type_of(item.get("type"))
    text = _text_of(item.get("text"), instructions)
    sources = _sources_of(item.get("sources"), lines)
    if not any(line.by_user for line in sources):
        _refuse("not_said_by_user")
    priority = _priority_of(item.get("priority"), kind)
    if priority < _LEAST_PRIORITY[kind] and priority != _STRICT:
        _refuse("low_priority", f"{kind} {priority}")
    if _in_another_language(text, sources, lines):
        _refuse("wrong_language")
    zone = sources[-1].sourced.event.occurred_at.tzinfo or timezone.utc
    start = _time_of(item.get("activity_start"), zone)
    end = _time_of(item.get("activity_end"), zone)
    return Memory(
        text=text,
        type=kind,
        priority=priority,
        source_event_ids=tuple(dict.fromkeys(line.sourced.event.event_id for line in sources)),
        # An event does not replace an earlier one, so it fills no slot.
        slot=None if kind == "episodic" else _slot_of(item.get("slot")),
        activity_start=start,
        activity_end=None if start and end and end < start else end,
    )


def _type_of(value: object) -> AtomType:
    name = value.strip().lower() if isinstance(value, str) else ""
    kind = _TYPE_ALIASES.get(name, name)
    if kind not in ATOM_TYPES:
        _refuse("unknown_type", name[:40] or type(value).__name__)
    return kind


def _text_of(value: object, instructions: str) -> str:
    raw = value if isinstance(value, str) else ""
    text = _SOURCE_MARK.sub("", _one_line(raw))
    if not any(char.isalnum() for char in text):
        _refuse("empty_text")
    if len(text) > MAX_TEXT_CHARS:
        _refuse("too_long", f"{len(text)} characters")
    if _LEAKED_KEY.search(text) or text.startswith(("{", "[{", "```")):
        _refuse("leaked_json")
    if _LEAKED_MARK.search(text) or _repeats(text, instructions):
        _refuse("leaked_prompt")
    if _LOOP.search(text):
        _refuse("looping")
    return text


def _one_line(text: str) -> str:
    shown = (
        " " if char.isspace() else char
        for char in text
        if char.isspace() or unicodedata.category(char) not in _INVISIBLE
    )
    return " ".join("".join(shown).split())


def _repeats(text: str, instructions: str) -> bool:
    return any(
        text[at : at + _PROMPT_RUN] in instructions for at in range(len(text) - _PROMPT_RUN + 1)
    )


def _sources_of(value: object, lines: Sequence[Line]) -> list[Line]:
    """Give the lines a memory names, in log order; all of them must have been shown."""
    given = value if isinstance(value, list) else [] if value is None else [value]
    named: set[str] = set()
    for entry in given:
        if isinstance(entry, bool) or not isinstance(entry, (str, int)):
            _refuse("unknown_source", type(entry).__name__)
        words = [f"m{entry}"] if isinstance(entry, int) else re.split(r"[\s,\[\]]+", entry.lower())
        named.update(word for word in words if word)
    if not named:
        _refuse("no_source")
    unknown = sorted(named - {line.ordinal for line in lines})
    if unknown:
        detail = unknown[0] if _ORDINAL.fullmatch(unknown[0][:10]) else "not an id"
        _refuse("unknown_source", detail)
    return [line for line in lines if line.ordinal in named]


def _priority_of(value: object, kind: AtomType) -> int:
    """Read a priority; one that is missing or no number is the least that its type is kept at."""
    if isinstance(value, str):
        found = _NUMBER.match(value)
        value = float(found[1]) if found else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _LEAST_PRIORITY[kind]
    value = min(max(value, _STRICT - 1), 100)
    if math.isnan(value):
        return _LEAST_PRIORITY[kind]
    if 0 < value < 1:
        value *= 100  # a share instead of points
    number = round(value)
    if number == _STRICT and kind == "instruction":
        return _STRICT
    return max(number, 0)


def _slot_of(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    name = re.sub(r"\s+", "_", value.strip().lower()).replace("favorite", "favourite")
    if len(name) > _MAX_SLOT_CHARS or not _SLOT.fullmatch(name) or name in {"null", "none"}:
        return None
    return name


def _time_of(value: object, zone: tzinfo) -> datetime | None:
    """Read an ISO 8601 time; one without an offset is in the zone of its source event."""
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or int(found[1]) not in _YEARS:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=_zone_of(found[7], zone))
    except ValueError:
        return None


def _zone_of(offset: str | None, otherwise: tzinfo) -> tzinfo:
    if offset is None:
        return otherwise
    if offset == "Z":
        return timezone.utc
    digits = offset[1:].replace(":", "")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-size if offset[0] == "-" else size)


def _key(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if char.isalnum())


# --- language --------------------------------------------------------------------------------


def _in_another_language(text: str, sources: Sequence[Line], lines: Sequence[Line]) -> bool:
    """Compare scripts: exact enough to catch Chinese answered in English, and cheap.

    A reply too short to tell ("OK") is judged by all the user's lines of the request.
    """
    said = _scripts(line.text for line in sources if line.by_user)
    if sum(said.values()) < _ENOUGH_LETTERS:
        said = _scripts(line.text for line in lines if line.by_user)
    written = _scripts([text])
    if sum(said.values()) < _ENOUGH_LETTERS or not written:
        return False
    spoken, answered = _dominant(said), _dominant(written)
    # Latin names and terms stand in texts of every language, so Latin letters alone prove nothing.
    if spoken not in {_MIXED, "LATIN"} and not written[spoken]:
        return True
    return answered not in {_MIXED, "LATIN"} and said[answered] < _ABSENT * sum(said.values())


def _scripts(texts: Iterable[str]) -> Counter[str]:
    """Weigh letters by script; the scripts of Chinese, Japanese and Korean count as one."""
    weights: Counter[str] = Counter()
    for text in texts:
        for char in text:
            if char.isascii():
                if char.isalpha():
                    weights["LATIN"] += 1
            elif char.isalpha():
                script = unicodedata.name(char, "UNKNOWN").split(" ", 1)[0].split("-")[0]
                cjk = script in _CJK_SCRIPTS
                weights["CJK" if cjk else script] += _CJK_WEIGHT if cjk else 1
    return weights


def _dominant(weights: Counter[str]) -> str:
    script, weight = weights.most_common(1)[0]
    return script if weight >= _DOMINANT * sum(weights.values()) else _MIXED

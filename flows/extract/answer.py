"""A model's extraction answer, checked: each memory is kept, repaired or refused with a reason.

What can be put right without guessing is put right (a number as a string, an old type name);
anything else refuses that one memory, and the others stand. Only an answer as a whole that is
not what was asked for is an error.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NoReturn, cast

from flows.extract.language import in_another_language
from flows.extract.modes import CHAT, LEAST_PRIORITY, Mode, details_of
from flows.extract.prompt import Line
from flows.extract.segments import RANGE, Segments, read_segments
from flows.extract.slots import slot_of_text
from flows.extract.text import said_by
from flows.extract.told import in_third_person, is_question, only_assistant_said
from flows.rules.dated import resolved
from stores.errors import MalformedAnswer
from stores.records import AtomType, Memory, RefusedMemory

__all__ = [
    "MAX_MEMORIES",
    "MAX_TEXT_CHARS",
    "REFUSALS",
    "Checked",
    "Kept",
    "check_answer",
]

MAX_MEMORIES = 20
MAX_TEXT_CHARS = 600

REFUSALS: dict[str, str] = {
    "not_an_object": "the entry is not a JSON object",
    "unknown_type": "the type is none that the mode has",
    "empty_text": "there is no text, or no letter or digit in it",
    "too_long": f"the text is longer than {MAX_TEXT_CHARS} characters",
    "leaked_json": "the text holds a piece of the answer's own JSON",
    "leaked_prompt": "the text repeats the instructions",
    "looping": "the text says the same words over and over",
    "no_source": "no source is named",
    "unknown_source": "a source is named that was not shown",
    "question": "the text asks, or only tells that the user asked",
    "not_said_by_user": "every source is an assistant's message, or only the assistant said it",
    "low_priority": "the priority is below what its type is kept from",
    "wrong_language": "the text is not in the language of the user's messages",
    "duplicate": "the same text is already among the window's memories",
    "too_many": f"the answer holds more than {MAX_MEMORIES} memories",
}
"""Why a proposed memory can be refused, by reason code."""

_STRICT = -1

_LEAKED_KEY = re.compile(
    r"\\?[\"'](?:memories|text|type|priority|sources|slot|scenes|events|"
    r"when|activity_start|activity_end|valid_until|details)\\?[\"']\s*:"
)
_LEAKED_MARK = re.compile(r"</?(?:background|conversation)>|\{\{\w+\}\}", re.IGNORECASE)
_PROMPT_RUN = 40  # characters in common with the instructions that are no accident
_STRIDE = 8
_SHORTER_RUN = _PROMPT_RUN - _STRIDE + 1
_LOOP = re.compile(r"(.{4,80}?)\1{3,}")
_SOURCE_MARK = re.compile(r"\s*[\[(（]m\d+(?:\s*[,，、]\s*m\d+)*[\])）]")
_LINE_HEAD = re.compile(
    r"(?:m\d+ )?(?:user )?(?:mon|tue|wed|thu|fri|sat|sun) "
    r"\d{4}-\d\d-\d\dT\d\d:\d\d[+-]\d\d:\d\d\W*",
    re.IGNORECASE,
)
"""What a line of the prompt begins with; small models copy it into a memory."""
_INVISIBLE = {"Cc", "Cs"}  # control characters, lone surrogates
_ASCII_BUT_ALNUM = bytes(code for code in range(128) if not chr(code).isalnum())

_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d+)?)")
_BETWEEN = re.compile(r"[\s,\[\]]+")
_ORDINAL = re.compile(r"m\d+")
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?\s*(Z|[+-]\d\d:?\d\d)?)?"
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_YEARS = range(1900, 2201)  # beyond lies no plan of a user, and arithmetic overflows


@dataclass(frozen=True, slots=True)
class Kept:
    """What a memory must be to be kept.

    :arg least: priority from which a memory of a type is kept.
    """

    mode: Mode
    least: Mapping[AtomType, int] = field(default_factory=lambda: LEAST_PRIORITY)


@dataclass(slots=True)
class Checked:
    """What a window's answers gave so far."""

    memories: list[Memory] = field(default_factory=list)
    refused: list[RefusedMemory] = field(default_factory=list)
    segments: list[tuple[Segments, Sequence[Line]]] = field(default_factory=list)


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
    kept_if: Kept,
    instructions: str,
    last_chance: bool,
) -> None:
    """Check one parsed answer against the lines it was asked about; add the result to ``into``.

    Raises :class:`~stores.errors.MalformedAnswer`, and adds nothing, when the answer is not an
    object with a list ``memories``, or when a memory is in another language than its sources.
    On the ``last_chance`` such a memory is refused instead, and the rest stands.

    A segment of the answer's ``scenes`` that is wrong is left out, and costs no memory.

    :arg instructions: the prompt's words, which no memory may repeat.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("memories"), list):
        message = 'the answer must be one JSON object {"memories": [...]}, [] when there are none'
        raise MalformedAnswer(message)
    items = cast("list[Any]", answer["memories"])
    instructions = _instructions_on_one_line(instructions)
    segments = read_segments(answer.get("scenes"), lines, _name_of)
    around = [line.text for line in lines if line.by_user]
    known = {_key(memory.text) for memory in into.memories}
    kept: list[Memory] = []
    refused: list[RefusedMemory] = []
    for number, item in enumerate(items, start=1):
        try:
            memory = _memory(item, lines, around, instructions, kept_if, segments)
            key = _key(memory.text)
            if key in known:
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
            known.add(key)
            kept.append(memory)
    into.memories += kept
    into.refused += refused
    into.segments.append((segments, lines))


def _refuse(reason: str, detail: str = "") -> NoReturn:
    raise _Refusal(reason, detail)


def _memory(
    item: object,
    lines: Sequence[Line],
    around: Sequence[str],
    instructions: str,
    kept_if: Kept,
    segments: Segments,
) -> Memory:
    if not isinstance(item, dict):
        _refuse("not_an_object", type(item).__name__)
    kind = _type_of(item.get("type"), kept_if.mode)
    text = _text_of(item.get("text"), instructions)
    if kept_if.mode is CHAT:
        text = in_third_person(text)
    sources = _sources_of(item.get("sources"), lines)
    spoken = [line for line in sources if line.by_user]
    if not spoken or only_assistant_said(text, sources, lines):
        _refuse("not_said_by_user")
    least = kept_if.least[kind]
    priority = _priority_of(item.get("priority"), kind, least)
    if priority < least and priority != _STRICT:
        _refuse("low_priority", f"{kind} {priority}")
    if in_another_language(text, [line.text for line in spoken], around):
        _refuse("wrong_language")
    zone = sources[-1].sourced.event.occurred_at.tzinfo or timezone.utc
    when = _when_of(item)
    start = _time_of(when.get("start"), zone)
    end = _time_of(when.get("end"), zone, to_end_of_day=True)
    until = _time_of(when.get("until"), zone, to_end_of_day=True)
    text, span = resolved(text, start, spoken[-1].local)
    if span is not None:
        start, end = span.start, end or span.end
    return Memory(
        text=text,
        type=kind,
        priority=priority,
        source_event_ids=tuple(dict.fromkeys(line.sourced.event.event_id for line in sources)),
        slot=_slot_of(item.get("slot"), kind, text),
        activity_start=start,
        activity_end=None if start and end and end < start else end,
        valid_until=_if_to_come(until, sources),
        said_by=said_by(spoken[-1].sourced.event),
        scene=segments.of_sources(sources),
        details=details_of(
            item.get("details"),
            kind,
            as_text=lambda raw: "" if _leaks_key(raw) else _one_line(raw),
            as_date=lambda raw: _iso(raw, zone),
        ),
    )


def _when_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a memory's times; a text alone is when it begins."""
    when = item.get("when")
    if isinstance(when, str):
        return {"start": when}
    if isinstance(when, dict):
        return when
    names = {"start": "activity_start", "end": "activity_end", "until": "valid_until"}
    return {short: item.get(name) for short, name in names.items()}


def _slot_of(value: object, kind: AtomType, text: str) -> str | None:
    # An event does not replace an earlier one, so it fills no slot.
    return None if kind == "episodic" else slot_of_text(value, text)


def _if_to_come(end: datetime | None, sources: Sequence[Line]) -> datetime | None:
    # What had ended when it was told is history, and stays true.
    said_at = max(line.sourced.occurred_at for line in sources)
    return end if end and end > said_at else None


def _name_of(value: object) -> str:
    name = _one_line(value) if isinstance(value, str) else ""
    unfit = _leaks_key(name) or _leaks_mark(name) or name.startswith(("{", "["))
    return "" if unfit or not any(char.isalnum() for char in name) else name


def _iso(raw: str, zone: tzinfo) -> str:
    """Read a deadline as an ISO 8601 date or time; ``""`` when it is none."""
    found = _time_of(raw, zone)
    if found is None:
        return ""
    return raw.strip() if _DAY.fullmatch(raw.strip()) else found.isoformat(timespec="minutes")


def _type_of(value: object, mode: Mode) -> AtomType:
    name = value.strip().lower() if isinstance(value, str) else ""
    for kind in mode.types:
        if kind == mode.aliases.get(name, name):
            return kind
    _refuse("unknown_type", name[:40] or type(value).__name__)


def _text_of(value: object, instructions: str) -> str:
    raw = value if isinstance(value, str) else ""
    text = _one_line(raw)
    if "[" in text or "(" in text or "（" in text:
        text = _SOURCE_MARK.sub("", text)
    if "T" in text and (head := _LINE_HEAD.match(text)):
        text = text[head.end() :].rstrip("\"'” ")
    if not any(map(str.isalnum, text)):
        _refuse("empty_text")
    if len(text) > MAX_TEXT_CHARS:
        _refuse("too_long", f"{len(text)} characters")
    if _leaks_key(text) or text.startswith(("{", "[{", "```")):
        _refuse("leaked_json")
    if _leaks_mark(text) or _repeats(text, instructions):
        _refuse("leaked_prompt")
    if _loops(text):
        _refuse("looping")
    if is_question(text):
        _refuse("question")
    return text


def _leaks_key(text: str) -> bool:
    return ('"' in text or "'" in text) and _LEAKED_KEY.search(text) is not None


def _leaks_mark(text: str) -> bool:
    return ("<" in text or "{" in text) and _LEAKED_MARK.search(text) is not None


def _one_line(text: str) -> str:
    if text.isprintable():  # neither control characters nor spaces other than the usual one
        return " ".join(text.split())
    shown = (
        " " if char.isspace() else char
        for char in text
        if char.isspace() or unicodedata.category(char) not in _INVISIBLE
    )
    return " ".join("".join(shown).split())


# They are the same for every window, of each mode.
_instructions_on_one_line = lru_cache(maxsize=4)(_one_line)


@lru_cache(maxsize=4)
def _runs_of(instructions: str) -> frozenset[str]:
    return frozenset(instructions[at : at + _SHORTER_RUN] for at in range(len(instructions)))


def _repeats(text: str, instructions: str) -> bool:
    # Of 40 characters in common, 33 begin at a multiple of eight. Looking there first is cheap.
    runs, starts = _runs_of(instructions), range(0, len(text) - _SHORTER_RUN + 1, _STRIDE)
    if not any(text[at : at + _SHORTER_RUN] in runs for at in starts):
        return False
    return any(
        text[at : at + _PROMPT_RUN] in instructions for at in range(len(text) - _PROMPT_RUN + 1)
    )


def _loops(text: str) -> bool:
    # Of four times the same, nine characters at a multiple of four come again within 80. The
    # pattern itself takes twenty times as long to find that nothing repeats.
    comes_again = (
        text.find(text[at : at + 9], at + 4, at + 80 + 9) >= 0 for at in range(0, len(text) - 12, 4)
    )
    return any(comes_again) and _LOOP.search(text) is not None


def _sources_of(value: object, lines: Sequence[Line]) -> list[Line]:
    """Give the lines a memory names, in log order; all of them must have been shown."""
    given = value if isinstance(value, list) else [] if value is None else [value]
    shown = [line.ordinal for line in lines]
    named: set[str] = set()
    for entry in given:
        if isinstance(entry, bool) or not isinstance(entry, (str, int)):
            _refuse("unknown_source", type(entry).__name__)
        if entry in shown:
            named.add(entry)
            continue
        text = f"m{entry}" if isinstance(entry, int) else entry.lower()
        for spread in RANGE.finditer(text):
            first, last = (f"m{int(number)}" for number in spread.groups())
            if first in shown and last in shown:  # else the ends are told apart below
                named.update(shown[shown.index(first) : shown.index(last) + 1])
                text = text.replace(spread[0], " ")
        named.update(filter(None, _BETWEEN.split(text)))
    if not named:
        _refuse("no_source")
    unknown = sorted(named.difference(shown))
    if unknown:
        detail = unknown[0] if _ORDINAL.fullmatch(unknown[0][:10]) else "not an id"
        _refuse("unknown_source", detail)
    return [line for line in lines if line.ordinal in named]


def _priority_of(value: object, kind: AtomType, least: int) -> int:
    """Read a priority; one that is missing or no number is the least that its type is kept at."""
    if isinstance(value, str):
        found = _NUMBER.match(value)
        value = float(found[1]) if found else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return least
    value = min(max(value, _STRICT - 1), 100)
    if math.isnan(value):
        return least
    if 0 < value < 1:
        value *= 100  # a share instead of points
    number = round(value)
    if number == _STRICT and kind == "instruction":
        return _STRICT
    return max(number, 0)


def _time_of(value: object, zone: tzinfo, *, to_end_of_day: bool = False) -> datetime | None:
    """Read an ISO 8601 time; one without an offset is in the zone of its source event.

    :arg to_end_of_day: a day without a time means its last second, not its first.
    """
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or int(found[1]) not in _YEARS:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    if to_end_of_day and found[4] is None:
        hour, minute, second = 23, 59, 59
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
    if text.isascii():
        return text.lower().encode().translate(None, _ASCII_BUT_ALNUM).decode()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if char.isalnum())

"""Breaks one rule of extraction at a time, so that the corpus can show that it would notice."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

import flows.rules.extractor as rules
from flows.extract import answer, guidance, llm, prompt, text
from flows.extract.segments import Segments, read_segments
from flows.extract.slots import normal_slot
from flows.rules import clauses, dates
from stores.errors import MalformedAnswer
from stores.records import Memory

__all__ = ["BREAKS"]

Break = Callable[[pytest.MonkeyPatch], None]

_NUMBERS = itertools.count()
_NEVER = re.compile(r"(?!)")
_SOME_DAY = datetime(2300, 1, 1, tzinfo=timezone.utc)


def _set(target: Any, name: str, value: Any) -> Break:
    return lambda patch: patch.setattr(target, name, value)


def _both(*breaks: Break) -> Break:
    def run(patch: pytest.MonkeyPatch) -> None:
        for one in breaks:
            one(patch)

    return run


def _unescaped(rendered: str) -> str:
    return rendered.replace("\\n", "\n").replace('\\"', '"')


def _without(**fields: Any) -> Break:
    """Make both extractors forget a field of every memory."""

    def made(*args: Any, **given: Any) -> Memory:
        return replace(Memory(*args, **given), **fields)

    def run(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(answer, "Memory", made)
        patch.setattr(rules, "Memory", made)
        if "said_by" in fields:
            patch.setattr(rules, "said_by", lambda _event: "user")

    return run


def _strict_segments(read: Callable[..., Segments]) -> Callable[..., Segments]:
    def run(*args: Any) -> Segments:
        segments = read(*args)
        if segments.dropped:
            message = "a bad segment"
            raise MalformedAnswer(message)
        return segments

    return run


_NO_BELIEF = _both(
    _set(prompt.Line, "by_user", property(lambda _line: False)),
    _set(rules.RuleExtractor, "memories", lambda _self, _window: ()),
)
_TAKES_ALL_LINES = _set(answer, "_sources_of", lambda _value, lines: list(lines))

BREAKS: dict[str, Break] = {
    "assistant_is_no_source": _set(prompt.Line, "by_user", property(lambda _line: True)),
    "user_is_believed": _NO_BELIEF,
    "injected_blocks": _set(text, "_without_blocks", lambda raw: raw),
    "code_fences": _set(text, "_without_fences", lambda raw: raw),
    "host_lines": _both(_set(text, "_HOST_LINE", _NEVER), _set(text, "_INLINE", _NEVER)),
    "noise_messages": _both(_set(text, "_NOISE", _NEVER), _set(text, "_COMMAND", _NEVER)),
    "roles": _set(text, "context_text", lambda event: event.text()),
    "tool_loop": _set(
        prompt,
        "without_repeats",
        lambda events: tuple((one, text.context_text(one.event)) for one in events),
    ),
    "fence": _set(prompt, "escape", _unescaped),
    "sources": _TAKES_ALL_LINES,
    "duplicate": _set(answer, "_key", lambda _text: str(next(_NUMBERS))),
    "loops": _set(answer, "_LOOP", _NEVER),
    "leaked_json": _set(answer, "_LEAKED_KEY", _NEVER),
    "leaked_prompt": _both(
        _set(answer, "_LEAKED_MARK", _NEVER), _set(answer, "_repeats", lambda *_: False)
    ),
    "too_many": _set(answer, "MAX_MEMORIES", 10**6),
    "too_long": _set(answer, "MAX_TEXT_CHARS", 10**6),
    "priority": _set(answer, "_priority_of", lambda _value, _kind, least: least),
    "strict": _both(_set(answer, "_STRICT", -99), _without(priority=50)),
    "types": _set(answer, "_type_of", lambda _value, mode: mode.types[0]),
    "language": _set(answer, "in_another_language", lambda *_: False),
    "language_kept": _set(answer, "in_another_language", lambda *_: True),
    "dates": _without(activity_start=None, activity_end=None),
    "zone": _set(answer, "_zone_of", lambda *_: timezone.utc),
    "zone_rules": _set(
        rules,
        "resolve",
        lambda words, at, future: dates.resolve(words, at.astimezone(timezone.utc), future=future),
    ),
    "impossible_dates": _set(answer, "_time_of", lambda *_, **__: _SOME_DAY),
    "valid_until": _without(valid_until=None),
    "until_past": _set(answer, "_if_to_come", lambda end, _sources: end),
    "until_slot": _set(rules, "_slot", lambda rule, found, *_: rule.slot_of(found)),
    "said_by": _without(said_by="user"),
    "scenes": _without(scene=None),
    "bad_scenes": _set(answer, "read_segments", _strict_segments(read_segments)),
    "correction": _without(slot=None),
    "retraction": _without(slot=None),
    "episode_slot": _set(answer, "_slot_of", lambda value, _kind, _text: normal_slot(value)),
    "slot_of_another": _set(answer, "slot_of_text", lambda value, _text: normal_slot(value)),
    "another": _without(slot="family.sister"),
    "work": _without(details={"broken": "yes"}),
    "guidance": _set(guidance.GuidanceEntry, "to_model", lambda _entry: ""),
    "guidance_fence": _set(guidance, "escape", _unescaped),
    "long_window": _set(llm, "plan_requests", lambda *args: prompt.plan_requests(*args)[:1]),
    "hypothetical": _both(
        _set(rules, "is_hypothetical", lambda _clause: False),
        _set(clauses, "_HYPOTHETICAL_SENTENCE", _NEVER),
    ),
    "question": _both(_set(clauses, "_QUESTION", _NEVER), _set(clauses, "_ASKING", _NEVER)),
    "quotation": _set(clauses, "_QUOTATION", _NEVER),
    "secret": _set(rules, "holds_secret", lambda _sentence: False),
    "copied": _set(answer, "in_third_person", lambda told: told),
    "asked": _set(answer, "is_question", lambda _told: False),
    "assistants_guess": _set(answer, "only_assistant_said", lambda *_: False),
    "dates_left": _set(answer, "resolved", lambda told, _start, _said_at: (told, None)),
    "handed_over": _set(clauses, "_HANDED_OVER", _NEVER),
}
"""By the rule that a case is about: how to break it."""

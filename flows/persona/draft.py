"""A persona taken apart: its sections, as Markdown, and what is wrong with it. Pure.

Whoever writes one, a model or the rules, gives sections; headings and form are made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from connectors.llm import parse_json_answer
from flows.extract.language import in_another_language
from flows.scenes.checks import Refusal, refusals
from stores.errors import MalformedAnswer
from stores.protocols import KeptOut

__all__ = ["LIMITS", "Draft", "Mode", "answer_schema", "faults", "read_draft", "render_draft"]

Mode = Literal["chat", "work"]
LIMITS: dict[Mode, int] = {"chat": 2000, "work": 1200}
"""Characters of a persona's body at most, headings included, navigation not."""

_SECTIONS: dict[Mode, tuple[str, ...]] = {
    "chat": ("basics", "preferences", "interests", "speak", "decide", "traits", "tags"),
    "work": ("principles", "procedures", "decisions", "boundaries", "agents"),
}
_HEADINGS: dict[str, tuple[str, str]] = {
    "basics": ("## Basic facts", "## 基本情况"),
    "preferences": ("## Long-term preferences", "## 长期偏好"),
    "interests": ("## Interests", "## 兴趣"),
    "speak": ("### How to speak", "### 怎样说话"),
    "decide": ("### How to decide", "### 怎样决定"),
    "traits": ("## Deep traits", "## 深层特点"),
    "principles": ("## Principles", "## 原则"),
    "procedures": ("## Procedures", "## 流程"),
    "decisions": ("## How it is decided", "## 决策"),
    "boundaries": ("## Boundaries", "## 边界"),
    "agents": ("## Rules for agents", "## 对助手的要求"),
}
_TAGS_ALONE = ("## Talks about", "## 常谈到")
"""Heading of tags without traits: rules infer none, they only know what is talked about."""
_PROTOCOL = ("## Interaction protocol", "## 相处方式")
_NO_NAME: dict[Mode, tuple[str, str]] = {
    "chat": ("The user", "用户"),
    "work": ("The team", "团队"),
}
_TAGS = (3, 7)
_MOST_ITEMS = 40


@dataclass(frozen=True, slots=True)
class Draft:
    """The sections of a persona.

    :arg sections: by name; each a list of short sentences. ``tags`` are words.
    """

    name: str
    archetype: str
    sections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, section: str) -> tuple[str, ...]:
        """Give a section; empty when nothing is known."""
        return self.sections.get(section, ())


def answer_schema(mode: Mode) -> dict[str, Any]:
    """Give the JSON Schema of a model's answer."""
    lists = {name: {"type": "array", "items": {"type": "string"}} for name in _SECTIONS[mode]}
    words = {"name": {"type": "string"}, "archetype": {"type": "string"}}
    return {
        "type": "object",
        "properties": {**words, **lists},
        "required": [*words, *lists],
        "additionalProperties": False,
    }


def read_draft(text: str, mode: Mode) -> Draft:
    """Read a model's answer. Raises :class:`~stores.errors.MalformedAnswer`."""
    value = parse_json_answer(text)
    if not isinstance(value, dict):
        message = "the answer must be one JSON object with the sections asked for"
        raise MalformedAnswer(message)
    sections: dict[str, tuple[str, ...]] = {}
    for name in _SECTIONS[mode]:
        found = value.get(name, [])
        items = [found] if isinstance(found, str) else found
        if not isinstance(items, list) or not all(isinstance(one, str) for one in items):
            message = f"{name}: give a list of sentences"
            raise MalformedAnswer(message)
        lines = (_plain_line(one) for one in items[:_MOST_ITEMS])
        sections[name] = tuple(line for line in lines if line)
    words = [value.get(name) for name in ("name", "archetype")]
    name, archetype = (_plain_line(one) if isinstance(one, str) else "" for one in words)
    return Draft(name, archetype, sections)


def render_draft(draft: Draft, mode: Mode, language: str) -> str:
    """Write a persona's body; sections of which nothing is known are left out."""
    at = int(language == "zh")
    lines = [f"# {draft.name or _NO_NAME[mode][at]}"]
    if draft.archetype:
        lines += ["", f"> {draft.archetype}"]
    for section in _SECTIONS[mode]:
        items = draft.of(section)
        if section == "speak" and (items or draft.of("decide")):
            lines += ["", _PROTOCOL[at]]
        if section == "tags":
            if items:
                if not draft.of("traits"):
                    lines += ["", _TAGS_ALONE[at]]
                lines += ["", " ".join(f"`{one}`" for one in items)]
        elif items:
            lines += ["", _HEADINGS[section][at], "", *(f"- {one}" for one in items)]
    return "\n".join(lines)


def faults(
    scope: str,
    draft: Draft,
    body: str,
    mode: Mode,
    sources: Sequence[str],
    kept_out: KeptOut | None,
) -> list[Refusal]:
    """Give what is wrong with what a model wrote, for the model; nothing when it may be kept.

    :arg sources: texts of what it was made from, to know the language.
    """
    found = refusals(scope, body, kept_out)
    if len(body) > LIMITS[mode]:
        detail = f"it has {len(body)} characters with headings; at most {LIMITS[mode]}: shorten"
        found.append(Refusal("too_long", detail))
    if not draft.archetype:
        found.append(Refusal("section_missing", "archetype is empty"))
    needed = "basics" if mode == "chat" else ""
    if needed and not draft.of(needed):
        found.append(Refusal("section_missing", f"{needed} is empty"))
    if mode == "work" and not any(draft.sections.values()):
        found.append(Refusal("section_missing", "every section is empty"))
    least, most = _TAGS
    if mode == "chat" and not least <= len(draft.of("tags")) <= most:
        found.append(Refusal("section_missing", f"tags: give {least} to {most} short words"))
    said = [draft.archetype, *(one for lines in draft.sections.values() for one in lines)]
    if in_another_language(" ".join(said), list(sources), list(sources)):
        found.append(Refusal("other_language", "write it in the language of the notes"))
    return found


def _plain_line(text: str) -> str:
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return line.lstrip("-*#> ").strip()

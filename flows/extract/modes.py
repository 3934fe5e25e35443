"""What an extraction looks for: memories of a person (``chat``) or of work (``work``).

A mode is a prompt file, the types it may give and the fields they carry. Everything else (who is
believed, sources, language, dates) is the same in both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flows.extract.slots import SHOWN_SLOTS, WORK_SLOTS
from stores.records import CHAT_TYPES, WORK_TYPES, AtomType

__all__ = [
    "CHAT",
    "LEAST_PRIORITY",
    "MODES",
    "WORK",
    "ExtractMode",
    "Mode",
    "details_of",
    "least_in_words",
]

ExtractMode = Literal["chat", "work"]

LEAST_PRIORITY: dict[AtomType, int] = {
    "persona": 50,
    "episodic": 60,
    "instruction": 70,
    "work_fact": 70,
    "work_task": 70,
    "work_method": 70,
    "work_artifact": 70,
}
"""Priority from which a memory of a type is kept, where the settings say nothing else."""

_DETAIL_NAMES = ("owner", "deadline", "status", "area", "method", "artifact")
_DETAILS_OF_TYPE: dict[AtomType, tuple[str, ...]] = {
    "work_task": ("owner", "deadline", "status"),
    "work_method": ("area", "method"),
    "work_artifact": ("artifact",),
}
_MAX_DETAIL_CHARS = 200
_STATUSES = ("todo", "doing", "done", "blocked", "deferred", "cancelled")
_METHODS = (
    "sop",
    "principle",
    "constraint",
    "anti_pattern",
    "heuristic",
    "evaluation_criterion",
)
_STATUS_ALIASES = {
    "to_do": "todo", "open": "todo", "pending": "todo", "planned": "todo", "not_started": "todo",
    "in_progress": "doing", "ongoing": "doing", "started": "doing", "wip": "doing",
    "completed": "done", "complete": "done", "finished": "done", "closed": "done",
    "on_hold": "deferred", "postponed": "deferred", "canceled": "cancelled", "dropped": "cancelled",
    "waiting": "blocked", "stuck": "blocked",
}  # fmt: skip


def _nullable(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),  # strict mode: every property, null where there is none
        "additionalProperties": False,
    }


_TIMES = {name: _nullable("string") for name in ("start", "end", "until")}


def _schema(types: tuple[AtomType, ...], **more: dict[str, Any]) -> dict[str, Any]:
    strings = {"type": "array", "items": {"type": "string"}}
    return _object(
        memories={
            "type": "array",
            "items": _object(
                text={"type": "string"},
                type={"type": "string", "enum": list(types)},
                priority={"type": "integer"},
                sources=strings,
                slot=_nullable("string"),
                when={**_object(**_TIMES), "type": ["object", "null"]},
                **more,
            ),
        },
        scenes={"type": "array", "items": _object(name={"type": "string"}, events=strings)},
    )


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to extract.

    :arg prompt: name of its prompt file.
    :arg aliases: what models call a type instead.
    :arg schema: JSON Schema of the answer, within what strict structured output allows.
    :arg slots: names that the prompt shows.
    """

    name: ExtractMode
    prompt: str
    types: tuple[AtomType, ...]
    aliases: Mapping[str, AtomType]
    schema: dict[str, Any]
    slots: tuple[str, ...]


CHAT = Mode(
    "chat",
    "extract-chat",
    CHAT_TYPES,
    {
        "episode": "episodic",
        "event": "episodic",
        "plan": "episodic",
        "decision": "episodic",
        "instruct": "instruction",
        "rule": "instruction",
        "fact": "persona",
        "trait": "persona",
        "preference": "persona",
    },
    _schema(CHAT_TYPES),
    SHOWN_SLOTS,
)
WORK = Mode(
    "work",
    "extract-work",
    WORK_TYPES,
    {
        "fact": "work_fact",
        "task": "work_task",
        "method": "work_method",
        "artifact": "work_artifact",
    },
    _schema(
        WORK_TYPES,
        details={
            **_object(**{name: _nullable("string") for name in _DETAIL_NAMES}),
            "type": ["object", "null"],
        },
    ),
    WORK_SLOTS,
)
MODES: dict[ExtractMode, Mode] = {"chat": CHAT, "work": WORK}


def least_in_words(mode: Mode, least: Mapping[AtomType, int]) -> str:
    """Say from which priority each type is kept, as the prompt shows it.

    >>> least_in_words(CHAT, LEAST_PRIORITY)
    'persona 50, episodic 60, instruction 70'
    """
    return ", ".join(f"{kind} {least[kind]}" for kind in mode.types)


def details_of(
    value: object, kind: AtomType, as_text: Callable[[str], str], as_date: Callable[[str], str]
) -> dict[str, str]:
    """Read the fields of a work type; one that the type has not, or that is odd, is left out.

    :arg as_text: cleans a value; ``""`` refuses it.
    :arg as_date: gives a date in ISO 8601, ``""`` when the value is none.
    """
    given = value if isinstance(value, dict) else {}
    found: dict[str, str] = {}
    for name in _DETAILS_OF_TYPE.get(kind, ()):
        raw = given.get(name)
        if isinstance(raw, int) and not isinstance(raw, bool):
            raw = str(raw)  # a ticket's number
        text = as_text(raw) if isinstance(raw, str) else ""
        if name == "status":
            text = _one_of(_STATUSES, text, _STATUS_ALIASES)
        elif name == "method":
            text = _one_of(_METHODS, text, {})
        elif name == "deadline":
            text = as_date(text) or text  # "end of the quarter" says more than nothing
        if text and len(text) <= _MAX_DETAIL_CHARS and text.lower() not in {"null", "none", "n/a"}:
            found[name] = text
    return found


def _one_of(known: tuple[str, ...], text: str, aliases: Mapping[str, str]) -> str:
    name = re.sub(r"[\s\-]+", "_", text.strip().lower())
    name = aliases.get(name, name)
    return name if name in known else ""

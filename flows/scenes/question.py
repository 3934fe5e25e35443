"""What the scene agent is told at the beginning, and how its steps are read. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson

from flows.extract.prompt import escape
from flows.prompts import Prompt
from flows.scenes.calls import calls_in, plain_call
from flows.scenes.errors import Complaint
from stores.errors import MalformedAnswer
from stores.records import Atom
from stores.scenes import ProfileFile, index_of, pressure

__all__ = [
    "STEPS_SCHEMA",
    "Opening",
    "Step",
    "read_steps",
    "request_in",
    "results_text",
    "steps_text",
]

Tool = Literal["read", "write", "edit", "done"]
TOOLS: tuple[Tool, ...] = ("read", "write", "edit", "done")

STEPS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "tool": {"type": "string", "enum": list(TOOLS)},
                    "path": {"type": ["string", "null"]},
                    "text": {"type": ["string", "null"]},
                    "old": {"type": ["string", "null"]},
                    "new": {"type": ["string", "null"]},
                },
                "required": ["tool", "path", "text", "old", "new"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["steps"],
    "additionalProperties": False,
}
"""JSON Schema of an answer, within what strict structured output allows."""

FIRST_FILE = "first_file"
"""Told instead of a pressure where the folder is empty: else small models read files of atoms."""
_ID_CHARS = 12
_MOST_STEPS = 60
_REASON_CHARS = 300
_NEEDED: dict[Tool, tuple[str, ...]] = {
    "read": ("path",),
    "write": ("path", "text"),
    "edit": ("path", "old", "new"),
    "done": (),
}
_REQUEST = re.compile(
    r"\[PERSONA_UPDATE_REQUEST\](.*?)\[/PERSONA_UPDATE_REQUEST\]"
    r"|\[?\bPERSONA_UPDATE_REQUEST\b\]?\s*[:：]\s*([^\n\]]*)",
    re.DOTALL | re.IGNORECASE,
)
_REASON = re.compile(r"^\s*reason\s*[:：]\s*", re.IGNORECASE)
_PLACEHOLDER = "why, in a few words"
"""Stands in the prompts where the reason goes. A model that copies the line as it is has none."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing the agent wants done; fields that its tool does not need are empty."""

    tool: Tool
    path: str = ""
    text: str = ""
    old: str = ""
    new: str = ""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a run is told: the folder as it is, and atoms that are new or have ended."""

    scope: str
    files: Mapping[str, ProfileFile]
    atoms: Sequence[Atom]
    capacity: int

    def messages(self, prompt: Prompt, complaint: Complaint) -> tuple[tuple[str, str], ...]:
        """Give the system and the first user message."""
        count = len(self.files)
        state = [count, self.capacity, pressure(count, self.capacity) if count else FIRST_FILE]
        scenes = [
            [one.path, one.title, one.heat, f"{one.updated:%Y-%m-%d}", one.summary]
            for one in index_of(self.files)
        ]
        values = {
            "state": _lines([state]),
            "scenes": _lines(scenes),
            "atoms": _lines([_atom(atom) for atom in self.atoms]),
            "complaint": _complaint(complaint),
        }
        return ("system", prompt.system), ("user", prompt.fill(values))

    def atom_ids(self) -> tuple[str, ...]:
        """Give the atoms that the text of this run comes from.

        Those of every scene too, for its summary is shown and its text may be read.
        """
        told = (one for file in self.files.values() for one in (*file.atoms, *file.archived))
        return (*(atom.atom_id for atom in self.atoms), *told)


def read_steps(text: str) -> list[Step]:
    """Read an answer's steps, in order; what stands behind ``done`` is dropped.

    Raises :class:`~stores.errors.MalformedAnswer` with a message for the model.
    """
    value = calls_in(text)
    if isinstance(value, dict) and "steps" not in value:
        value = [value]  # one step alone
    found = value.get("steps") if isinstance(value, dict) else value
    if not isinstance(found, list) or not found:
        message = 'answer with one JSON object {"steps": [...]} that has at least one step'
        raise MalformedAnswer(message)
    steps: list[Step] = []
    for number, item in enumerate(cast("list[object]", found[:_MOST_STEPS]), start=1):
        steps.append(_step(number, item))
        if steps[-1].tool == "done":
            break
    return steps


def steps_text(steps: Sequence[Step]) -> str:
    """Write steps the way the model answers them."""
    fields = [{"tool": one.tool, "path": one.path} for one in steps]
    return orjson.dumps({"steps": fields}).decode()


def results_text(results: Sequence[tuple[int, str, str]]) -> str:
    """Write what came of the steps of an answer, as the next user message."""
    return f"<results>\n{_lines([list(one) for one in results])}\n</results>"


def request_in(words: str) -> str:
    """Give the reason of a persona request in an agent's last words, or nothing.

    >>> request_in("Done. [PERSONA_UPDATE_REQUEST]reason: moved to Porto[/PERSONA_UPDATE_REQUEST]")
    'moved to Porto'
    >>> request_in("PERSONA_UPDATE_REQUEST: a new job"), request_in("Done.")
    ('a new job', '')

    The prompt's own line, copied, asks for nothing.
    """
    found = _REQUEST.search(words)
    if found is None:
        return ""
    said = " ".join((found[1] if found[1] is not None else found[2]).split())
    reason = _REASON.sub("", said).strip()
    if reason.strip(" .<>()").casefold() == _PLACEHOLDER:
        return ""
    return reason[:_REASON_CHARS].strip() or "the scene agent asked for it"


def _step(number: int, item: object) -> Step:
    fields = plain_call(item, TOOLS)
    tool = fields.get("tool")
    if tool not in TOOLS:
        message = f"step {number}: tool must be one of {', '.join(TOOLS)}"
        raise MalformedAnswer(message)
    known: Tool = tool
    given = {
        name: value
        for name in ("path", "text", "old", "new")
        if isinstance(value := fields.get(name), str)
    }
    missing = [name for name in _NEEDED[known] if name not in given]
    if missing:
        message = f"step {number}: {known} needs {' and '.join(missing)} as text"
        raise MalformedAnswer(message)
    return Step(known, **given)


def _atom(atom: Atom) -> list[object]:
    line: list[object] = [atom.atom_id[:_ID_CHARS], atom.status, atom.type]
    line += [f"{atom.occurred_at:%Y-%m-%d}", atom.text]
    about = [f"{name}: {value}" for name, value in sorted(atom.details.items()) if value]
    if atom.scene:
        about.append(f"situation: {atom.scene}")
    if atom.activity_start is not None:
        about.append(f"when: {atom.activity_start:%Y-%m-%d %H:%M}")
    if atom.status != "active" and atom.valid_until is not None:
        about.append(f"ended {atom.valid_until:%Y-%m-%d}")
    if atom.superseded_by is not None:
        about.append(f"replaced by {atom.superseded_by[:_ID_CHARS]}")
    return [*line, "; ".join(about)]


def _lines(rows: Sequence[Sequence[object]]) -> str:
    return "\n".join(escape(orjson.dumps(row).decode()) for row in rows)


def _complaint(complaint: Complaint) -> str:
    if not complaint.attempt:
        return ""
    return (
        f"Your run {complaint.attempt} was not kept: {escape(complaint.what)} "
        "Nothing of it is in the folder. Do it again, and do it right."
    )

"""What a model is asked about a window's new atoms, and how its answer is read.

One request for all of them. Atoms go by labels (``m1`` known, ``n1`` new), never by their ids,
and a label that was not shown is refused, not followed. Whatever an answer says, it can only
choose among what was offered: the rules of :mod:`flows.reconcile.scope` stand behind it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from connectors.llm import parse_json_answer
from flows.extract.language import in_another_language
from flows.extract.prompt import escape
from flows.prompts import Prompt
from flows.reconcile.candidates import terms_of
from flows.reconcile.items import ACTIONS, Decision
from stores.errors import MalformedAnswer
from stores.protocols import ChatAnswer, ChatRequest
from stores.records import Atom

__all__ = [
    "ANSWER_SCHEMA",
    "MOST_FOR_ONE",
    "MOST_OFFERED",
    "Complaint",
    "Question",
    "Read",
    "read_answer",
]

MOST_OFFERED = 24
"""Known atoms shown in one request at most; the best of each new one come first."""
MOST_FOR_ONE = 3
"""Known atoms shown for one new one at most, nearest by vector and by keyword in turn. What
is near is most of what a model is asked."""
_COMPLAINT_CHARS = 400

ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decisions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "memory": {"type": "string"},
                    "action": {"type": "string", "enum": list(ACTIONS)},
                    "targets": {"type": "array", "items": {"type": "string"}},
                    "text": {"type": ["string", "null"]},
                },
                "required": ["memory", "action", "targets", "text"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["decisions"],
    "additionalProperties": False,
}
"""JSON Schema of the answer, within what strict structured output allows."""

_LEAK = re.compile(
    r"\\?[\"'](?:decisions|memory|action|targets|text)\\?[\"']\s*:|</?(?:known|new)>|\{\{\w+\}\}"
    r"|[\[(（]\s*[mn]\d+\s*[\])）]",
    re.IGNORECASE,
)
_LOOP = re.compile(r"(.{4,80}?)\1{3,}")
_DIGITS = re.compile(r"\d+")
_GROUNDED = 0.5  # of the terms; the rest are joining words and inflections
_INVISIBLE = ("Cc", "Cf", "Cs")


@dataclass(frozen=True, slots=True)
class Question:
    """New atoms, and the known ones they may be about.

    :arg new: atoms to be decided about, in the order of the window.
    :arg known: what is offered, by date.
    """

    new: tuple[Atom, ...]
    known: tuple[Atom, ...]

    @classmethod
    def about(cls, found: Sequence[tuple[Atom, Sequence[Atom]]]) -> Question | None:
        """Ask about new atoms and what was found for each, best first; ``None`` if nothing was.

        A new atom near which nothing was found is not asked about.
        """
        asked = [(atom, known) for atom, known in found if known]
        if not asked:
            return None
        depth = min(MOST_FOR_ONE, max(len(known) for _, known in asked))
        offered: dict[str, Atom] = {}
        for unit in (known[at] for at in range(depth) for _, known in asked if at < len(known)):
            if len(offered) < MOST_OFFERED:
                offered.setdefault(unit.atom_id, unit)
        # By date, not by score: a score that moves in its last digit must not move a line.
        known = sorted(offered.values(), key=lambda unit: (unit.valid_from, unit.atom_id))
        return cls(tuple(atom for atom, _ in asked), tuple(known))

    @property
    def labels(self) -> dict[str, Atom]:
        """Known atoms by the labels they are shown under."""
        return {f"m{number}": unit for number, unit in enumerate(self.known, start=1)}

    def request(
        self, prompt: Prompt, model: str, max_tokens: int, complaint: str, version: str
    ) -> ChatRequest:
        """Write the request."""
        known = (_line(label, unit) for label, unit in self.labels.items())
        new = (_line(f"n{number}", atom) for number, atom in enumerate(self.new, start=1))
        values = {"known": "\n".join(known), "new": "\n".join(new), "complaint": complaint}
        shown = (*self.new, *self.known)
        return ChatRequest(
            model=model,
            messages=(("system", prompt.system), ("user", prompt.fill(values))),
            prompt_version=version,
            schema=ANSWER_SCHEMA,
            max_tokens=max_tokens,
            scope=shown[0].scope,
            event_ids=tuple(event for one in shown for event in one.source_event_ids),
            atom_ids=tuple(one.atom_id for one in shown),
        )


def _line(label: str, atom: Atom) -> str:
    return escape(f"{label} {atom.occurred_at.date()} {orjson.dumps(atom.text).decode()}")


@dataclass(frozen=True, slots=True)
class Complaint:
    """What was wrong with an answer, as it travels from one attempt to the next.

    It holds its attempt, so that the third request differs from the second, whose recorded
    answer was wrong.
    """

    attempt: int
    what: str

    def __str__(self) -> str:
        return f"reconcile answer {self.attempt}: {' '.join(self.what.split())[:_COMPLAINT_CHARS]}"

    def to_model(self) -> str:
        """Say it to the model. What it quotes is data as well, so it is escaped."""
        what = escape(self.what)
        return f"Your answer {self.attempt} was refused: {what}. Answer again, as asked above."

    @classmethod
    def heard(cls, error: str | None) -> Complaint | None:
        """Read an error back; one that is not ours counts as the first."""
        if not error:
            return None
        found = re.fullmatch(r"reconcile answer (\d+): (.*)", error, re.DOTALL)
        return cls(int(found[1]), found[2]) if found else cls(1, error[:_COMPLAINT_CHARS])


@dataclass(slots=True)
class Read:
    """An answer as it was read.

    :arg decisions: by the id of the new atom.
    :arg refused: how often something in it was refused, by reason.
    """

    decisions: dict[str, Decision] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def refuse(self, reason: str) -> None:
        """Count one refusal."""
        self.refused[reason] = self.refused.get(reason, 0) + 1


class _Wrong(Exception):
    """Something in a decision that the model can put right."""


def read_answer(
    answer: ChatAnswer, question: Question, *, max_chars: int, last_chance: bool
) -> Read:
    """Read an answer to a question.

    Raises :class:`~stores.errors.MalformedAnswer` when it is not what was asked for, when a new
    memory is left out, or when a text is missing, too long, in another language, or holds pieces
    of the answer's form. On the ``last_chance`` such a memory is stored as it is, which loses
    nothing and retires nothing. A label that was not shown is dropped; a decision that is left
    without a target becomes ``store``.
    """
    if answer.finish_reason == "length":
        message = "the answer was too long and cut off; give one short decision for each memory"
        raise MalformedAnswer(message)
    value = parse_json_answer(answer.text)
    if not isinstance(value, dict) or not isinstance(value.get("decisions"), list):
        message = 'the answer must be one JSON object {"decisions": [...]}'
        raise MalformedAnswer(message)
    given = _by_label(cast("list[object]", value["decisions"]))
    read = Read()
    for number, atom in enumerate(question.new, start=1):
        try:
            decision = _decision(given.pop(f"n{number}", None), atom, question, max_chars, read)
        except _Wrong as wrong:
            if not last_chance:
                message = f"n{number}: {wrong}"
                raise MalformedAnswer(message) from None
            read.refuse("unusable")
            decision = Decision("store")
        read.decisions[atom.atom_id] = decision
    for _ in given:
        read.refuse("unknown_memory")
    return read


def _by_label(decisions: list[object]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for item in decisions:
        if isinstance(item, dict) and isinstance(item.get("memory"), str):
            found.setdefault(item["memory"].strip().lower(), item)
    return found


def _decision(
    item: dict[str, object] | None, atom: Atom, question: Question, max_chars: int, read: Read
) -> Decision:
    if item is None:
        message = "a decision for it is missing"
        raise _Wrong(message)
    action = item.get("action")
    if action not in ACTIONS:
        message = f"action must be one of {', '.join(ACTIONS)}"
        raise _Wrong(message)
    if action == "store":
        return Decision("store")
    targets = _targets(item.get("targets"), question, read)
    if not targets:
        read.refuse("no_target")
        return Decision("store")
    text = item.get("text")
    if isinstance(text, str) and not text.strip():
        text = None
    if action == "merge" and text is None:
        message = "a merge needs the text of the one fact"
        raise _Wrong(message)
    if action not in {"update", "merge"} or text is None:
        return Decision(action, tuple(unit.atom_id for unit in targets))
    if not isinstance(text, str):
        message = "text must be a string or null"
        raise _Wrong(message)
    checked = _text(text, [atom, *targets], max_chars)
    return Decision(action, tuple(unit.atom_id for unit in targets), checked)


def _targets(value: object, question: Question, read: Read) -> list[Atom]:
    named = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    labels = question.labels
    found: dict[str, Atom] = {}
    for label in named:
        unit = labels.get(label.strip().lower()) if isinstance(label, str) else None
        if unit is None:
            read.refuse("unoffered_target")
        else:
            found[unit.atom_id] = unit
    return list(found.values())


def _text(value: str, parts: Sequence[Atom], max_chars: int) -> str:
    shown = (" " if one.isspace() else one for one in value if one.isspace() or _visible(one))
    text = " ".join("".join(shown).split())
    said = [part.text for part in parts]
    if len(text) > max_chars:
        message = f"text is longer than {max_chars} characters; say it shorter, or store"
        raise _Wrong(message)
    if not any(one.isalnum() for one in text) or _LEAK.search(text) or _LOOP.search(text):
        message = "text must be one plain sentence without ids or JSON"
        raise _Wrong(message)
    if in_another_language(text, said, said):
        message = "text must be in the language of the memories"
        raise _Wrong(message)
    if not _grounded(text, " ".join(said)):
        message = "text must say only what the new memory and its targets say"
        raise _Wrong(message)
    return text


def _grounded(text: str, said: str) -> bool:
    """Say whether a text can have come from what was said: its numbers, and most of its words."""
    if not set(_DIGITS.findall(text)) <= set(_DIGITS.findall(said)):
        return False
    terms, known = terms_of(text), set(terms_of(said))
    return sum(term in known for term in terms) >= _GROUNDED * len(terms)


def _visible(one: str) -> bool:
    return unicodedata.category(one) not in _INVISIBLE

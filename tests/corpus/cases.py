"""Runs a case of the corpus through the real pieces, and says what is not as it should be.

The pieces: decode, window, cleaning, prompt, answer checking with its retry, atoms; the model's
answers are the case's own. Where a case says ``rules``, the rule-based extractor as well.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import orjson

from connectors.tokens import count_tokens
from flows.decode import decode
from flows.extract.guidance import Guidance, GuidanceEntry
from flows.extract.llm import LlmExtractor
from flows.extract.text import clean_text
from flows.extract.work import atoms_of_extraction
from flows.rules import RuleExtractor
from stores.errors import InvalidEvent, MalformedAnswer
from stores.records import Atom, Extraction, SourcedEvent, Window
from tests.rig.events import body, record
from tests.rig.extraction_script import shown_lines
from tests.rig.fake_chat import FakeChat, body_of

__all__ = ["BROKEN", "CONVERSATIONS", "Case", "ask", "failures", "load", "window_of"]

Case = dict[str, Any]

CONVERSATIONS = Path(__file__).with_name("conversations.jsonl")
BROKEN = Path(__file__).with_name("broken-answers.jsonl")

_START = "2026-03-01T09:00:00+00:00"
_SECONDS_BETWEEN = 10
_TAG = re.compile(r"</?[a-z]+>")
_FENCES = ["<background>", "</background>", "<conversation>", "</conversation>"]
_ATTEMPTS = 3


def load(path: Path) -> list[Case]:
    """Read the cases of a file, one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def window_of(case: Case) -> Window:
    """Build the window that a case's messages make; their events are e0, e1, …"""
    start = datetime.fromisoformat(case.get("at", _START))
    said = [*case.get("background", ()), *case["said"]]
    first = len(said) - len(case["said"])
    events = [
        _event(message, f"e{n - first}" if n >= first else f"b{n}", start, n - first)
        for n, message in enumerate(said)
    ]
    scope = events[0].scope
    return Window("w1", scope, "s1", tuple(events[first:]), tuple(events[:first]), "turns")


def _event(message: Sequence[Any], event_id: str, start: datetime, place: int) -> SourcedEvent:
    role, content, *more = message
    when = start + timedelta(seconds=_SECONDS_BETWEEN * place)
    fields = body(event_id, role=role, content=content, occurred_at=when.isoformat())
    fields.update(more[0] if more else {})
    decoded = decode(
        record(orjson.dumps(fields), max(place, 0), timestamp=when), ("tenant", "agent", "user")
    )
    assert not isinstance(decoded, InvalidEvent), decoded
    return decoded


def ask(case: Case) -> tuple[Extraction | None, FakeChat]:
    """Extract with the case's answers, attempt by attempt; ``None`` when every one is malformed."""
    answers = [given if isinstance(given, str) else json.dumps(given) for given in case["answers"]]
    chat = FakeChat(*answers, finish=case.get("finish", "stop"))
    entry = GuidanceEntry(text=case.get("guidance", ""))
    extractor = LlmExtractor(
        chat,
        count_tokens=count_tokens,
        mode=case.get("mode", "chat"),
        guidance=Guidance((entry,)) if entry.text else None,
        prompt_budget=case.get("budget", 10_000),
    )
    error: str | None = None
    for _ in range(_ATTEMPTS):
        try:
            return asyncio.run(extractor.extract(window_of(case), error)), chat
        except MalformedAnswer as malformed:
            error = malformed.message
    return None, chat


def failures(case: Case) -> list[str]:
    """Say everything that is not as the case has it; nothing when it holds."""
    found: list[str] = []
    if "answers" in case:
        extraction, chat = ask(case)
        if extraction is None:
            return ["the answer was refused as malformed"]
        atoms = atoms_of_extraction(window_of(case), extraction, "v")
        found += _differences(case["keep"], atoms)
        found += _unequal("refused", case["refused"], [one.reason for one in extraction.refused])
        found += _prompt_failures(case, chat)
        if "scenes" in case:
            scenes = [[scene.name, list(scene.event_ids)] for scene in extraction.scenes]
            found += _unequal("scenes", case["scenes"], scenes)
        found += _last_of_slot(case, atoms)
    if "rules" in case:
        window = window_of(case)
        memories = Extraction(RuleExtractor().memories(window))
        atoms = atoms_of_extraction(window, memories, "v")
        found += _differences(case["rules"], atoms)
        if "answers" not in case:
            found += _last_of_slot(case, atoms)
    return found


def _prompt_failures(case: Case, chat: FakeChat) -> list[str]:
    prompts = [request.messages[1][1] for request in chat.requests]
    everything = "\n".join(prompts)
    try:
        lines = [line for request in chat.requests for line in shown_lines(body_of(request))]
    except ValueError:
        return ["a line of the conversation is no JSON"]
    found: list[str] = []
    if "asks" in case:
        found += _unequal("calls", case["asks"], len(prompts))
    for text in case.get("hidden", ()):
        found += [f"shown: {text}"] if text in everything else []
    for text in (*case.get("shown", ()), *case.get("prompt_has", ())):
        found += [] if text in everything else [f"not shown: {text}"]
    for text in case.get("once", ()):
        found += _unequal("times shown", 1, everything.count(text))
    if case.get("fenced"):
        fences = ["<guidance>", "</guidance>"] if "guidance" in case else []
        found += _unequal("fences", [fences + _FENCES], [_TAG.findall(text) for text in prompts])
        found += _unequal("lines", len(case["said"]), len(lines))
    if case.get("whole"):
        said = [clean_text(message[1]) for message in case["said"]]
        parts = {f"m{n}": "" for n in range(1, len(said) + 1)}
        for ordinal, _, _, text in lines:
            parts[ordinal] += text
        found += _unequal("text shown", said, list(parts.values()))
        found += ["one request was enough"] if len(prompts) == 1 else []
    return found


def _differences(expected: Sequence[Case], atoms: Sequence[Atom]) -> list[str]:
    found = _unequal("texts", [one["text"] for one in expected], [atom.text for atom in atoms])
    if found:
        return found
    for one, atom in zip(expected, atoms, strict=True):
        actual = {
            "type": atom.type,
            "priority": atom.priority,
            "slot": atom.slot,
            "sources": list(atom.source_event_ids),
            "start": _iso(atom.activity_start),
            "end": _iso(atom.activity_end),
            "until": _iso(atom.valid_until),
            "said_by": atom.said_by,
            "scene": atom.scene,
            "details": atom.details,
        }
        for name, value in one.items():
            if name != "text":
                found += _unequal(f"{name} of {atom.text!r}", value, actual[name])
    return found


def _last_of_slot(case: Case, atoms: Sequence[Atom]) -> list[str]:
    found: list[str] = []
    for slot, text in cast("dict[str, str]", case.get("last_of_slot", {})).items():
        filling = sorted((atom for atom in atoms if atom.slot == slot), key=_said_at)
        found += _unequal(f"newest of {slot}", text, filling[-1].text if filling else None)
        found += [] if len(filling) > 1 else [f"nothing older in {slot} to be replaced"]
    return found


def _said_at(atom: Atom) -> datetime:
    return atom.occurred_at


def _iso(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat()


def _unequal(what: str, expected: object, actual: object) -> list[str]:
    return [] if expected == actual else [f"{what}: expected {expected!r}, got {actual!r}"]

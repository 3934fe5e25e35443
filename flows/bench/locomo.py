"""Reads LoCoMo: ``locomo10.json``, a list of conversations with dated sessions and questions.

Both speakers are people, so both are of role ``user`` and go by their names. The date of a
session is the event time of its first turn; the turns follow a second apart. A picture is told
by its caption. Evidence is turns, by their ``dia_id``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from flows.bench.data import Dataset, Half, History, Message, Question
from flows.bench.files import one_file, read_json
from stores.errors import UserError

__all__ = ["load_locomo"]

_TYPES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_ADVERSARIAL = 5
_DEV = frozenset({"conv-26", "conv-30", "conv-41", "conv-42", "conv-43"})
"""The first five of the ten official conversations."""
_SESSION = re.compile(r"session_(\d+)")
_TURN = re.compile(r"D:?(\d+):(\d+)")
_DATE = "%I:%M %p on %d %B, %Y"
_SECOND = timedelta(seconds=1)


def load_locomo(folder: Path) -> Dataset:
    """Read all conversations. Raises ``UserError`` naming conversation and field."""
    path = one_file(folder, "locomo*.json")
    histories: dict[str, History] = {}
    questions: list[Question] = []
    for number, sample in enumerate(read_json(path, list)):
        name = str(sample.get("sample_id") or f"conv-{number}") if isinstance(sample, dict) else ""
        if not name or not isinstance(sample.get("conversation"), dict):
            message = f"{path}: item {number} has no conversation"
            raise UserError(message)
        where = f"{path}: {name}"
        history = _history(name, sample["conversation"], where)
        histories[name] = history
        questions += _questions(sample.get("qa") or [], history, where)
    return Dataset(
        name="locomo",
        histories=histories,
        questions=tuple(questions),
        files=(path,),
        half_rule=f"{', '.join(sorted(_DEV))} are development, all others held out",
        notes=(
            "turns follow their session's date a second apart; pictures are told by caption",
            "categories 1 to 4 are scored; 5 (adversarial, no answer) is reported apart",
        ),
    )


def _history(name: str, conversation: Mapping[str, Any], where: str) -> History:
    numbers = sorted(
        int(found.group(1)) for key in conversation if (found := _SESSION.fullmatch(key))
    )
    messages: list[Message] = []
    for number in numbers:
        session = f"session_{number}"
        start = _date(conversation.get(f"{session}_date_time"), f"{where} {session}")
        for place, turn in enumerate(conversation[session]):
            try:
                text, caption = turn["text"], turn.get("blip_caption")
                speaker, dia = turn["speaker"], turn["dia_id"]
            except (KeyError, TypeError):
                message = f"{where} {session}: turn {place} needs speaker, dia_id and text"
                raise UserError(message) from None
            messages.append(
                Message(
                    event_id=f"{name}:{dia}",
                    session_id=f"{name}:{session}",
                    role="user",
                    text=f"{text} [shared a picture: {caption}]" if caption else text,
                    said_at=start + place * _SECOND,
                    name=speaker,
                )
            )
    if not messages:
        message = f"{where}: has no session"
        raise UserError(message)
    return History(name, tuple(messages))


def _date(value: Any, where: str) -> datetime:
    try:
        return datetime.strptime(value, _DATE).replace(tzinfo=timezone.utc)
    except (TypeError, ValueError):
        message = f"{where}: its date is {value!r}, and not like '1:56 pm on 8 May, 2023'"
        raise UserError(message) from None


def _questions(items: list[Any], history: History, where: str) -> Iterator[Question]:
    known = {one.event_id for one in history.messages}
    half: Half = "dev" if history.id in _DEV else "held-out"
    for number, one in enumerate(items):
        category = one.get("category") if isinstance(one, dict) else None
        if category not in _TYPES or not isinstance(one.get("question"), str):
            message = f"{where}: question {number} needs a question and a category from 1 to 5"
            raise UserError(message)
        named = [
            f"{history.id}:D{session}:{turn}"
            for text in one.get("evidence") or ()
            for session, turn in _TURN.findall(str(text))
        ]
        units = dict.fromkeys(name for name in named if name in known)
        yield Question(
            id=f"{history.id}:q{number}",
            type=_TYPES[category],
            text=one["question"],
            history_id=history.id,
            visible=len(history.messages),
            asked_at=history.messages[-1].said_at,
            answer="" if category == _ADVERSARIAL else str(one.get("answer", "")),
            half=half,
            evidence=tuple(frozenset({name}) for name in units),
            abstain=category == _ADVERSARIAL,
            scored=category != _ADVERSARIAL,
        )

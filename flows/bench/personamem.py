"""Reads PersonaMem v1: ``questions_*.csv`` and ``shared_contexts_*.jsonl`` of one size.

The data has no times. They are made up: session n of a context is on the nth day from
1 January 2024, 09:00 UTC, its messages a minute apart.

The data names no evidence, but says how many tokens lie between a question and what it refers
to (``distance_to_ref_in_tokens``, question included, counted with o200k). Counted back from the
end of the visible history that is a message boundary for every question of the 32k file. The
message there continues or is the statement that is asked about, so the unit of evidence is the
user's messages among it and the two before it, in the same session.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from connectors.tokens import count_tokens
from flows.bench.data import Dataset, Half, History, Message, Question
from flows.bench.files import json_of, load_json, one_file
from stores.errors import UserError
from stores.ids import content_id
from stores.records import Role

__all__ = ["load_personamem"]

_START = datetime(2024, 1, 1, 9, tzinfo=timezone.utc)
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)
_DEV_PERSONAS = 10
_REACH = 2  # messages before the reference place that still belong to the statement
_LETTER = re.compile(r"\(?([a-d])\)?", re.IGNORECASE)
_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_NEEDED = (
    "persona_id",
    "question_id",
    "question_type",
    "user_question_or_message",
    "correct_answer",
    "all_options",
    "shared_context_id",
    "end_index_in_shared_context",
)
_BIGGEST_FIELD = 1 << 24


def load_personamem(folder: Path) -> Dataset:
    """Read the questions and contexts. Raises ``UserError`` naming file, line and column."""
    questions_file = one_file(folder, "questions*.csv")
    contexts_file = one_file(folder, "shared_contexts*.jsonl")
    contexts: dict[str, History] = {}
    with contexts_file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{contexts_file} line {number}"
            for name, messages in json_of(line, where, dict).items():
                contexts[name] = _history(name, messages, where)
    with questions_file.open(encoding="utf-8", newline="") as file:
        csv.field_size_limit(_BIGGEST_FIELD)
        reader = csv.DictReader(file)
        missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            message = f"{questions_file}: has no column {', '.join(missing)}"
            raise UserError(message)
        questions = [
            _question(row, contexts, f"{questions_file} question {number}")
            for number, row in enumerate(reader, start=1)
        ]
    return Dataset(
        name="personamem",
        histories=contexts,
        questions=tuple(questions),
        files=(questions_file, contexts_file),
        half_rule=f"personas 0 to {_DEV_PERSONAS - 1} are development, all others held out",
        notes=(
            "times are made up: a day for each session from 2024-01-01, a minute a message",
            "evidence is derived from distance_to_ref_in_tokens: the user's messages among the "
            f"one it points to and the {_REACH} before it; any of them counts",
        ),
    )


def _history(name: str, messages: Any, where: str) -> History:
    if not isinstance(messages, list):
        message = f"{where}: context {name[:12]} is not a list of messages"
        raise UserError(message)
    made: list[Message] = []
    session, inside = -1, 0
    for place, one in enumerate(messages):
        role = _ROLES.get(one.get("role", "")) if isinstance(one, dict) else None
        if role is None or not isinstance(one.get("content"), str):
            message = f"{where}: message {place} needs role system, user or assistant, and content"
            raise UserError(message)
        if role == "system" or session < 0:
            session, inside = session + 1, 0
        made.append(
            Message(
                event_id=f"{content_id(name)[:12]}:{place}",
                session_id=f"{content_id(name)[:12]}:s{session}",
                role=role,
                text=one["content"],
                said_at=_START + session * _DAY + inside * _MINUTE,
            )
        )
        inside += 1
    return History(name, tuple(made))


def _question(row: Mapping[str, str], contexts: Mapping[str, History], where: str) -> Question:
    history = contexts.get(row["shared_context_id"])
    if history is None:
        message = f"{where}: shared_context_id is in no line of the contexts file"
        raise UserError(message)
    try:
        visible = int(row["end_index_in_shared_context"])
        persona = int(row["persona_id"])
    except ValueError:
        message = f"{where}: end_index_in_shared_context and persona_id must be whole numbers"
        raise UserError(message) from None
    letter = _LETTER.fullmatch(row["correct_answer"].strip())
    if letter is None or not 0 < visible <= len(history.messages):
        message = f"{where}: correct_answer or end_index_in_shared_context is out of range"
        raise UserError(message)
    half: Half = "dev" if persona < _DEV_PERSONAS else "held-out"
    seen = history.messages[:visible]
    return Question(
        id=row["question_id"],
        type=row["question_type"],
        text=row["user_question_or_message"],
        history_id=history.id,
        visible=visible,
        asked_at=seen[-1].said_at,
        answer=letter.group(1).lower(),
        half=half,
        options=_options(row["all_options"], where),
        evidence=_evidence(row, seen),
    )


def _options(value: str, where: str) -> tuple[str, ...]:
    try:
        options = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        options = load_json(value)
    if not isinstance(options, list) or not all(isinstance(one, str) for one in options):
        message = f"{where}: all_options is not a list of texts"
        raise UserError(message)
    return tuple(options)


def _evidence(row: Mapping[str, str], seen: Sequence[Message]) -> tuple[frozenset[str], ...]:
    """Find the place that the distance points to; none where it is missing or misses."""
    try:
        left = int(row.get("distance_to_ref_in_tokens") or "")
    except ValueError:
        return ()
    left -= count_tokens(row["user_question_or_message"])
    place = len(seen)
    while place > 0 and left > 0:
        place -= 1
        left -= count_tokens(seen[place].text)
    if left != 0 or place >= len(seen):
        return ()
    session = seen[place].session_id
    unit = frozenset(
        one.event_id
        for one in seen[max(0, place - _REACH) : place + 1]
        if one.session_id == session and one.role == "user"
    )
    return (unit,) if unit else ()

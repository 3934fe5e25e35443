"""Reads LongMemEval, oracle or S: a list of instances, each with its own haystack.

Every instance is a history of its own. Sessions keep their dates, in the order of time; turns
follow a second apart. Evidence is sessions: any event of an answer session counts for it.
A question whose id ends with ``_abs`` is right when it is not answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from flows.bench.data import Dataset, History, Message, Question, half_by_hash
from flows.bench.files import one_file, read_json
from stores.errors import UserError
from stores.records import Role

__all__ = ["load_longmemeval"]

_SECOND = timedelta(seconds=1)
_WEEKDAY = re.compile(r"\s*\([A-Za-z]+\)")
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


def load_longmemeval(folder: Path) -> Dataset:
    """Read all instances. Raises ``UserError`` naming the instance and what it lacks."""
    path = one_file(folder, "longmemeval*.json")
    histories: dict[str, History] = {}
    questions: list[Question] = []
    for number, one in enumerate(read_json(path, list)):
        where = f"{path}: instance {number}"
        if not isinstance(one, dict):
            message = f"{where}: is not an object"
            raise UserError(message)
        try:
            history, question = _instance(one)
        except (KeyError, TypeError, ValueError) as error:
            message = f"{where} ({one.get('question_id', '?')}): {type(error).__name__}: {error}"
            raise UserError(message) from None
        histories[history.id] = history
        questions.append(question)
    return Dataset(
        name="longmemeval",
        histories=histories,
        questions=tuple(questions),
        files=(path,),
        half_rule="SHA-256 of question_id: first byte below 128 is development, else held out",
        notes=("turns follow their session's date a second apart; evidence is sessions",),
    )


def _instance(one: Mapping[str, Any]) -> tuple[History, Question]:
    name = str(one["question_id"])
    sessions = sorted(
        zip(
            map(_date, one["haystack_dates"]),
            map(str, one["haystack_session_ids"]),
            one["haystack_sessions"],
            strict=True,
        ),
        key=lambda session: session[0],
    )
    messages: list[Message] = []
    events: dict[str, set[str]] = {}
    for number, (start, session, turns) in enumerate(sessions):
        for place, turn in enumerate(turns):
            event_id = f"{name}:{number}:{place}"
            messages.append(
                Message(
                    event_id=event_id,
                    session_id=f"{name}:{number}",
                    role=_ROLES[turn["role"]],
                    text=str(turn["content"]),
                    said_at=start + place * _SECOND,
                )
            )
            events.setdefault(session, set()).add(event_id)
    if not messages:
        message = "haystack_sessions holds no turn"
        raise ValueError(message)
    named = dict.fromkeys(map(str, one["answer_session_ids"]))
    question = Question(
        id=name,
        type=str(one["question_type"]),
        text=str(one["question"]),
        history_id=name,
        visible=len(messages),
        asked_at=_date(one["question_date"]),
        answer=str(one["answer"]),
        half=half_by_hash(name),
        evidence=tuple(frozenset(events[session]) for session in named if session in events),
        abstain=name.endswith("_abs"),
    )
    return History(name, tuple(messages)), question


def _date(value: str) -> datetime:
    """Read ``2023/05/23 (Tue) 07:05`` or ISO 8601; without an offset it is UTC."""
    text = _WEEKDAY.sub("", value).replace("/", "-")
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)

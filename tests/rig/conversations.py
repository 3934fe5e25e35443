"""Real conversations of many users as records of the events topic, interleaved by time."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import orjson

from stores.ids import scope_key
from stores.records import OutRecord
from tests.rig.needs import shared_data

__all__ = ["interleaved"]


def interleaved(topic: str, users: int, *, ended: bool = False) -> list[OutRecord]:
    """Give the conversations of ``users`` people in each of two languages, by time.

    :arg ended: every session says that it ends, so that no window closes by silence.
    """
    events: list[tuple[datetime, str, dict[str, Any]]] = []
    for language in ("en", "cn"):
        bank = json.loads(shared_data(f"memorybank/memory_bank_{language}.json").read_text())
        for user, kept in list(bank.items())[:users]:
            for day, turns in kept["history"].items():
                events += _session(language, user, day, turns, ended)
    events.sort(key=lambda item: item[:2])
    return [
        OutRecord(
            topic,
            scope_key([event["tenant_id"], "companion", user]).encode(),
            orjson.dumps(event),
        )
        for _, user, event in events
    ]


def _session(
    language: str, user: str, day: str, turns: list[dict[str, str]], ended: bool
) -> list[tuple[datetime, str, dict[str, Any]]]:
    start = datetime.fromisoformat(day).replace(hour=9, tzinfo=timezone.utc)
    said: list[tuple[datetime, dict[str, Any]]] = []
    for n, turn in enumerate(turns):
        for role, text in (("user", turn["query"]), ("assistant", turn["response"])):
            at = start + timedelta(seconds=40 * n + 20 * (role == "assistant"))
            said.append((at, {"event_id": f"{day}-{n}-{role}", "role": role, "content": text}))
    if ended:
        at = start + timedelta(seconds=40 * len(turns))
        said.append((at, {"event_id": f"{day}-end", "type": "session_end"}))
    return [
        (
            at,
            user,
            {
                "v": 1,
                "tenant_id": language,
                "agent_id": "companion",
                "user_id": user,
                "session_id": day,
                "occurred_at": at.isoformat(),
                **fields,
            },
        )
        for at, fields in said
    ]

"""What is said in a run: numbered turns of many sessions, wholly derived from a variant number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from random import Random
from typing import Any

import orjson

from flows.decode import decode
from flows.extract.text import has_user_text
from flows.window import ScopeWindows, WindowPolicy
from stores.ids import scope_key
from stores.records import LogRecord, Position, SourcedEvent, Window

__all__ = ["FORBIDDEN", "POISON", "SCOPE_FIELDS", "Conversation", "Said", "conversation"]

SCOPE_FIELDS = ("tenant", "agent", "user")
START = datetime(2026, 3, 1, 9, 0, tzinfo=timezone.utc)
POISON, FORBIDDEN = "xyzzy", "plugh"
"""Words that the scripted model answers wrongly for ever, and that it refuses to hear."""


@dataclass(frozen=True, slots=True)
class Said:
    """One record to produce. ``late`` ones are of scopes that say nothing before them."""

    key: bytes
    value: bytes
    late: bool


@dataclass(frozen=True)
class Conversation:
    """All records of a run in the order in which they are produced, and how they must be cut.

    :arg windows: the windows that hold something a user said, in the order they close.
    """

    variant: int
    user_turns: int
    snapshot_s: float
    records: tuple[Said, ...]
    scopes: tuple[str, ...]
    windows: tuple[Window, ...]

    @property
    def healthy(self) -> int:
        """Count the windows that end well."""
        return sum(not poisoned(window) for window in self.windows)


def poisoned(window: Window) -> bool:
    """Say whether a window is given up by whatever run."""
    text = " ".join(sourced.event.text() for sourced in window.events)
    return POISON in text or FORBIDDEN in text


@lru_cache(maxsize=64)
def conversation(variant: int) -> Conversation:
    """Make the conversation of a variant: always the same one."""
    rng = Random(f"conversation {variant}")
    users = [f"user{number}" for number in range(rng.randint(3, 4))]
    queues = [_scope(rng, variant, user, late=user == users[-1]) for user in users]
    records: list[Said] = []
    while queue := rng.choice([queue for queue in queues if queue] or [[]]):
        records += [queue.pop(0) for _ in range(min(len(queue), rng.randint(1, 4)))]
    policy = WindowPolicy(user_turns=rng.choice((2, 3)), background=3)
    return Conversation(
        variant=variant,
        user_turns=policy.user_turns,
        snapshot_s=rng.choice((0.1, 0.2, 0.3)),
        records=tuple(records),
        scopes=tuple(scope_key(["acme", "helper", user]) for user in users),
        windows=tuple(_cut(records, policy)),
    )


def _scope(rng: Random, variant: int, user: str, *, late: bool) -> list[Said]:
    """Let one user talk in several sessions, some of them at once."""
    key = scope_key(["acme", "helper", user]).encode()
    said: list[Said] = []
    day = 0.0
    sessions = rng.randint(2, 3)
    talks: list[list[dict[str, Any]]] = []
    for session in range(sessions):
        talks.append(_session(rng, variant, user, session, day, last=session == sessions - 1))
        day += 0.0 if rng.random() < 0.3 else 86_400.0  # at once, or on another day
    while talks:
        # Sessions of one day interleave; a session of another day begins when they are over.
        same_day = [talk for talk in talks if talk[0]["day"] == talks[0][0]["day"]]
        talk = rng.choice(same_day)
        event = talk.pop(0)
        event.pop("day")
        if not talk:
            talks.remove(talk)
        said.append(Said(key, orjson.dumps(event), late))
        if rng.random() < 0.03:
            said.append(rng.choice(said))  # a producer that sends again
        if rng.random() < 0.01:
            said.append(Said(key, b'{"v": 1, "not": "an event"', late))
    return said


def _session(
    rng: Random, variant: int, user: str, session: int, day: float, *, last: bool
) -> list[dict[str, Any]]:
    turns = rng.randint(3, 7)
    curse = {0: f" {POISON}.", 1: f" {FORBIDDEN}."}.get(rng.randrange(16), "")
    events: list[dict[str, Any]] = []
    at = day
    for turn in range(turns):
        at += rng.uniform(5, 60) if rng.random() < 0.93 else 900.0
        text = f"FACT: {user} tells thing {turn} of talk {session}."
        if turn % 4 == 1:
            text = f"FACT[home.city]: {user} lives in city {session}."
        elif rng.random() < 0.15:
            text = f"FACT: {user} likes tea number {rng.randrange(2)}."
        events.append(_event(variant, user, session, len(events), day, at, "user", text + curse))
        if rng.random() < 0.4:
            text = f"I heard thing {turn}."
            events.append(_event(variant, user, session, len(events), day, at, "assistant", text))
    if not last or rng.random() < 0.5:
        end = _event(variant, user, session, len(events), day, at + 5, "", "")
        events.append(end | {"type": "session_end"})
    return events


def _event(
    variant: int, user: str, session: int, number: int, day: float, at: float, role: str, text: str
) -> dict[str, Any]:
    event: dict[str, Any] = {
        "v": 1,
        "event_id": f"{user}-{session}-{number}",
        "type": "message",
        "tenant_id": "acme",
        "agent_id": "helper",
        "user_id": user,
        "session_id": f"talk{session}",
        "occurred_at": (START + timedelta(seconds=at)).isoformat(),
        "metadata": {"variant": variant},
        "day": day,
    }
    if role:
        event |= {"role": role, "content": text}
    return event


def _cut(records: Sequence[Said], policy: WindowPolicy) -> list[Window]:
    """Cut the windows as a run over the whole log does, its end included."""
    scopes: dict[str, ScopeWindows] = {}
    windows: list[Window] = []
    stamp = int((START + timedelta(days=30)).timestamp() * 1000)
    for offset, said in enumerate(records):
        record = LogRecord(Position("l0.events", 0, offset), stamp, said.key, said.value)
        decoded = decode(record, SCOPE_FIELDS)
        if isinstance(decoded, SourcedEvent):
            scope = scopes.setdefault(decoded.scope, ScopeWindows(policy))
            windows += [one for one in scope.on_event(decoded) if isinstance(one, Window)]
    for scope in scopes.values():
        windows += scope.close_all("end_of_input")
    return [window for window in windows if has_user_text(window)]

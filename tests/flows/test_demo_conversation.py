"""The demo conversation is well formed, and the rules learn from it what they should."""

from __future__ import annotations

from collections import defaultdict

import pytest

from flows.demo import CONVERSATION, DemoQuestion, load_demo
from flows.rules import RuleExtractor
from stores.records import L0Event, LogRecord, Memory, Position, SourcedEvent, Window, to_utc

DEMO = load_demo()
USERS = tuple(DEMO.must_remember)
WINDOW_USER_TURNS = 5


def _events() -> list[L0Event]:
    lines = CONVERSATION.read_text(encoding="utf-8").splitlines()
    return [L0Event.model_validate_json(line) for line in lines]


def _windows(user: str) -> list[Window]:
    """Cut the user's sessions naively: five user turns each, with what the assistant answered."""
    sessions: defaultdict[str, list[list[SourcedEvent]]] = defaultdict(lambda: [[]])
    for offset, event in enumerate(_events()):
        if event.user_id != user:
            continue
        windows = sessions[event.session_id]
        turns = sum(1 for held in windows[-1] if held.event.role == "user")
        if event.role == "user" and turns == WINDOW_USER_TURNS:
            windows.append([])
        record = LogRecord(Position("l0", 0, offset), 0, None, None)
        windows[-1].append(SourcedEvent(user, event, record, to_utc(event.occurred_at)))
    return [
        Window(f"{session}-{number}", user, session, tuple(events), (), "turns")
        for session, windows in sessions.items()
        for number, events in enumerate(windows)
    ]


def _memories(user: str) -> list[Memory]:
    extractor = RuleExtractor()
    return [memory for window in _windows(user) for memory in extractor.memories(window)]


def test_the_conversation_is_what_the_demo_needs() -> None:
    events = _events()
    assert {event.user_id for event in events} == {"ana", "marcus", "林悦"} == set(USERS)
    assert {(event.tenant_id, event.agent_id) for event in events} == {("demo", "companion")}
    assert len({event.event_id for event in events}) == len(events)
    times = [event.occurred_at for event in events]
    assert times == sorted(times)
    assert len({event.occurred_at.utcoffset() for event in events}) >= 3
    assert sum(event.type == "session_end" for event in events) >= 3
    assert any(event.role == "tool" for event in events)
    assert any(" " in event.event_id and "/" in event.event_id for event in events)
    for user in USERS:
        assert len({event.session_id for event in events if event.user_id == user}) >= 4


def test_expected_phrases_are_expected_of_somebody_who_said_them() -> None:
    assert 8 <= len(DEMO.questions) <= 10
    assert {question.language for question in DEMO.questions} == {"en", "zh"}
    assert sum(question.not_active is not None for question in DEMO.questions) >= 3
    assert {question.user for question in DEMO.questions} == set(USERS)


@pytest.mark.parametrize(
    ("user", "phrase"), [(user, phrase) for user in USERS for phrase in DEMO.must_remember[user]]
)
def test_remembers(user: str, phrase: str) -> None:
    texts = [memory.text for memory in _memories(user)]
    assert any(phrase in text for text in texts), texts


@pytest.mark.parametrize(
    ("user", "phrase"),
    [(user, phrase) for user in USERS for phrase in DEMO.must_not_remember[user]],
)
def test_does_not_remember(user: str, phrase: str) -> None:
    assert [memory.text for memory in _memories(user) if phrase in memory.text] == []


@pytest.mark.parametrize("asked", DEMO.questions, ids=lambda asked: str(asked.id))
def test_the_latest_value_of_a_slot_answers_the_question(asked: DemoQuestion) -> None:
    latest: dict[str, Memory] = {}
    for number, memory in enumerate(_memories(asked.user)):
        latest[memory.slot or str(number)] = memory
    active = [memory.text for memory in latest.values()]
    assert any(asked.expect in text for text in active), active
    if asked.not_active is not None:
        assert not any(asked.not_active in text for text in active), active


@pytest.mark.parametrize("user", USERS)
def test_every_memory_comes_from_the_users_own_messages(user: str) -> None:
    own = {event.event_id for event in _events() if event.role == "user"}
    for memory in _memories(user):
        assert memory.source_event_ids
        assert set(memory.source_event_ids) <= own

"""Messages and sessions become events: roles, times, sessions, ids that stay."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest

from connectors.importers import ImportDefaults, ImportedEvent, read_events
from tests.connectors.import_rig import ANA, T0, Files, said, split
from tests.rig.needs import shared_data


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# --- messages ----------------------------------------------------------------------------------

CHAT = [
    said("be kind", "system"),
    said([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "u"}}]),
    said(None, "assistant", tool_calls=[{"id": "c1", "function": {"name": "f"}}]),
    said("42", "tool", tool_call_id="c1", name="f"),
    said("look"),
    said("look"),
]


@pytest.mark.parametrize("layout", ["document", "list", "indented", "line", "lines"])
def test_every_layout_of_a_chat_gives_the_same_events(files: Files, layout: str) -> None:
    content, lines, indent = {
        "document": ({"messages": CHAT}, False, None),
        "list": (CHAT, False, None),
        "indented": ({"messages": CHAT}, False, 2),
        "line": ([{"messages": CHAT}], True, None),
        "lines": (CHAT, True, None),
    }[layout]
    events, problems = files.read(content, lines=lines, indent=indent, start_time=T0)
    expected, _ = files.read(CHAT, start_time=T0)
    assert problems == []
    assert events == expected
    assert [event.role for event in events] == [
        "system", "user", "assistant", "tool", "user", "user"
    ]  # fmt: skip
    assert events[1].text() == "look\n[image_url]"
    assert events[2].tool_calls == CHAT[2]["tool_calls"]
    assert (events[3].tool_call_id, events[3].name) == ("c1", "f")
    assert len({event.event_id for event in events}) == len(CHAT)
    assert [event.occurred_at for event in events] == [
        T0 + timedelta(seconds=index) for index in range(len(CHAT))
    ]


def test_one_conversation_a_line_is_one_session_a_line(files: Files) -> None:
    chats = [{"messages": [said("hi"), said("yo", "assistant")]} for _ in range(3)]
    for lines in (True, False):
        events, problems = files.read(chats, lines=lines)
        assert [event.session_id for event in events] == [
            "s1", "s1", "s1/2", "s1/2", "s1/3", "s1/3"
        ]  # fmt: skip
        assert len({event.event_id for event in events}) == 6
        assert problems == []


def test_a_conversation_may_name_its_own_session_and_come_in_pieces(files: Files) -> None:
    chats = [{"session_id": "own", "messages": [said("hi")]} for _ in range(2)]
    no_session = ImportDefaults(tenant="acme", agent="helper", user="ana")
    events, problems = files.read(chats, lines=True, defaults=no_session)
    assert [event.session_id for event in events] == ["own", "own"]
    assert len({event.event_id for event in events}) == 2, "the second hi is not the first one"
    assert problems == []


def test_a_message_of_another_user_is_not_taken_for_the_one_given(files: Files) -> None:
    chat = [said("mine"), said("his", user_id="bob")]
    for lines in (True, False):
        events, [problem] = files.read(chat, lines=lines)
        assert [event.text() for event in events] == ["mine"]
        assert problem.field == "user_id"


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("human", "user"), ("Human", "user"), ("ai", "assistant"), ("bot", "assistant"),
        ("model", "assistant"), ("function", "tool"), ("developer", "system"),
    ],
)  # fmt: skip
def test_other_names_of_roles_are_known(files: Files, role: str, expected: str) -> None:
    [event], _ = files.read([said("x", role)])
    assert event.role == expected


@pytest.mark.parametrize("role", ["narrator", None, 3, ""])
def test_an_unknown_role_is_a_problem(files: Files, role: Any) -> None:
    events, [problem] = files.read([said("x"), said("x", role), said("y")])
    assert [event.text() for event in events] == ["x", "y"]
    assert (problem.field, problem.path) == ("role", "$[1]")


def test_an_old_function_call_is_kept_as_a_tool_call(files: Files) -> None:
    [event], _ = files.read([said(None, "assistant", function_call={"name": "f"})])
    assert event.tool_calls == [{"type": "function", "function": {"name": "f"}}]


# --- times -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected", "mark"),
    [
        ("2024-05-01T09:00:00Z", T0, None),
        ("2024-05-01T17:00:00.000+08:00", T0, None),
        ("2024-05-01T09:00:00", T0, "assumed_utc"),
        ("2024-05-01 09:00:00", T0, "assumed_utc"),
        (1714554000, T0, None),
        (1714554000.0, T0, None),
        (1714554000000, T0, None),
        ("1714554000", T0, None),
    ],
)
@pytest.mark.parametrize("field", ["timestamp", "created_at", "occurred_at"])
def test_times_are_read(
    files: Files, field: str, value: Any, expected: datetime, mark: str | None
) -> None:
    [event], _ = files.read([said("x", metadata={"k": 1}, **{field: value})])
    assert event.occurred_at == expected
    assert event.metadata == {"k": 1, **({"time": mark} if mark else {})}


@pytest.mark.parametrize("value", ["yesterday", True, [], 1e30, "0001-01-01T00:00:00+14:00"])
def test_a_time_that_is_none_is_a_problem(files: Files, value: Any) -> None:
    events, [problem] = files.read([said("x"), said("y", timestamp=value)])
    assert [event.text() for event in events] == ["x"]
    assert problem.field == "timestamp"


@pytest.mark.parametrize("lines", [True, False])
def test_a_missing_time_is_that_of_its_neighbour(files: Files, lines: bool) -> None:
    later = "2024-05-01T10:00:00Z"
    chat = [said("a"), said("b", timestamp=later), said("c"), said("d", timestamp=1714554000)]
    events, _ = files.read(chat, lines=lines)
    hour = timedelta(hours=1)
    assert [event.text() for event in events] == ["a", "b", "c", "d"]
    assert [event.occurred_at - T0 for event in events] == [hour, hour, hour, timedelta(0)]
    assert [event.metadata.get("time") for event in events] == [
        "neighbour", None, "neighbour", None
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["list", "lines", "conversations", "sessions"])
def test_times_made_up_end_at_the_files_date_and_change_no_id(tmp_path: Path, layout: str) -> None:
    chat = [said(text) for text in "abc"]
    content = {
        "list": orjson.dumps(chat),
        "lines": b"\n".join(map(orjson.dumps, chat)),
        "conversations": b"\n".join(orjson.dumps({"messages": [message]}) for message in chat),
        "sessions": orjson.dumps([{"sessionKey": "s1", "conversations": [chat]}]),
    }[layout]
    seen = []
    for name, modified in (("one", T0), ("two", T0 + timedelta(days=9))):
        path = tmp_path / name
        path.write_bytes(content)
        os.utime(path, (modified.timestamp(), modified.timestamp()))
        items = list(read_events(path, defaults=ANA))
        events, problems = split(iter(items))
        events = [event for event in events if event.type == "message"]
        assert problems == []
        assert [event.occurred_at - modified for event in events] == [
            timedelta(seconds=seconds) for seconds in (-3, -2, -1)
        ]
        assert {event.metadata["time"] for event in events} == {"synthetic"}
        assert {item.time for item in items if isinstance(item, ImportedEvent)} == {"synthetic"}
        seen.append([event.event_id for event in events])
    assert seen[0] == seen[1]


# --- sessions ----------------------------------------------------------------------------------

MS = 1714554000000
SESSIONS = [
    {
        "sessionKey": "k1",
        "sessionId": "id1",
        "conversations": [
            [said("a", timestamp=MS), said("b", "assistant", timestamp=MS)],
            [said("a", timestamp=MS), said("c", timestamp="2024-05-01T09:00:02Z")],
        ],
    },
    {"sessionKey": "k2", "conversations": [[said("a", timestamp=MS)], []]},
    {"sessionKey": "k1", "sessionId": "id1", "conversations": [[said("a", timestamp=MS + 9000)]]},
]
NO_SESSION = ImportDefaults(tenant="acme", agent="helper", user="ana")


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("wrapped", [True, False])
def test_sessions_keep_every_message_in_order_and_end(
    files: Files, wrapped: bool, indent: int | None
) -> None:
    content = {"sessions": SESSIONS} if wrapped else SESSIONS
    events, problems = files.read(content, indent=indent, defaults=NO_SESSION)
    assert problems == []
    told = [
        (e.session_id, e.text() or e.type, (e.occurred_at - T0).total_seconds()) for e in events
    ]
    assert told == [
        ("id1", "a", 0), ("id1", "b", 0), ("id1", "a", 0), ("id1", "c", 2),
        ("id1", "session_end", 2),
        ("k2", "a", 0), ("k2", "session_end", 0),
        ("id1", "a", 9), ("id1", "session_end", 9),
    ]  # fmt: skip
    assert len({event.event_id for event in events}) == len(events)


def test_a_session_end_says_when_its_time_is_made_up(files: Files) -> None:
    for time, metadata in ((MS, {}), (None, {"time": "synthetic"})):
        sessions = [{"sessionKey": "k", "conversations": [[said("a", timestamp=time)]]}]
        events, _ = files.read(sessions, defaults=NO_SESSION)
        assert [event.metadata for event in events] == [metadata, metadata]
        assert events[0].occurred_at == events[1].occurred_at


def test_a_session_that_has_grown_doubles_nothing(files: Files) -> None:
    before, _ = files.read(SESSIONS[:1], defaults=NO_SESSION)
    grown = json.loads(json.dumps(SESSIONS[:1]))
    grown[0]["conversations"].append([said("new", timestamp=MS + 5000)])
    after, _ = files.read(grown, defaults=NO_SESSION)
    messages = [event for event in after if event.type == "message"]
    assert [event.event_id for event in messages[:4]] == [event.event_id for event in before[:4]]
    assert messages[4].event_id not in {event.event_id for event in before}


def test_problems_of_a_document_say_where(files: Files) -> None:
    sessions = [
        {"sessionKey": "k", "conversations": [[said("a", timestamp=MS), said("b", "who")], "x"]},
        {"sessionKey": "k", "conversations": {}},
        7,
        {"conversations": [[said("a", timestamp=MS)]]},
    ]
    content = {"sessions": sessions}
    events, problems = files.read(content, indent=1, defaults=NO_SESSION)
    assert [event.text() or event.type for event in events] == ["a", "session_end"]
    assert [(p.path, p.field) for p in problems] == [
        ("$.sessions[0].conversations[0][1]", "role"),
        ("$.sessions[0].conversations[1]", ""),
        ("$.sessions[1]", "conversations"),
        ("$.sessions[2]", "conversations"),
        ("$.sessions[3].conversations[0][0]", "session_id"),
    ]
    text = files.write(content, indent=1).read_text().splitlines()
    assert [text[p.line - 1].strip(" ,") for p in problems] == ["{", '"x"', "{", "7", "{"]
    assert text[problems[0].line].strip() == '"role": "who",'
    assert str(problems[1]).startswith(f"line {problems[1].line} $.sessions[0].conversations[1]: ")


# --- real conversations ------------------------------------------------------------------------


@pytest.mark.shared
def test_a_real_chinese_chat_imports_whole(files: Files) -> None:
    chat = json.loads(shared_data("evermemos/solo_chat_zh.json").read_text())["conversation_list"]
    messages = [
        said(row["content"], "user", timestamp=row["create_time"], name=row["sender_name"])
        for row in chat
    ]
    events, problems = files.read(messages, lines=True)
    assert problems == []
    assert [event.text() for event in events] == [row["content"] for row in chat]
    assert all("time" not in event.metadata for event in events)


@pytest.mark.shared
def test_real_contexts_without_times_import_as_conversations(files: Files) -> None:
    path = shared_data("personamem/shared_contexts_32k.jsonl")
    with path.open() as lines:
        contexts = [next(iter(json.loads(line).values())) for line in islice(lines, 3)]
    content = [{"messages": messages} for messages in contexts]
    events, problems = files.read(content, lines=True)
    assert problems == []
    assert len(events) == sum(map(len, contexts))
    assert len({event.event_id for event in events}) == len(events)
    assert sorted({event.session_id for event in events}) == ["s1", "s1/2", "s1/3"]
    times = [event.occurred_at for event in events]
    assert times == sorted(set(times))

"""What `sediment ingest` makes of a file: events, in order, the same ones every time."""

from __future__ import annotations

import json
import tracemalloc
import unicodedata
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.importers import (
    ImportDefaults,
    ImportedEvent,
    ImportFormat,
    encode_event,
    read_events,
    to_record,
)
from connectors.importers import files as import_files
from connectors.settings import Settings
from stores.errors import InvalidEvent, SettingsError, UserError
from stores.ids import scope_key
from stores.records import DECODE_REASONS, MAX_EVENT_BYTES, L0Event, names_none
from tests.connectors.import_rig import ANA, T0, Files, native, said, split


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# --- events ------------------------------------------------------------------------------------


def test_native_events_come_as_they_are(files: Files) -> None:
    rows = [
        native("e1", metadata={"a": None}, tool_calls=[None], team_id="red", task_id="t"),
        native("e2", type="session_end", role=None, content=None),
        native("e3", content=[{"type": "text", "text": "x"}, {"type": "image_url", "url": "u"}]),
    ]
    events, problems = files.read(rows, lines=True, defaults=ImportDefaults())
    assert events == [L0Event.model_validate(row) for row in rows]
    assert problems == []


def test_ids_of_the_command_line_fill_what_the_file_lacks(files: Files) -> None:
    row = native("e1")
    for field in ("tenant_id", "agent_id", "user_id", "session_id"):
        del row[field]
    defaults = ImportDefaults(tenant="T", agent="A", user="U", session="S", team="R")
    [event], problems = files.read([row], lines=True, defaults=defaults)
    assert (event.tenant_id, event.agent_id, event.user_id) == ("T", "A", "U")
    assert (event.session_id, event.team_id) == ("S", "R")
    assert problems == []


@pytest.mark.parametrize("option", ["tenant", "agent", "user", "session"])
def test_an_id_that_nobody_gives_is_named_with_its_option(files: Files, option: str) -> None:
    row = native("e1")
    del row[f"{option}_id"]
    events, [problem] = files.read([row], lines=True, defaults=ImportDefaults())
    assert events == []
    assert (problem.line, problem.field, problem.reason) == (1, f"{option}_id", "empty_id")
    assert f"--{option}" in str(problem)


def test_all_that_is_missing_is_named_at_once(files: Files) -> None:
    row = native("e1")
    del row["agent_id"], row["session_id"]
    _, [problem] = files.read([row], lines=True, defaults=ImportDefaults())
    assert problem.message == (
        "agent_id, session_id: missing; give --agent --session, or put them into the file"
    )


def test_a_file_and_a_command_line_that_disagree_on_an_id_are_a_problem(files: Files) -> None:
    defaults = ImportDefaults(tenant="other")
    events, [problem] = files.read([native("e1")], lines=True, defaults=defaults)
    assert events == []
    assert problem.field == "tenant_id"
    assert "'acme'" in problem.message
    assert "'other'" in problem.message


def dated(when: str) -> bytes:
    return json.dumps(native("x", occurred_at=when)).encode()


BAD_LINES: list[tuple[bytes, str, str]] = [
    (b'{"v": 1, "event_id": ', "invalid_json", ""),
    (b'{"v": 1, "event_id": "\xff"}', "invalid_utf8", ""),
    (b"[1]", "invalid_schema", ""),
    (b'"text"', "invalid_schema", ""),
    (json.dumps(native("x", v=2)).encode(), "unknown_version", "v"),
    (dated("today"), "invalid_schema", "occurred_at"),
    (dated("2024-05-01T09:00:00"), "invalid_schema", "occurred_at"),
    (dated("0001-01-01T00:00:00+14:00"), "invalid_schema", "occurred_at"),
    (json.dumps(native("x", role="narrator")).encode(), "invalid_schema", "role"),
    (json.dumps(native("x", role=None)).encode(), "invalid_schema", "role"),
    (json.dumps(native("x", content=None)).encode(), "invalid_schema", "content"),
    (json.dumps(native("x", user_id="a\nb")).encode(), "invalid_schema", "user_id"),
    (json.dumps(native("x", user_id="")).encode(), "empty_id", "user_id"),
    (json.dumps(native("")).encode(), "empty_id", "event_id"),
    (json.dumps(native("x", content="y" * MAX_EVENT_BYTES)).encode(), "oversized", ""),
    (b'{"v": 1, "user_id": "\\ud800"}', "invalid_json", ""),
]  # fmt: skip


def test_a_bad_line_is_named_and_loses_no_good_one(files: Files) -> None:
    content = json.dumps(native("first")).encode() + b"\r\n\n  \n"
    for index, (line, _, _) in enumerate(BAD_LINES):
        content += line + b"\n" + json.dumps(native(f"good{index}")).encode() + b"\n"
    events, problems = files.read(content, defaults=ImportDefaults())
    assert [event.event_id for event in events] == [
        "first", *(f"good{index}" for index in range(len(BAD_LINES))),
    ]  # fmt: skip
    assert [(p.reason, p.field) for p in problems] == [(r, f) for _, r, f in BAD_LINES]
    assert [p.line for p in problems] == [4 + 2 * index for index in range(len(BAD_LINES))]
    assert {p.reason for p in problems} <= DECODE_REASONS.keys()
    assert "text of" not in " ".join(map(str, problems))


def test_a_byte_order_mark_blank_lines_and_no_last_newline_are_fine(files: Files) -> None:
    content = b"\xef\xbb\xbf\n" + json.dumps(native("e1")).encode()
    events, problems = files.read(content)
    assert [event.event_id for event in events] == ["e1"]
    assert problems == []
    document = b"\xef\xbb\xbf" + json.dumps({"messages": [said("hi")]}, indent=1).encode()
    events, problems = files.read(document)
    assert [event.text() for event in events] == ["hi"]


def test_a_line_too_long_to_hold_is_skipped(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_files, "MAX_LINE_BYTES", 1000)
    for length in (1000, 1001, 2000, 2001, 3500):
        long = b'{"v":1,"content":"' + b"x" * length + b'"}'
        good = json.dumps(native("good")).encode()
        events, [problem] = files.read(long + b"\n" + good + b"\n", defaults=ImportDefaults())
        assert [event.event_id for event in events] == ["good"]
        assert (problem.line, problem.reason) == (1, "oversized")


def test_memory_does_not_grow_with_the_file(files: Files) -> None:
    peaks = []
    for count in (500, 10_000):
        path = files.write([said("x" * 100) for _ in range(count)], lines=True)
        tracemalloc.start()
        assert sum(1 for _ in read_events(path, defaults=ANA)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


# --- telling the format ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": 1}\n', "none of them"),
        (b"[]", "none of them"),
        (b"3\n", "none of them"),
        (b'{"messages": [], "event_id": "x"}', "events or messages"),
        (b'{"role": "user"\n', "line 1: not JSON"),
        (b'[\n{"role": "user", "content": "x"},\n}\n]', "line 3, column"),
        (b'{\n"v": 1\n}', "one JSON object a line"),
        (json.dumps([native("x")]).encode(), "one JSON object a line"),
        (b"\xff\xfe{\x00", "UTF-16"),
    ],
)
def test_a_file_that_fits_no_format_is_refused_as_a_whole(
    files: Files, content: bytes, expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        files.read(content)


def test_an_unclear_file_can_be_told_with_an_option(files: Files) -> None:
    content = b'{"messages": [{"role": "user", "content": "x"}], "event_id": "x"}'
    with pytest.raises(UserError, match="--format"):
        files.read(content)
    events, _ = files.read(content, format="messages")
    assert [event.text() for event in events] == ["x"]


@pytest.mark.parametrize("format", ["auto", "events", "messages"])
def test_an_empty_file_holds_no_events(files: Files, format: ImportFormat) -> None:
    assert files.read(b" \n\n", format=format) == ([], [])


def test_a_missing_file_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_events(tmp_path / "nowhere", defaults=ANA)
    with pytest.raises(UserError, match="directory"):
        read_events(tmp_path, defaults=ANA)


def test_a_broken_first_line_does_not_hide_the_format(files: Files) -> None:
    content = b'{"role": "user", "content"\n' + json.dumps(said("x")).encode()
    events, [problem] = files.read(content)
    assert [event.text() for event in events] == ["x"]
    assert (problem.line, problem.reason) == (1, "invalid_json")
    repaired = json.dumps(said("w")).encode() + b"\n" + json.dumps(said("x")).encode()
    both, _ = files.read(repaired)
    assert both[1].event_id == events[0].event_id, "a repaired line changes no other's id"


def test_a_broken_conversation_does_not_rename_the_others(files: Files) -> None:
    good = json.dumps({"messages": [said("x")]}).encode()
    events, _ = files.read(good + b"\n{\n" + good)
    repaired, _ = files.read(b"\n".join([good] * 3))
    assert [e.event_id for e in events] == [repaired[0].event_id, repaired[2].event_id]


# --- records -----------------------------------------------------------------------------------

# Surrogates are no Unicode text; control characters and wildcards are refused.
IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(
    lambda text: not names_none(text)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
EVENTS = st.builds(
    L0Event,
    v=st.just(1),
    event_id=IDS,
    tenant_id=IDS,
    agent_id=IDS,
    user_id=IDS,
    session_id=IDS,
    team_id=st.none() | IDS,
    role=st.sampled_from(["user", "assistant", "system", "tool"]),
    content=st.text(max_size=50),
    tool_calls=st.none() | JSON,
    occurred_at=st.datetimes(
        min_value=datetime(1, 1, 2),  # noqa: DTZ001  # hypothesis adds the offset itself
        max_value=datetime(9999, 12, 30),  # noqa: DTZ001
        timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=8))]),
    ),
    metadata=st.dictionaries(st.text(max_size=5), JSON, max_size=3),
)


@given(st.lists(EVENTS, max_size=4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_events_written_and_imported_are_the_same_bytes(
    tmp_path: Path, events: list[L0Event]
) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"".join(encode_event(event) + b"\n" for event in events))
    read, problems = split(read_events(path, defaults=ImportDefaults(), format="events"))
    assert problems == []
    assert read == events
    assert b"".join(encode_event(event) + b"\n" for event in read) == path.read_bytes()


@given(ids=st.tuples(IDS, IDS, IDS, IDS), texts=st.lists(st.text(max_size=20)))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_ids_and_texts_go_through_and_twice_is_once(
    tmp_path: Path, ids: tuple[str, str, str, str], texts: list[str]
) -> None:
    path = tmp_path / "messages"
    path.write_bytes(orjson.dumps([said(text) for text in texts]))
    defaults = ImportDefaults(*ids)
    options = Settings()
    runs = []
    for _ in range(2):
        items = read_events(path, defaults=defaults, format="messages", start_time=T0)
        runs.append([to_record(item, options) for item in items if isinstance(item, ImportedEvent)])
    assert runs[0] == runs[1]
    assert [L0Event.model_validate_json(r.value or b"").text() for r in runs[0]] == texts
    assert {record.key for record in runs[0]} <= {scope_key(ids[:3]).encode()}
    assert len({L0Event.model_validate_json(r.value or b"").event_id for r in runs[0]}) == len(
        texts
    )


@given(st.characters(categories=["Cc"]))
def test_a_control_character_in_an_id_is_refused(char: str) -> None:
    assert unicodedata.category(char) == "Cc"
    with pytest.raises(ValueError, match="control"):
        L0Event.model_validate(native(f"a{char}b"))


def imported(event_id: str, **fields: Any) -> ImportedEvent:
    event = L0Event.model_validate(native(event_id, **fields))
    return ImportedEvent(event, encode_event(event), 1)


def test_fields_outside_of_the_contract_stay_in_the_log(files: Files) -> None:
    path = files.write([native("e1", later="x", nothing=None)], lines=True)
    [item] = read_events(path, defaults=ANA)
    assert isinstance(item, ImportedEvent)
    assert orjson.loads(item.value) == native("e1", later="x") | {
        "type": "message",
        "metadata": {},
    }


def test_a_record_has_no_nulls_and_sorted_keys() -> None:
    record = to_record(imported("e1", content=[{"type": "text"}]), Settings(topic_prefix="p"))
    assert (record.topic, record.key) == ("p.l0.events", b"acme/helper/ana")
    value = record.value or b""
    assert b"null" not in value
    assert value == orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
    assert orjson.loads(value)["occurred_at"] == "2024-05-01T09:00:00+02:00"


def test_a_scope_that_needs_a_team_refuses_an_event_without_one() -> None:
    options = Settings(scope_fields=("tenant", "team"))
    with pytest.raises(SettingsError, match="team"):
        to_record(imported("e1"), options)
    record = to_record(imported("e1", team_id="r/d"), options)
    assert record.key == b"acme/r%2Fd"


def test_a_number_that_json_writers_cannot_hold_is_an_invalid_event() -> None:
    event = L0Event.model_validate(native("e1", metadata={"n": 2**70}))
    with pytest.raises(InvalidEvent, match="64-bit"):
        encode_event(event)

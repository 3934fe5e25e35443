"""Decode: every kind of bad bytes has a reason, and good bytes keep every id."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.decode import CLOCK_TOLERANCE, decode
from stores.errors import InvalidEvent
from stores.ids import scope_parts
from stores.records import DECODE_REASONS, MAX_EVENT_BYTES, SourcedEvent, names_none
from tests.rig.events import START, body, record

SCOPE = ("tenant", "agent", "user")


def _decode(value: bytes | None) -> SourcedEvent | InvalidEvent:
    return decode(record(value), SCOPE)


BAD: list[tuple[str, bytes | None, str]] = [
    ("null_body", None, ""),
    ("oversized", b" " * (MAX_EVENT_BYTES + 1), ""),
    ("invalid_utf8", b'{"v":1,"event_id":"\xff"}', ""),
    ("invalid_json", b'{"v":1,', ""),
    ("invalid_json", b"", ""),
    ("invalid_schema", b"[]", ""),
    ("unknown_version", orjson.dumps(body(v=2)), "v"),
    ("unknown_version", orjson.dumps(body(v=None)), "v"),
    ("invalid_schema", orjson.dumps(body(role="robot")), "role"),
    ("invalid_schema", orjson.dumps(body(role=None)), ""),
    ("invalid_schema", orjson.dumps(body(content=None)), ""),
    ("invalid_schema", orjson.dumps(body(occurred_at="2026-01-01T00:00:00")), "occurred_at"),
    ("invalid_schema", orjson.dumps(body(occurred_at="yesterday")), "occurred_at"),
    ("invalid_schema", orjson.dumps(body(occurred_at="0001-01-01T00:00:00+14:00")), "occurred_at"),
    ("invalid_schema", orjson.dumps(body(user_id="a\nb")), "user_id"),
    ("invalid_schema", orjson.dumps(body(user_id="x" * 257)), "user_id"),
    *(
        ("invalid_schema", orjson.dumps(body(**{field: value})), field)
        for field in ("tenant_id", "team_id", "agent_id", "user_id", "session_id")
        for value in ("*", " *%", "\u3000")
    ),
    ("empty_id", orjson.dumps(body(user_id="")), "user_id"),
    ("empty_id", orjson.dumps(body(event_id="")), "event_id"),
    ("invalid_json", b'{"v":1,"event_id":"\\ud800"}', ""),
]


@pytest.mark.parametrize(("reason", "value", "field"), BAD)
def test_bad_bytes_are_refused_with_a_reason(reason: str, value: bytes | None, field: str) -> None:
    decoded = _decode(value)
    assert isinstance(decoded, InvalidEvent)
    assert (decoded.reason, decoded.field) == (reason, field)
    assert field in str(decoded)
    assert "Value error" not in str(decoded)


def test_every_declared_reason_can_happen() -> None:
    assert {reason for reason, _, _ in BAD} == set(DECODE_REASONS)


def test_a_scope_part_that_the_event_lacks_is_an_empty_id() -> None:
    decoded = decode(record(orjson.dumps(body())), ("tenant", "team", "user"))
    assert isinstance(decoded, InvalidEvent)
    assert (decoded.reason, decoded.field) == ("empty_id", "team_id")


@given(st.binary(max_size=200))
def test_no_bytes_raise(value: bytes) -> None:
    _decode(value)


ids = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=50).filter(
    lambda text: not names_none(text)
)


@given(ids, ids, ids, ids)
def test_any_unicode_id_round_trips(tenant: str, user: str, session: str, event: str) -> None:
    value = orjson.dumps(body(event, tenant_id=tenant, user_id=user, session_id=session))
    decoded = _decode(value)
    assert isinstance(decoded, SourcedEvent)
    assert scope_parts(decoded.scope) == (tenant, "helper", user)
    assert (decoded.event.session_id, decoded.event.event_id) == (session, event)


@pytest.mark.parametrize(
    ("ahead", "replaced"),
    [(timedelta(0), False), (CLOCK_TOLERANCE, False), (timedelta(minutes=6), True)],
)
def test_a_date_far_ahead_of_the_log_is_replaced_and_flagged(
    ahead: timedelta, replaced: bool
) -> None:
    value = orjson.dumps(body(occurred_at=(START + ahead).isoformat()))
    decoded = decode(record(value, timestamp=START), SCOPE)
    assert isinstance(decoded, SourcedEvent)
    assert decoded.clock_ahead is replaced
    assert decoded.occurred_at == (START if replaced else START + ahead)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image_url", "image_url": {"url": "data:,x"}}], "[image_url]"),
    ],
)
def test_content_reads_as_text(content: Any, text: str) -> None:
    decoded = _decode(orjson.dumps(body(content=content)))
    assert isinstance(decoded, SourcedEvent)
    assert decoded.event.text() == text

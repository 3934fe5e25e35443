"""The model of a replay, and what a dry run finds out without asking it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from connectors.filelog import FileLog
from connectors.llm import RecordedChat
from connectors.log import Place
from connectors.tokens import count_tokens
from flows.extract.llm import LlmExtractor
from flows.replay.answers import AnswerTally, CountedChat, NobodyToAsk, PretendedChat
from flows.replay.dry_run import Estimate, estimate, tokens_to_ask
from flows.replay.plan import Wanted, in_scope, span_of
from flows.rules import RuleExtractor
from flows.window import WindowPolicy
from stores.answers import SqliteAnswers
from stores.errors import NoRecordedAnswer, Terminal
from stores.protocols import ChatAnswer, ChatModel, ChatRequest
from stores.records import OutRecord
from tests.rig.events import TOPIC, at, body
from tests.rig.fake_chat import FakeChat, ScriptedChat, answer
from tests.rig.still import StillClock

FIELDS: Any = ("tenant", "agent", "user")
REQUEST = ChatRequest("m", (("user", "hello world"),), "p/1")


def test_nobody_to_ask_gives_up_for_good_and_says_what_to_do() -> None:
    with pytest.raises(NoRecordedAnswer, match="p/1 request to m; replay with --answers missing"):
        asyncio.run(NobodyToAsk("m").complete(REQUEST))
    assert issubclass(NoRecordedAnswer, Terminal)
    assert NoRecordedAnswer.reason == "no_recorded_answer"


def test_answers_are_counted_by_where_they_came_from() -> None:
    tally = AnswerTally()
    for recorded in (True, False, True):
        chat = CountedChat(FakeChat("x", recorded=recorded), tally)
        assert chat.name == "fake"
        asyncio.run(chat.complete(REQUEST))
    assert (tally.asked, tally.asked_tokens) == (1, 110)
    assert (tally.saved, tally.saved_tokens, tally.saved_answer_tokens) == (2, 220, 20)


SCHEMA = {
    "type": "object",
    "required": ["memories", "mood", "scene", "count", "sure", "inner"],
    "properties": {
        "memories": {"type": "array", "items": {"type": "object"}},
        "mood": {"type": "string", "enum": ["calm", "wild"]},
        "scene": {"type": ["string", "null"]},
        "count": {"type": "integer"},
        "sure": {"type": "boolean"},
        "inner": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
        "left_out": {"type": "string"},
    },
}


def test_a_pretended_answer_is_the_least_that_its_schema_takes_and_is_not_recorded(
    tmp_path: Path,
) -> None:
    journal = SqliteAnswers(tmp_path / "answers.sqlite")
    chat = RecordedChat(PretendedChat("m", count_tokens), journal)
    request = ChatRequest("m", (("user", "hello world"),), "p/1", schema=SCHEMA)
    found = asyncio.run(chat.complete(request))
    assert orjson.loads(found.text) == {
        "memories": [], "mood": "calm", "scene": None, "count": 0, "sure": False,
        "inner": {"a": ""},
    }  # fmt: skip
    assert found.prompt_tokens == count_tokens("hello world")
    assert journal.get(request.request_hash()) is None
    journal.close()


# --- dry run ---------------------------------------------------------------------------------


def history(tmp_path: Path, extra: Sequence[bytes] = ()) -> FileLog:
    """Two users, two windows each: five user turns, then one and an answer."""
    log = FileLog(tmp_path / "log", StillClock())
    values = [
        orjson.dumps(
            body(
                f"{user}-{turn}",
                user_id=user,
                content=f"FACT: {user} said number {turn}.",
                occurred_at=at(60 * turn).isoformat(),
            )
        )
        for turn in range(6)
        for user in ("ana", "bob")
    ]
    quiet = orjson.dumps(body("quiet", user_id="cat", role="assistant", content="Anybody there?"))
    log.append([OutRecord(TOPIC, b"k", value) for value in (*values, quiet, *extra)])
    return log


def estimated(
    log: FileLog, chat: ChatModel | None, wanted: Wanted | None = None
) -> tuple[Estimate, int]:
    found, shown = Estimate(), 0

    def show() -> None:
        nonlocal shown
        shown += 1

    extractor = LlmExtractor(chat, count_tokens=count_tokens) if chat else RuleExtractor()
    asyncio.run(
        estimate(
            log,
            TOPIC,
            span_of(log, TOPIC, Place("beginning"), Place("end")),
            wanted=wanted,
            scope_fields=FIELDS,
            policy=WindowPolicy(),
            extractor=extractor,
            so_far=found,
            show=show,
        )
    )
    return found, shown


def test_events_windows_and_what_would_be_asked(tmp_path: Path) -> None:
    log, tally = history(tmp_path, [b"{", b"not json"]), AnswerTally()
    found, shown = estimated(log, CountedChat(PretendedChat("m", count_tokens), tally))
    assert (found.read, found.events, found.refused) == (15, 13, 2)
    assert (found.windows, found.asks) == (5, 4)
    assert (tally.asked, tally.saved) == (4, 0)
    assert tokens_to_ask(tally) == tally.asked_tokens > 0
    assert shown > 0


def test_one_users_history_alone(tmp_path: Path) -> None:
    log, tally = history(tmp_path, [b"{"]), AnswerTally()
    chat = CountedChat(PretendedChat("m", count_tokens), tally)
    found, _ = estimated(log, chat, in_scope(FIELDS, {"user": "ana"}))
    assert (found.events, found.refused, found.windows, tally.asked) == (6, 0, 2, 2)


def test_rules_ask_nobody(tmp_path: Path) -> None:
    found, _ = estimated(history(tmp_path), None)
    assert (found.windows, found.asks) == (5, 4)


def test_what_is_recorded_is_found_as_the_stage_would_find_it(tmp_path: Path) -> None:
    """Half of the history was extracted before; a malformed answer and its correction too."""
    log = history(tmp_path)
    journal = SqliteAnswers(tmp_path / "answers.sqlite")
    wanted = in_scope(FIELDS, {"user": "ana"})

    class Named(ScriptedChat):
        name = "m"

    class Clumsy(FakeChat):
        name = "m"

    estimated(log, RecordedChat(Named(), journal), wanted)
    clumsy = Clumsy("no json at all", answer(), answer())
    estimated(log, RecordedChat(clumsy, journal), in_scope(FIELDS, {"user": "bob"}))
    assert len(clumsy.requests) == 3

    tally = AnswerTally()
    pretended = RecordedChat(PretendedChat("m", count_tokens), journal)
    estimated(log, CountedChat(pretended, tally))
    assert (tally.asked, tally.saved) == (0, 5)
    journal.close()


def test_answers_still_to_come_are_taken_to_be_as_long_as_those_there_are() -> None:
    tally = AnswerTally()
    tally.count(ChatAnswer("", "m", 100, 30, 0.0, recorded=True))
    tally.count(ChatAnswer("", "m", 100, 10, 0.0, recorded=True))
    tally.count(ChatAnswer("", "m", 500, 0, 0.0, "pretended"))
    assert tokens_to_ask(tally) == 500 + 20

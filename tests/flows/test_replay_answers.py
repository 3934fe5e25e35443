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
from flows.extract.work import ExtractWork
from flows.replay.answers import AnswerTally, CountedChat, NobodyToAsk, PretendedChat
from flows.replay.dry_run import Estimate, estimate, tokens_to_ask
from flows.replay.plan import Wanted, in_scope, span_of
from flows.replay.stage_calls import Models, StageCalls, stage_calls
from flows.rules import RuleExtractor
from flows.scenes import Pace
from flows.window import WindowPolicy
from stores.answers import SqliteAnswers
from stores.errors import NoRecordedAnswer, Terminal
from stores.ids import event_key
from stores.protocols import ChatAnswer, ChatModel, ChatRequest
from stores.records import OutRecord, Tombstone
from stores.tombstones import Tombstones
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
    log: FileLog,
    chat: ChatModel | None,
    wanted: Wanted | None = None,
    kept_out: Tombstones | None = None,
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
            work=ExtractWork(extractor, None, kept_out),
            so_far=found,
            kept_out=kept_out,
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


def test_what_was_forgotten_is_kept_out_and_counted(tmp_path: Path) -> None:
    """All of Bob's, and the first message of Ana."""
    log, tally = history(tmp_path), AnswerTally()
    kept_out = Tombstones([
        _forgotten("acme/helper/bob", "user", user_id="bob"),
        _forgotten("acme/helper/ana", "event",
                   event_keys=(event_key("acme/helper/ana", "ana-0"),)),
    ])  # fmt: skip
    chat = CountedChat(PretendedChat("m", count_tokens), tally)
    found, _ = estimated(log, chat, kept_out=kept_out)
    assert (found.events, found.forgotten) == (13, 7)
    assert (found.windows, found.windows_kept_out, found.windows_changed) == (3, 2, 1)
    assert (found.asks, tally.asked) == (2, 2)


def _forgotten(scope: str, target: str, **fields: object) -> Tombstone:
    given = {"tombstone_id": scope, "kind": "forget", "target": target, "scope": scope,
             "request_id": scope, "requested_at": at(10_000), "topic": "t", "partition": 0,
             "offset": 0, **fields}  # fmt: skip
    return Tombstone.model_validate(given)


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
    found, _ = estimated(log, CountedChat(pretended, tally))
    assert (tally.asked, tally.saved) == (0, 10)
    assert (found.telling, found.memories) == (2, 6)
    journal.close()


# --- calls of the stages behind extraction ------------------------------------------------------

PACE = Pace()


def calls(found: Estimate, **fields: int) -> dict[str, StageCalls]:
    given = {"unrecorded": 0, "splits_recorded": 0, "splits_asked": 0, **fields}
    models = Models(writes=True, pace=PACE, steps=20, atoms=10, every=5)
    return {one.stage: one for one in stage_calls(found, models=models, **given)}


def test_every_stage_is_named_and_estimates_are_called_that() -> None:
    """Ten windows a day apart in two scopes, half of them recorded."""
    days = [at(86_400 * day) for day in range(5)]
    found = Estimate(windows=10, asks=10, telling=4, memories=12, jobs={"a": days, "b": days})
    asked = calls(found, unrecorded=5, splits_recorded=1, splits_asked=1)
    assert list(asked) == ["extract", "gate_split", "reconcile", "scenes", "persona"]
    assert [one.stage for one in asked.values() if not one.estimated] == ["extract"]
    assert (asked["extract"].calls, asked["extract"].recorded) == (5, 5)
    # Two of five recorded windows were split: so two of the other five, and one to be asked.
    assert (asked["gate_split"].calls, asked["gate_split"].most) == (3, 6)
    # Four of five tell something: so do four of the others; the first of a scope asks nothing.
    assert asked["reconcile"].calls == 4 + 4 - 2
    assert (asked["scenes"].least, asked["scenes"].calls, asked["scenes"].most) == (10, 40, 200)
    assert (asked["persona"].least, asked["persona"].calls) == (2, 2 + 24 // 5)
    for one in asked.values():
        assert one.least <= one.calls <= one.most


def test_what_is_all_recorded_is_counted_where_it_can_be() -> None:
    found = Estimate(windows=3, asks=3, telling=3, memories=3, jobs={"a": [at(0), at(1), at(2)]})
    asked = calls(found, splits_recorded=2)
    assert not asked["gate_split"].estimated
    assert (asked["gate_split"].calls, asked["gate_split"].recorded) == (0, 2)
    assert asked["scenes"].least == 1, "three windows within a second are one run"


def test_nothing_found_costs_nothing() -> None:
    assert {one.calls for one in calls(Estimate()).values()} == {0}


def test_rules_that_write_scenes_ask_nobody() -> None:
    asked = stage_calls(
        Estimate(), unrecorded=0, splits_recorded=0, splits_asked=0,
        models=Models(writes=False, pace=PACE),
    )  # fmt: skip
    assert [one.stage for one in asked] == ["extract", "gate_split", "reconcile"]


def test_answers_still_to_come_are_taken_to_be_as_long_as_those_there_are() -> None:
    tally = AnswerTally()
    tally.count(ChatAnswer("", "m", 100, 30, 0.0, recorded=True))
    tally.count(ChatAnswer("", "m", 100, 10, 0.0, recorded=True))
    tally.count(ChatAnswer("", "m", 500, 0, 0.0, "pretended"))
    assert tokens_to_ask(tally) == 500 + 20

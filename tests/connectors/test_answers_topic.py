"""Answers that are recorded are in the topic, and in it first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from connectors.answers_topic import PublishedAnswers
from connectors.filelog import FileLog
from connectors.log import EndAt, StartAt
from flows.runner import SystemClock
from stores.answers import SqliteAnswers
from stores.errors import ServiceUnavailable
from stores.protocols import ChatAnswer
from stores.records import OutRecord, Position

ANSWER = ChatAnswer("text", "scripted", 10, 5, 0.5)


def test_an_answer_is_published_and_recorded(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", SystemClock())
    journal = SqliteAnswers(tmp_path / "answers.sqlite")
    answers = PublishedAnswers(journal, log, "sediment.answers")
    assert answers.get("h1") is None
    answers.put("h1", "extract-chat/1", ANSWER)
    found = answers.get("h1")
    assert answers.get_many(["none", "h1"]) == [None, found]
    assert found is not None
    assert (found.text, found.recorded) == ("text", True)
    (record,) = log.read("sediment.answers", StartAt.beginning(), EndAt.latest())
    assert record.key == b"h1"
    body = orjson.loads(record.value or b"")
    assert (body["text"], body["prompt_version"], body["model"]) == (
        "text",
        "extract-chat/1",
        "scripted",
    )
    journal.close()


class _DeadLog:
    def append(self, records: Sequence[OutRecord]) -> list[Position]:
        raise ServiceUnavailable(service="kafka", message="down")


def test_an_answer_that_was_not_published_is_not_recorded(tmp_path: Path) -> None:
    journal = SqliteAnswers(tmp_path / "answers.sqlite")
    answers = PublishedAnswers(journal, _DeadLog(), "sediment.answers")
    with pytest.raises(ServiceUnavailable):
        answers.put("h1", "extract-chat/1", ANSWER)
    assert journal.get("h1") is None
    journal.close()


def test_an_answer_that_came_second_is_not_the_last_in_the_topic(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", SystemClock())
    journal = SqliteAnswers(tmp_path / "answers.sqlite")
    answers = PublishedAnswers(journal, log, "sediment.answers")
    answers.put("h1", "extract-chat/1", ANSWER)
    answers.put("h1", "extract-chat/1", replace(ANSWER, text="another"))
    records = list(log.read("sediment.answers", StartAt.beginning(), EndAt.latest()))
    assert orjson.loads(records[-1].value or b"")["text"] == ANSWER.text
    journal.close()


def test_a_forgotten_answer_leaves_the_topic_and_then_the_journal(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", SystemClock())
    journal = SqliteAnswers(tmp_path / "answers.sqlite")
    answers = PublishedAnswers(journal, log, "sediment.answers")
    answers.put("h1", "extract-chat/1", ANSWER, ("e1",))
    answers.put("h2", "extract-chat/1", ANSWER, ("e2",))
    with pytest.raises(ServiceUnavailable):
        PublishedAnswers(journal, _DeadLog(), "sediment.answers").forget(["e1"])
    assert answers.get("h1") is not None, "tried again, it must still be found"
    assert answers.forget(["e1"]) == 1
    assert answers.get("h1") is None
    assert answers.get("h2") is not None
    records = list(log.read("sediment.answers", StartAt.beginning(), EndAt.latest()))
    assert [(one.key, one.value is None) for one in records] == [
        (b"h1", False),
        (b"h2", False),
        (b"h1", True),
    ]
    assert orjson.loads(records[0].value or b"")["about"] == ["e1"]
    assert answers.forget(["e1"]) == 0
    journal.close()

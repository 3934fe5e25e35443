"""The corpus of broken answers: what ends how, and that the difference is seen."""

from __future__ import annotations

import asyncio
import json

import pytest

import flows.extract.llm as extract_llm
from connectors.tokens import count_tokens
from flows.extract.llm import LlmExtractor
from stores.errors import MalformedAnswer
from stores.records import Extraction
from tests.corpus.cases import BROKEN, Case, load, window_of
from tests.rig.fake_chat import FakeChat

CASES = load(BROKEN)
USED = [case for case in CASES if case["end"] == "used"]
ASKED_AGAIN = [case for case in CASES if case["end"] == "asked_again"]
WINDOW = window_of({"said": [["user", "I play the oboe in a small orchestra and live in Turku."]]})
GOOD = json.dumps(
    {"memories": [{"text": "User lives in Turku", "type": "persona", "sources": ["m1"]}]}
)


def ask(*answers: str, finish: str = "stop", error: str | None = None) -> Extraction:
    extractor = LlmExtractor(FakeChat(*answers, finish=finish), count_tokens=count_tokens)
    return asyncio.run(extractor.extract(WINDOW, error))


@pytest.mark.parametrize("case", USED, ids=lambda case: str(case["id"]))
def test_a_usable_answer_is_used_and_no_more_than_it_says(case: Case) -> None:
    extraction = ask(case["output"])
    assert [memory.text for memory in extraction.memories] == case["keep"]
    assert [refused.reason for refused in extraction.refused] == case["refused"]
    for memory in extraction.memories:
        memory.text.encode()


@pytest.mark.parametrize("case", ASKED_AGAIN, ids=lambda case: str(case["id"]))
def test_no_answer_is_never_nothing_to_remember(case: Case) -> None:
    finish = case.get("finish", "stop")
    with pytest.raises(MalformedAnswer) as first:
        ask(case["output"], finish=finish)
    again = ask(GOOD, error=first.value.message)
    assert [memory.text for memory in again.memories] == ["User lives in Turku"]


def test_an_answer_that_stays_broken_is_given_up_and_names_its_attempts() -> None:
    for case in ASKED_AGAIN:
        if case["id"].startswith("wrong-language"):
            continue  # refused as a memory the second time; the rest of the answer stands
        error: str | None = None
        for attempt in (1, 2, 3):
            with pytest.raises(MalformedAnswer, match=f"answer {attempt} to request 1") as caught:
                ask(case["output"], finish=case.get("finish", "stop"), error=error)
            error = caught.value.message


def test_the_corpus_is_large_and_every_kind_of_end_is_in_it() -> None:
    assert len(CASES) >= 60
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert min(len(USED), len(ASKED_AGAIN)) >= 25
    assert len({reason for case in USED for reason in case["refused"]}) >= 7


def test_a_plain_parser_would_lose_the_forgiven_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_llm, "parse_json_answer", _plain)
    lost = {case["id"] for case in USED if not _same(case)}
    assert {
        "fenced",
        "prose-before",
        "thoughts",
        "trailing-comma",
        "single-quotes",
        "unescaped-quotes",
        "raw-newline-in-text",
        "lone-surrogate-high",
        "twice-the-same",
    } <= lost


def test_an_error_read_as_empty_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_llm, "parse_json_answer", lambda _text: {"memories": []})
    swallowed = [case["id"] for case in ASKED_AGAIN if _swallowed(case)]
    assert len(swallowed) == len(ASKED_AGAIN) - 1  # all but the one that says it was cut off


def _plain(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return {"memories": []}


def _same(case: Case) -> bool:
    extraction = ask(case["output"])
    return bool([memory.text for memory in extraction.memories] == case["keep"])


def _swallowed(case: Case) -> bool:
    try:
        ask(case["output"], finish=case.get("finish", "stop"))
    except MalformedAnswer:
        return False
    return True

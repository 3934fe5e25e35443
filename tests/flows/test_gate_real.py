"""The quality gate on real conversations: nothing in them is a secret or an order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import orjson
import pytest

from flows.gate import GatePolicy, Subject, examine
from stores.records import Memory
from tests.rig.needs import shared_data

pytestmark = pytest.mark.shared


def _locomo() -> Iterator[str]:
    for conversation in orjson.loads(shared_data("locomo/locomo10.json").read_bytes()):
        for name, session in conversation["conversation"].items():
            if name.startswith("session_") and not name.endswith("date_time"):
                yield from (turn["text"] for turn in session)


def _memorybank(language: str) -> Iterator[str]:
    path = shared_data(f"memorybank/memory_bank_{language}.json")
    for user in orjson.loads(path.read_bytes()).values():
        for day in user["history"].values():
            yield from (turn["query"] for turn in day)


def _personamem() -> Iterator[str]:
    for line in shared_data("personamem/shared_contexts_32k.jsonl").read_bytes().splitlines():
        for messages in orjson.loads(line).values():
            yield from (one["content"] for one in messages if one["role"] == "user")


@pytest.mark.parametrize(
    "said",
    [_locomo, lambda: _memorybank("cn"), lambda: _memorybank("en"), _personamem],
    ids=["locomo", "memorybank-zh", "memorybank-en", "personamem"],
)
def test_nothing_of_real_conversations_is_taken_for_a_secret_or_an_order(
    said: Callable[[], Iterator[str]],
) -> None:
    texts = list(dict.fromkeys(said()))
    assert len(texts) > 500
    refused = [
        (finding.rule, text)
        for text in texts
        for finding in examine(Subject.of(Memory(text, "persona", 60, ("u1",))), GatePolicy())
        if finding.rule in {"secret", "instruction_like", "human_authority"}
    ]
    assert refused == []

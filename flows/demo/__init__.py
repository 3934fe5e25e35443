"""The conversation that ships with Sediment, and what should be remembered from it.

Three people talk to a companion over seven weeks, in English and Chinese. Facts are corrected
later, standing requests are made, and much is said that nobody should keep: small talk, a
quotation, a joke, a password, a guess of the assistant, a recalled memory that the host injected.
All of it is invented for this project.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CONVERSATION", "Demo", "DemoQuestion", "load_demo"]

CONVERSATION = Path(__file__).with_name("conversation.jsonl")
"""Native L0 events, one a line, ordered by ``occurred_at``."""

_QUESTIONS = Path(__file__).with_name("questions.json")


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A recall question about the demo conversation.

    :arg language: ``en`` or ``zh``.
    :arg expect: phrase that the text of a right answer holds.
    :arg not_active: phrase of the value that was corrected; no active memory may hold it.
    """

    id: str
    tenant: str
    agent: str
    user: str
    language: str
    question: str
    expect: str
    not_active: str | None


@dataclass(frozen=True, slots=True)
class Demo:
    """What to ask about the conversation, and what it must leave behind.

    :arg must_remember: phrases that some memory of the user holds, by user id; superseded
        memories count.
    :arg must_not_remember: phrases that no memory of the user holds, by user id.
    """

    questions: tuple[DemoQuestion, ...]
    must_remember: dict[str, tuple[str, ...]]
    must_not_remember: dict[str, tuple[str, ...]]


def load_demo() -> Demo:
    """Read the questions and expectations that ship with the conversation."""
    content = json.loads(_QUESTIONS.read_text(encoding="utf-8"))
    return Demo(
        questions=tuple(DemoQuestion(**question) for question in content["questions"]),
        must_remember={user: tuple(some) for user, some in content["must_remember"].items()},
        must_not_remember={
            user: tuple(some) for user, some in content["must_not_remember"].items()
        },
    )

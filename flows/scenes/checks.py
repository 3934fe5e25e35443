"""What no text of memory may hold, whoever wrote it: secrets, and values a person rejected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from flows.gate.secrets import secret
from flows.gate.subject import Subject, plain
from stores.protocols import KeptOut

__all__ = ["Refusal", "refusals"]

_MARKS = " \t-*+>#|_`"
_DATES = re.compile(r"\s*[((]\d{4}-\d\d-\d\d[^()()]*[))]\s*$")
_SENTENCE = re.compile(r"[^.!?。！？;；]+[.!?。！？;；]?")


class Refusal(NamedTuple):
    """Why a text is refused. ``detail`` is for the model and quotes nothing."""

    reason: str
    detail: str


def refusals(scope: str, text: str, kept_out: KeptOut | None) -> list[Refusal]:
    """Give what is wrong with a text, in order of lines; nothing when it may be kept."""
    found: list[Refusal] = []
    whole = plain(text)
    kind = secret(Subject("persona", whole, whole))
    if kind is not None:
        found.append(Refusal("secret", f"it holds a secret ({kind}); leave it out"))
    if kept_out is None:
        return found
    for number, line in enumerate(text.splitlines(), start=1):
        if any(kept_out.rejects(scope, said) for said in _statements(line)):
            detail = f"line {number} states a value that a person marked as wrong; leave it out"
            found.append(Refusal("rejected_value", detail))
    return found


def _statements(line: str) -> Iterator[str]:
    said = _DATES.sub("", line.strip(_MARKS))
    if said:
        yield said
        yield from (part.strip() for part in _SENTENCE.findall(said) if part.strip() != said)

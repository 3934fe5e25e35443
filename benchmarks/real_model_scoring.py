"""What a real model made of a case of the corpus, against what the case asks for.

A case was written for scripted answers, and a model has its own words. So texts are compared by
their terms: a memory tells a fact when it has most of the fact's terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.reconcile.candidates import terms_of

__all__ = ["Asked", "Score", "asked_of", "score"]

_TELLS = 0.6
"""Share of a fact's terms from which a memory tells it."""
_REPEATS = 0.75
"""Likewise, for what must not be told: nearer, since the true fact beside it is often alike."""
_LONGER = 1.5  # a memory with so many more terms says something else: a condition, a doubt
_FIELDS = {"type": "type", "start": "start", "until": "until", "said_by": "said_by"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a case asks of any model.

    :arg required: memories that must be active at the end, with fields to compare.
    :arg forbidden: facts that no active memory may tell.
    :arg never: pieces of text that no memory may hold.
    """

    required: tuple[Mapping[str, Any], ...]
    forbidden: tuple[str, ...]
    never: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """How a case went. It is right when nothing is missed and nothing forbidden was kept.

    :arg missed: required texts that no memory tells.
    :arg kept: forbidden texts or pieces that a memory tells.
    :arg fields: names of fields that differ on memories that were found.
    """

    missed: tuple[str, ...]
    kept: tuple[str, ...]
    fields: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Say whether the case is right."""
        return not self.missed and not self.kept


def asked_of(case: Mapping[str, Any]) -> Asked:
    """Read what a case asks for.

    What stands at the end of a slot is required, what stood there before forbidden. What the
    scripted model was made to say and the case does not keep is forbidden too.
    """
    expected: Sequence[Mapping[str, Any]] = case.get("wanted", case.get("keep", case.get("rules")))
    newest = set(case.get("last_of_slot", {}).values())
    slots = set(case.get("last_of_slot", {}))
    outdated = [one["text"] for one in expected if one.get("slot") in slots - {None}]
    outdated = [text for text in outdated if text not in newest]
    required = tuple(one for one in expected if one["text"] not in outdated)
    texts = {one["text"] for one in expected}
    scripted = [
        memory["text"]
        for answer in case.get("answers", ())
        if isinstance(answer, dict)
        for memory in answer.get("memories", ())
        if isinstance(memory, dict) and isinstance(memory.get("text"), str)
    ]
    never = (*case.get("hidden", ()), *case.get("never", ()))
    forbidden = case.get("unwanted", [text for text in scripted if text not in texts])
    return Asked(required, (*outdated, *forbidden), never)


def score(asked: Asked, active: Sequence[Mapping[str, Any]], all_texts: Sequence[str]) -> Score:
    """Compare the active memories with what was asked for.

    :arg all_texts: texts of all memories that were stored, active or not.
    """
    terms = [set(terms_of(one["text"])) for one in active]
    missed: list[str] = []
    fields: list[str] = []
    telling: set[int] = set()
    for one in asked.required:
        wanted = set(terms_of(one["text"]))
        found = max(range(len(active)), key=lambda n: _share(wanted, terms[n]), default=None)
        if found is None or _share(wanted, terms[found]) < _TELLS:
            missed.append(one["text"])
            continue
        telling.add(found)
        fields += [
            name for name in _FIELDS if name in one and one[name] != active[found][_FIELDS[name]]
        ]
    kept = [
        text
        for text in asked.forbidden
        if any(
            number not in telling and _repeats(set(terms_of(text)), told)
            for number, told in enumerate(terms)
        )
    ]
    small = [text.casefold() for text in all_texts]
    kept += [piece for piece in asked.never if any(piece.casefold() in text for text in small)]
    return Score(tuple(missed), tuple(kept), tuple(fields))


def _share(wanted: set[str], told: set[str]) -> float:
    return len(wanted & told) / len(wanted) if wanted else 0.0


def _repeats(unwanted: set[str], told: set[str]) -> bool:
    return _share(unwanted, told) >= _REPEATS and len(told) <= _LONGER * len(unwanted)

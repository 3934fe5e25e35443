"""What a benchmark is made of, whatever file it came from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal

from stores.records import Role

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Dataset",
    "Half",
    "HalfChoice",
    "History",
    "Message",
    "Question",
    "chosen",
    "cuts_of",
    "half_by_hash",
    "hash_of_file",
]

Benchmark = Literal["personamem", "locomo", "longmemeval"]
BENCHMARKS: tuple[Benchmark, ...] = ("personamem", "locomo", "longmemeval")
Half = Literal["dev", "held-out"]
HalfChoice = Literal["dev", "held-out", "all"]
_HALF_OF_A_BYTE = 128


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a history.

    :arg event_id: made of the data's own ids and places, so that it names no text.
    :arg name: what the speaker goes by; empty where the data has roles only.
    """

    event_id: str
    session_id: str
    role: Role
    text: str
    said_at: datetime
    name: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """A conversation, or all conversations of one person: one scope of memory, in order."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One question, asked after the first ``visible`` messages of its history.

    :arg answer: the gold answer; with ``options`` the letter of the right one.
    :arg options: as the data gives them, letters included; empty for a free answer.
    :arg evidence: units that must be found; any event of a unit will do. Empty where the data
        names none.
    :arg abstain: the right answer is that the history does not tell.
    :arg scored: counts in the summary; the others are reported apart.
    """

    id: str
    type: str
    text: str
    history_id: str
    visible: int
    asked_at: datetime
    answer: str
    half: Half
    options: tuple[str, ...] = ()
    evidence: tuple[frozenset[str], ...] = ()
    abstain: bool = False
    scored: bool = True


@dataclass(frozen=True, slots=True)
class Dataset:
    """A benchmark as it was read.

    :arg half_rule: in words, which questions are development and which are held out.
    :arg notes: what of the data was made up or derived, in words.
    """

    name: Benchmark
    histories: Mapping[str, History]
    questions: tuple[Question, ...]
    files: tuple[Path, ...]
    half_rule: str
    notes: tuple[str, ...] = ()

    def visible(self, question: Question) -> tuple[Message, ...]:
        """Give what may be known when the question is asked, and nothing later."""
        return self.histories[question.history_id].messages[: question.visible]


def chosen(dataset: Dataset, half: HalfChoice, limit: int | None) -> Dataset:
    """Keep the questions of one half, the first ``limit`` of them, and their histories."""
    questions = [one for one in dataset.questions if half in ("all", one.half)][:limit]
    needed = {one.history_id for one in questions}
    histories = {name: one for name, one in dataset.histories.items() if name in needed}
    return replace(dataset, questions=tuple(questions), histories=histories)


def cuts_of(questions: Iterable[Question]) -> list[dict[str, int]]:
    """Cut histories into rounds: in each, every history goes on to its next question.

    Gives for each round the messages by history that are known in it. A question belongs to
    the round in which its history is known exactly as far as it may see.
    """
    wanted: dict[str, set[int]] = {}
    for one in questions:
        wanted.setdefault(one.history_id, set()).add(one.visible)
    cuts = {name: sorted(places) for name, places in wanted.items()}
    rounds = max(map(len, cuts.values()), default=0)
    return [
        {name: places[number] for name, places in cuts.items() if number < len(places)}
        for number in range(rounds)
    ]


def half_by_hash(unit: str) -> Half:
    """Put a unit into a half by the hash of its id: half of them each, the same for ever.

    >>> half_by_hash("a"), half_by_hash("c")
    ('held-out', 'dev')
    """
    return "dev" if sha256(unit.encode()).digest()[0] < _HALF_OF_A_BYTE else "held-out"


def hash_of_file(path: Path) -> str:
    """Give the SHA-256 of a file."""
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

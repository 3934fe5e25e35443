"""Generations: whole memories side by side, made from the same events, and which one counts.

A generation has collections, topics, snapshots and folders of its own; the events, the recorded
answers, what was forgotten, and this register are shared. The first generation has no name in
topics and collections, so that everything of it is called as before; people call it ``main``.

Two kinds of record in one compacted topic, each whole in itself:

- ``generation:<name>``: what a generation was made of, and how far it is (:class:`Generation`);
- ``current``: which generation recall reads, and which ones it read before (:class:`Pointer`).
  Writing that one record is the whole of a promotion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, ValidationError

from stores.errors import UserError
from stores.records import Contract, LogRecord, OutRecord

__all__ = [
    "MAIN",
    "POINTER_KEY",
    "SHARED_TOPICS",
    "AnswerMode",
    "Generation",
    "Generations",
    "Pointer",
    "check_generation_name",
    "generation_record",
    "pointer_record",
    "read_pointer",
]

MAIN = "main"
"""What people call the first generation, the one without a name in topics and collections."""

SHARED_TOPICS = frozenset({"l0.events", "answers", "tombstones", "generations"})
"""Topics that all generations have in common, without the prefix."""

POINTER_KEY = b"current"
_MANIFEST_KEY = "generation:"
_NAME = re.compile(r"[a-z0-9-]{1,32}")
_REMEMBERED_PROMOTIONS = 10

AnswerMode = Literal["recorded", "fresh", "missing"]
"""Where a replay takes a model's answers from. ``recorded``: the journal, and nothing else.
``missing``: the journal, and the model where it has none. ``fresh``: the model; they are kept
apart from the journal's other answers and stay this generation's own."""


def check_generation_name(name: str) -> str:
    """Give ``name``. Raises ``ValueError`` when it is not one that topics and folders can have.

    >>> check_generation_name("v2-better-prompt")
    'v2-better-prompt'
    """
    if not _NAME.fullmatch(name):
        message = f"{name!r} is no name of a generation: use 1 to 32 of a-z, 0-9 and -"
        raise ValueError(message)
    return name


class Generation(Contract):
    """What a generation was made of, and how far it is.

    Everything down to ``settings`` decides what comes out: a replay that goes on with the
    generation must be asked for with the same.
    """

    v: Literal[1] = 1
    name: str
    start: str = Field(default="beginning", description="Where in the events topic it begins.")
    end: str = Field(default="end", description="Where it ends; `end` can be gone on from.")
    scope: dict[str, str] = Field(
        default_factory=dict, description="Ids that its events have; empty means all events."
    )
    answers: AnswerMode = "missing"
    extractor: str = Field(default="", description="Version of what extracts.")
    windows: str = Field(default="", description="When windows close, in words.")
    settings: dict[str, str] = Field(
        default_factory=dict,
        description="Every other setting that decides what comes out, by name; empty in a "
        "generation of an older version.",
    )
    pipeline: str = Field(default="", description="Version of the pipeline that began it.")
    created_from: str = Field(default=MAIN, description="Generation that was current then.")
    state: Literal["building", "ready", "dropped"] = "building"
    problem: str = Field(default="", description="Why its last replay stopped; empty: it did not.")

    def differences(self, asked: Generation) -> tuple[str, ...]:
        """Say in what a request for a replay differs from what this generation is made of."""
        lines = []
        for field, word in _DECIDING.items():
            was, now = getattr(self, field), getattr(asked, field)
            if was != now:
                lines.append(f"{word} was {_said(was)}, now {_said(now)}")
        if self.settings and asked.settings:
            for name in sorted({*self.settings, *asked.settings}):
                was, now = self.settings.get(name, ""), asked.settings.get(name, "")
                if was != now:
                    lines.append(f"{name} was {_said(was)}, now {_said(now)}")
        return tuple(lines)

    def whole(self) -> bool:
        """Say whether it is meant to hold every event there is."""
        return self.start == "beginning" and not self.scope


_DECIDING = {
    "start": "--from",
    "end": "--to",
    "scope": "the scope",
    "answers": "--answers",
    "extractor": "the extractor",
    "windows": "the window settings",
}


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items()) or "all"
    return str(value) or "none"


class Pointer(Contract):
    """Which generation recall reads.

    :arg previous: the ones it read before, the latest last, to go back to.
    """

    v: Literal[1] = 1
    current: str = MAIN
    previous: tuple[str, ...] = ()

    def to(self, name: str) -> Pointer:
        """Point to ``name``; the one that was current can be gone back to."""
        kept = [*(one for one in self.previous if one != name), self.current]
        return Pointer(current=name, previous=tuple(kept[-_REMEMBERED_PROMOTIONS:]))

    def back(self) -> Pointer:
        """Point to the previous one. Raises ``UserError`` when there is none."""
        if not self.previous:
            message = f"{self.current} is the first generation that was current: nothing to undo"
            raise UserError(message)
        return Pointer(current=self.previous[-1], previous=self.previous[:-1])

    def without(self, name: str) -> Pointer:
        """Take a generation that is gone out of those to go back to."""
        return self.model_copy(
            update={"previous": tuple(one for one in self.previous if one != name)}
        )


@dataclass(frozen=True)
class Generations:
    """All generations as the topic tells them."""

    pointer: Pointer
    manifests: Mapping[str, Generation]

    @classmethod
    def of(cls, records: Iterable[LogRecord]) -> Generations:
        """Read the topic's records, each key's in its order. What is not ours is passed over."""
        pointer, manifests = Pointer(), {MAIN: Generation(name=MAIN, state="ready")}
        for record in records:
            if (found := read_pointer(record)) is not None:
                pointer = found
            elif (record.key or b"").startswith(_MANIFEST_KEY.encode()):
                try:
                    generation = Generation.model_validate_json(record.value or b"")
                except ValidationError:
                    continue
                manifests[generation.name] = generation
        return cls(pointer, manifests)

    @property
    def current(self) -> str:
        """Name the generation that recall reads."""
        return self.pointer.current

    def state(self, name: str) -> str:
        """Give a generation's state: ``promoted`` when it is current, else as its manifest says."""
        return "promoted" if name == self.current else self.manifests[name].state

    def get(self, name: str) -> Generation:
        """Give a generation's manifest. Raises ``UserError`` when there is none, or it is gone."""
        found = self.manifests.get(name)
        if found is None or found.state == "dropped":
            what = "was dropped" if found else "does not exist"
            message = f"generation {name} {what}; `sediment generations list` shows what there is"
            raise UserError(message)
        return found

    def standing(self) -> list[Generation]:
        """Give the generations that were not dropped: ``main``, then by name."""
        names = sorted(self.manifests, key=lambda name: (name != MAIN, name))
        return [self.manifests[name] for name in names if self.manifests[name].state != "dropped"]


def read_pointer(record: LogRecord) -> Pointer | None:
    """Read a record of the topic that is the pointer; ``None`` for any other one."""
    if record.key != POINTER_KEY:
        return None
    try:
        return Pointer.model_validate_json(record.value or b"")
    except ValidationError:
        return None


def pointer_record(topic: str, pointer: Pointer) -> OutRecord:
    """Build the record that makes ``pointer`` the one that counts."""
    return OutRecord(topic, POINTER_KEY, pointer.model_dump_json().encode())


def generation_record(topic: str, generation: Generation) -> OutRecord:
    """Build the record that keeps a generation's manifest."""
    key = f"{_MANIFEST_KEY}{generation.name}".encode()
    return OutRecord(topic, key, generation.model_dump_json(exclude_none=True).encode())

"""One generation of a scope's files, and the pointer to the current one: as data and as JSON.

Pure: the folder reads and writes the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256

import orjson
from pydantic import TypeAdapter

__all__ = ["EMPTY", "Applied", "Change", "Generation", "Pointer", "digest"]


@dataclass(frozen=True, slots=True)
class Change:
    """Why a generation is made.

    :arg at: event time of the job, or when a person did it.
    :arg author: model and prompt version, ``rules/1``, ``person``.
    :arg reason: in a few words, for the history.
    :arg jobs: ids of the jobs that this applies; the first names the run as a whole.
    :arg moved: names that are gone, and the name that took their place (and their heat).
    """

    at: datetime
    author: str
    reason: str
    jobs: tuple[str, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Generation:
    """One state of a scope's folder, never changed once it is current.

    :arg number: from 1; 0 is the empty state before the first.
    :arg base: the one it was made from.
    :arg token: fencing token of who made it; for a person's change, the newest then seen.
    :arg versions: for each file, the generation that changed it last.
    :arg digests: for each file, SHA-256 of its bytes.
    """

    number: int
    base: int
    token: int
    change: Change | None
    versions: Mapping[str, int]
    digests: Mapping[str, str]

    def to_json(self) -> bytes:
        """Write the manifest, the same bytes for the same generation."""
        return orjson.dumps(self, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, data: bytes) -> Generation:
        """Read a manifest; raises ``ValueError`` when it is none."""
        return _GENERATION.validate_json(data)


EMPTY = Generation(0, 0, 0, None, {}, {})
"""The state of a scope that has no files yet."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a job: enough to tell others of its run once more.

    :arg generation: what it ended in; runs that changed nothing share it with the one before.
    :arg run: the run that applied it, alone or with others.
    :arg asks: what the run asks the persona stage for, in words; empty when nothing.
    """

    generation: int
    run: str
    asks: str = ""


@dataclass(frozen=True, slots=True)
class Pointer:
    """What is current. One small file, replaced by one rename.

    :arg token: the newest fencing token that was shown here.
    :arg jobs: applied jobs, oldest first.
    """

    generation: int = 0
    token: int = 0
    jobs: Mapping[str, Applied] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Write it. The order of ``jobs`` is kept."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> Pointer:
        """Read it; raises ``ValueError`` when it is none."""
        return _POINTER.validate_json(data)

    def after(
        self, generation: int, jobs: tuple[str, ...], remembered: int, asks: str = ""
    ) -> Pointer:
        """Point to a generation and remember its jobs, the newest ``remembered`` of all."""
        known = {job: applied for job, applied in self.jobs.items() if job not in set(jobs)}
        if jobs:
            known |= dict.fromkeys(jobs, Applied(generation, jobs[0], asks))
        kept = dict(list(known.items())[-remembered:]) if remembered else {}
        return replace(self, generation=generation, jobs=kept)

    def without_words(self) -> Pointer:
        """Leave out what runs asked for: it may tell what is to be forgotten."""
        jobs = {job: replace(applied, asks="") for job, applied in self.jobs.items()}
        return replace(self, jobs=jobs)


_GENERATION = TypeAdapter(Generation)
_POINTER = TypeAdapter(Pointer)


def digest(data: bytes) -> str:
    """Give the SHA-256 of a file's bytes."""
    return sha256(data).hexdigest()

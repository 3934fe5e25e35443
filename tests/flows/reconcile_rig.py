"""Stand-ins for tests of reconcile: a store in memory that can fail, windows, a scripted model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from flows.reconcile import NewAtoms, Reconciler, StoredAtoms
from stores.errors import SedimentError, ServiceUnavailable, Terminal
from stores.ids import event_key
from stores.protocols import ChatAnswer, ChatRequest, Vectors
from stores.records import Atom, SourcedEvent, Tombstone, Window
from stores.value_keys import value_keys
from tests.rig import reconcile_script
from tests.rig.events import at, sourced
from tests.rig.scripted_llm import bag_of_words

__all__ = [
    "Answering",
    "Journal",
    "KeptOutOf",
    "MemoryStore",
    "Words",
    "decide",
    "forget_request",
    "item",
    "readable",
    "reject_request",
    "run",
    "shown",
]

SCOPE = "acme/helper/ana"
DIMENSION = 64
_FENCED = re.compile(r"<(known|new)>\n(.*?)\n?</\1>", re.DOTALL)


class Words:
    """Embeds by words: the same words are near."""

    name = "words"
    dimension = DIMENSION

    def __init__(self) -> None:
        self.calls = 0

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        self.calls += 1
        return np.stack([bag_of_words(text, DIMENSION) for text in texts])

    async def embed_query(self, text: str) -> Vectors:
        return bag_of_words(text, DIMENSION)


class MemoryStore:
    """Atoms in a dict. ``fail_before`` and ``fail_after`` make the next write raise."""

    def __init__(self) -> None:
        self.atoms: dict[str, Atom] = {}
        self.vectors: dict[str, Vectors] = {}
        self.reads = self.writes = 0
        self.fail_before: Exception | None = None
        self.fail_after: Exception | None = None

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        self._fail("fail_before")
        self.writes += 1
        self.atoms |= {one.atom_id: one for one in atoms}
        self.vectors |= {one.atom_id: row for one, row in zip(atoms, vectors, strict=True)}
        self._fail("fail_after")

    def delete_atoms(self, scope: str, atom_ids: Sequence[str]) -> None:
        self._fail("fail_before")
        for atom_id in atom_ids:
            self.atoms.pop(atom_id, None)
            self.vectors.pop(atom_id, None)
        self._fail("fail_after")

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        self.reads += 1
        kept = [one for one in self.atoms.values() if one.scope == scope]
        return sorted(kept, key=lambda one: (one.occurred_at, one.atom_id))

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        return self.atoms.get(atom_id)

    def vectors_of(self, scope: str, atom_ids: Sequence[str]) -> Vectors:
        if not set(atom_ids) <= set(self.vectors):
            message = "no vectors"
            raise Terminal(message)
        return np.stack([self.vectors[one] for one in atom_ids])

    def _fail(self, name: str) -> None:
        error = getattr(self, name)
        setattr(self, name, None)
        if error is not None:
            raise error


class Journal:
    """Records the answers of a model, as the real client does."""

    def __init__(self, chat: Answering) -> None:
        self.name = chat.name
        self.chat = chat
        self.answers: dict[str, ChatAnswer] = {}

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        key = request.request_hash()
        if key in self.answers:
            return replace(self.answers[key], recorded=True)
        self.answers[key] = await self.chat.complete(request)
        return self.answers[key]


Shown = dict[str, list[list[Any]]]


class Answering:
    """A model that answers what a function of the shown lines says."""

    name = "scripted"

    def __init__(self, answer: Callable[[Shown], Any], finish: str = "stop") -> None:
        self.answer = answer
        self.finish = finish
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        self.requests.append(request)
        given = self.answer(shown(request))
        if isinstance(given, SedimentError):
            raise given
        text = given if isinstance(given, str) else orjson.dumps({"decisions": given}).decode()
        return ChatAnswer(text, self.name, 100, 10, 0.5, self.finish)


def shown(request: ChatRequest) -> Shown:
    """Read the lines that a request shows."""
    text = request.messages[-1][1]
    return {
        name: [reconcile_script.line_of(line) for line in body.split("\n") if line]
        for name, body in _FENCED.findall(text)
    }


def decide(action: str, *targets: str, text: str | None = None, memory: str = "n1") -> Any:
    """Give one decision as a model writes it."""
    return {"memory": memory, "action": action, "targets": list(targets), "text": text}


def item(*atoms: Atom, window: str = "", seconds: float | None = None) -> NewAtoms:
    """Give a window with these atoms; its events are theirs, or one at ``seconds``."""
    events: dict[str, SourcedEvent] = {}
    for one in atoms:
        for event_id in one.source_event_ids:
            moment = (one.occurred_at - at(0)).total_seconds()
            events[event_id] = sourced(event_id, seconds=moment)
    if seconds is not None:
        events["clock"] = sourced("clock", seconds=seconds)
    name = window or (atoms[0].window_id if atoms else "empty")
    return NewAtoms(Window(name, SCOPE, "s1", tuple(events.values()), (), "turns"), atoms, (), 1)


def run(work: Reconciler, *items: Any, error: str | None = None) -> list[StoredAtoms]:
    """Run the stage's work on items, one after the other."""

    async def each() -> list[StoredAtoms]:
        return [(await work([one], error))[0] for one in items]

    return asyncio.run(each())


def readable(store: MemoryStore) -> list[str]:
    """Give the texts of the active atoms."""
    return sorted(one.text for one in store.atoms.values() if one.status == "active")


def down() -> ServiceUnavailable:
    """Give the error of a store or model that is not there."""
    return ServiceUnavailable("milvus", "down")


class KeptOutOf:
    """A registry of tombstones in memory."""

    def __init__(self, *tombstones: Tombstone) -> None:
        self.tombstones = list(tombstones)

    def _events(self) -> set[str]:
        return {key for one in self.tombstones if one.kind == "forget" for key in one.event_keys}

    def covers_event(self, sourced: SourcedEvent) -> bool:
        return event_key(sourced.scope, sourced.event.event_id) in self._events()

    def covers_atom(self, atom: Atom) -> bool:
        dead = self._events()
        said = atom.statements or (atom.source_event_ids,)
        return all(any(event_key(atom.scope, one) in dead for one in group) for group in said)

    def rejects(self, scope: str, text: str) -> bool:
        keys = {key for one in self.tombstones if one.kind == "reject" for key in one.text_keys}
        return bool(keys.intersection(value_keys(scope, text)))


def _tombstone(kind: str, target: str, seconds: float, **fields: Any) -> Tombstone:
    given = {
        "tombstone_id": f"{kind}-{target}-{seconds}",
        "kind": kind,
        "target": target,
        "scope": SCOPE,
        "request_id": "r1",
        "requested_at": at(seconds),
        "topic": "t",
        "partition": 0,
        "offset": 1,
    }
    return Tombstone(**(given | fields))


def forget_request(*event_ids: str, seconds: float = 1e6, **fields: Any) -> Any:
    """Give a request to forget events, or what ``fields`` say."""
    from flows.forget.request import Forgetting

    if event_ids:
        fields |= {"event_keys": tuple(event_key(SCOPE, one) for one in event_ids)}
    tombstone = _tombstone("forget", fields.pop("target", "event"), seconds, **fields)
    return Forgetting(sourced("r1", seconds=seconds), tombstone)


def reject_request(*atom_ids: str, seconds: float = 1e6) -> Any:
    """Give a request to reject atoms."""
    from flows.forget.request import Forgetting

    return Forgetting(
        sourced("r1", seconds=seconds),
        _tombstone("reject", "atom", seconds, atom_ids=atom_ids),
    )

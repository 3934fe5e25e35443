"""What the stages ask of the world, as protocols of one to three methods.

Logic takes these as arguments; tests give fakes, wiring gives the real parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stores.ids import content_id, event_key
from stores.records import (
    Atom,
    Extraction,
    IndexedEvent,
    Profile,
    ProfileKind,
    SourcedEvent,
    Window,
)

__all__ = [
    "AnswerJournal",
    "AtomReader",
    "AtomStore",
    "ChatAnswer",
    "ChatModel",
    "ChatRequest",
    "Clock",
    "Embedder",
    "EventIndex",
    "Extractor",
    "Filter",
    "Hit",
    "KeptOut",
    "Neighbours",
    "ProfileStore",
    "SearchArm",
    "Searcher",
    "SeenProfile",
    "Span",
    "UnfinishedWrites",
    "Vectors",
]

Vectors = NDArray[np.float32]
"""Shape (n, dimension), float32, each row of length 1."""


class Clock(Protocol):
    """Tells the time. Tests turn it by hand."""

    def now(self) -> datetime:
        """Give the current time, aware, in UTC."""
        ...


# --- models ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Everything that decides a model's answer; its hash is the key of the recorded answer.

    :arg messages: (role, content) pairs, system first.
    :arg schema: JSON Schema the answer must follow, or ``None`` for free text.
    :arg prompt_version: name and version of the prompt file, e.g. ``extract-chat/1``.
    :arg scope: whose memory it is for; empty when that is not said.
    :arg event_ids: the events of the scope whose text is in it.
    :arg atom_ids: the atoms whose text is in it. What is forgotten takes the answer along; this,
        events and scope decide no answer and are not hashed.
    """

    model: str
    messages: tuple[tuple[str, str], ...]
    prompt_version: str
    schema: dict[str, Any] | None = field(default=None, hash=False)
    max_tokens: int = 4096
    temperature: float = 0.0
    scope: str = field(default="", compare=False)
    event_ids: tuple[str, ...] = field(default=(), compare=False)
    atom_ids: tuple[str, ...] = field(default=(), compare=False)

    @property
    def about(self) -> tuple[str, ...]:
        """Give the keys that the recorded answer is forgotten by. Made for who records it alone."""
        events = (event_key(self.scope, one) for one in self.event_ids)
        return tuple(dict.fromkeys([*filter(None, [self.scope]), *self.atom_ids, *events]))

    def request_hash(self) -> str:
        """Hash the whole request into the id of its recorded answer."""
        import orjson

        body = orjson.dumps(
            [self.model, self.messages, self.prompt_version, self.schema, self.max_tokens,
             self.temperature],
            option=orjson.OPT_SORT_KEYS,
        )  # fmt: skip
        return content_id("answer", body.decode())


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A model's answer.

    :arg recorded: it came from the journal; nothing was asked.
    :arg latency_s: seconds the original call took.
    """

    text: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    latency_s: float
    finish_reason: str = "stop"
    recorded: bool = False


class ChatModel(Protocol):
    """Answers chat requests.

    Raises :class:`~stores.errors.Transient` or :class:`~stores.errors.Terminal`, nothing else.
    """

    name: str

    async def complete(self, request: ChatRequest) -> ChatAnswer:
        """Ask once. Cancelling the task cancels the call."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors of length 1. Finite, never all zero.

    Raises :class:`~stores.errors.Transient` or :class:`~stores.errors.Terminal`, nothing else.
    """

    name: str
    dimension: int

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Embed texts to be found: shape (len(texts), dimension)."""
        ...

    async def embed_query(self, text: str) -> Vectors:
        """Embed a question: shape (dimension,)."""
        ...


class Extractor(Protocol):
    """Finds memories in a window.

    ``version`` is part of every atom id: change it whenever the same window could give other
    memories. Raises ``Transient`` or ``Terminal``; "no memories" is an empty ``Extraction``,
    never an error, and an error is never an empty one.
    """

    version: str

    async def extract(self, window: Window, previous_error: str | None) -> Extraction:
        """Extract once; ``previous_error`` says what was wrong with the last answer."""
        ...


# --- stores ----------------------------------------------------------------------------------


class AnswerJournal(Protocol):
    """Recorded answers, by request hash. Thread-safe; calls take well under a millisecond."""

    def get(self, request_hash: str) -> ChatAnswer | None:
        """Give the recorded answer, with ``recorded=True``, or ``None``."""
        ...

    def get_many(self, request_hashes: Sequence[str]) -> list[ChatAnswer | None]:
        """Give what :meth:`get` gives for each, in one go to the store."""
        ...

    def put(
        self,
        request_hash: str,
        prompt_version: str,
        answer: ChatAnswer,
        about: Sequence[str] = (),
    ) -> None:
        """Record an answer, durably, before anybody uses it. The first one written stays.

        :arg about: as in :class:`ChatRequest`.
        """
        ...

    def forget(self, about: Sequence[str]) -> int:
        """Delete every answer that is about any of these, and say how many. Idempotent."""
        ...


class EventIndex(Protocol):
    """Where L0 events become searchable. Blocking; call it from a thread."""

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        """Write events with their vectors, idempotent by (scope, event id)."""
        ...

    def delete_events(self, scope: str, event_ids: Sequence[str]) -> None:
        """Delete events with text and vectors; those that are not there are no error."""
        ...

    def events_of(self, scope: str, session_id: str | None = None) -> Iterator[IndexedEvent]:
        """Read all events of a scope or session (strong read), in no particular order."""
        ...


class Span(NamedTuple):
    """A stretch of one session, by event time, both ends included."""

    session_id: str
    since: datetime
    until: datetime


class Neighbours(Protocol):
    """Reads what stands around an event. Blocking; call it from a thread."""

    def events_within(self, scope: str, spans: Sequence[Span], where: Filter) -> list[IndexedEvent]:
        """Read events of stretches of sessions, in the order of the log; as fresh as a search."""
        ...


class AtomReader(Protocol):
    """Reads atoms. Blocking; call it from a thread."""

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        """Read all atoms of a scope that were ever written (strong read).

        Ordered by ``occurred_at``, then ``atom_id``.
        """
        ...

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        """Read one atom, or ``None`` when the scope has no such atom."""
        ...


class AtomStore(AtomReader, Protocol):
    """Where atoms are kept. Blocking; call it from a thread."""

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        """Write atoms with their vectors, idempotent by atom id."""
        ...

    def vectors_of(self, scope: str, atom_ids: Sequence[str]) -> Vectors:
        """Read the vectors of atoms (strong read), in the order asked for.

        Raises :class:`~stores.errors.Terminal` when one of them is not there.
        """
        ...

    def delete_atoms(self, scope: str, atom_ids: Sequence[str]) -> None:
        """Delete atoms with text and vectors; those that are not there are no error."""
        ...


class UnfinishedWrites(Protocol):
    """Keeps a note about the write of a scope that has begun. See :mod:`stores.unfinished`."""

    def put(self, notes: Mapping[str, bytes]) -> None:
        """Keep a note for each of these scopes, durably; the one before it goes."""
        ...

    def get(self, scope: str) -> bytes | None:
        """Give the note of a scope, or ``None``."""
        ...

    def clear(self, scopes: Sequence[str]) -> None:
        """Throw their notes away; none is no error."""
        ...


class ProfileStore(Protocol):
    """Where scenes and personas are searched and read. Blocking; call it from a thread."""

    def upsert_profiles(self, profiles: Sequence[Profile], vectors: Vectors) -> None:
        """Write profiles with their vectors, idempotent by profile id.

        A profile that is ``deleted`` is taken out; its vector is not looked at.
        """
        ...

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        """Read the profiles of a scope (strong read), by kind and path."""
        ...

    def get_profile(self, scope: str, kind: ProfileKind, path: str) -> Profile | None:
        """Read one profile, or ``None`` when there is none."""
        ...


class SeenProfile(NamedTuple):
    """A profile with its vector, shape (dimension,), of length 1."""

    profile: Profile
    vector: Vectors


class KeptOut(Protocol):
    """What was forgotten or rejected. Thread-safe; answers from memory."""

    def covers_event(self, sourced: SourcedEvent) -> bool:
        """Say whether a forget request covers this event, so that it must not be used."""
        ...

    def covers_atom(self, atom: Atom) -> bool:
        """Say whether nothing is left that this atom may stand on, or it was itself forgotten."""
        ...

    def rejects(self, scope: str, text: str) -> bool:
        """Say whether a person marked a value with this normalised text as wrong."""
        ...


SearchArm = Literal["dense", "keyword"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Narrows a search inside its scope. Empty means everything.

    :arg only_active: leave out atoms that are not active (ignored for other layers).
    :arg types: atoms of these types, or profiles of these kinds, only (ignored for events).
    :arg as_of: atoms that held at this time: begun by then and not yet ended, whatever their
        status is now but ``rejected`` (ignored for other layers).
    """

    session_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    only_active: bool = True
    types: tuple[str, ...] = ()
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One search hit. ``score`` is comparable only within one arm of one search."""

    id: str
    score: float
    record: Atom | IndexedEvent | Profile


class Searcher(Protocol):
    """Searches one layer of one scope. Blocking; call it from a thread.

    ``layer`` is ``"atoms"``, ``"events"`` or ``"profiles"``. Never returns another scope's
    records and never more than ``limit``. Raises ``ServiceUnavailable`` when the store is down.
    """

    def search_dense(
        self, layer: str, scope: str, vector: Vectors, limit: int, where: Filter
    ) -> list[Hit]:
        """Nearest by cosine, best first."""
        ...

    def search_keyword(
        self, layer: str, scope: str, text: str, limit: int, where: Filter
    ) -> list[Hit]:
        """Best by BM25, best first; empty on a store without full-text search."""
        ...

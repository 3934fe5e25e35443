"""What the stages ask of the world, as protocols of one to three methods.

Logic takes these as arguments; tests give fakes, wiring gives the real parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from stores.ids import content_id
from stores.records import Atom, Extraction, IndexedEvent, Window

__all__ = [
    "AnswerJournal",
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
    "SearchArm",
    "Searcher",
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
    """

    model: str
    messages: tuple[tuple[str, str], ...]
    prompt_version: str
    schema: dict[str, Any] | None = field(default=None, hash=False)
    max_tokens: int = 4096
    temperature: float = 0.0

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

    def put(self, request_hash: str, prompt_version: str, answer: ChatAnswer) -> None:
        """Record an answer, durably, before anybody uses it. The first one written stays."""
        ...


class EventIndex(Protocol):
    """Where L0 events become searchable. Blocking; call it from a thread."""

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        """Write events with their vectors, idempotent by (scope, event id)."""
        ...


class AtomStore(Protocol):
    """Where atoms are kept. Blocking; call it from a thread."""

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        """Write atoms with their vectors, idempotent by atom id."""
        ...

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        """Read all atoms of a scope that were ever written (strong read).

        Ordered by ``occurred_at``, then ``atom_id``.
        """
        ...

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        """Read one atom, or ``None`` when the scope has no such atom."""
        ...


SearchArm = Literal["dense", "keyword"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Narrows a search inside its scope. Empty means everything.

    :arg only_active: leave out superseded atoms (ignored for events).
    """

    session_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    only_active: bool = True


@dataclass(frozen=True, slots=True)
class Hit:
    """One search hit. ``score`` is comparable only within one arm of one search."""

    id: str
    score: float
    record: Atom | IndexedEvent


class Searcher(Protocol):
    """Searches one layer of one scope. Blocking; call it from a thread.

    ``layer`` is ``"atoms"`` or ``"events"``. Never returns another scope's records and never
    more than ``limit``. Raises ``ServiceUnavailable`` when the store is down.
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

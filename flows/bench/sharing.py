"""What the rows of one question share: its vector, equal searches, and the tokens of a line.

Eight rows recall for each question, search mostly alike, and are cut at five budgets: without
this a run takes several times as long, for the same figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

from connectors.query.recall import RecallStore
from connectors.tokens import count_tokens
from stores.protocols import Embedder, Filter, Hit, SeenProfile, Span, Vectors
from stores.records import IndexedEvent

__all__ = ["LineTokens", "QuestionVector", "SharedSearches"]

_RUN = re.compile(r"\n[\s/]")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
T = TypeVar("T")


class QuestionVector:
    """An embedder that embeds a question once, however often it is asked in a row.

    :arg monotonic: seconds, for latency only.
    """

    def __init__(self, embedder: Embedder, monotonic: Callable[[], float]) -> None:
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._embedder = embedder
        self._monotonic = monotonic
        self._text: str | None = None
        self._vector: Any = None
        self._took_s = 0.0

    async def ready(self, text: str) -> float:
        """Embed the question if it is another than the last; give the seconds that this took."""
        if text != self._text:
            started = self._monotonic()
            self._vector = await self._embedder.embed_query(text)
            self._took_s = self._monotonic() - started
            self._text = text
        return self._took_s

    async def embed_query(self, text: str) -> Vectors:
        """Give the question's vector: shape (dimension,)."""
        await self.ready(text)
        return cast("Vectors", self._vector)

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Embed texts to be found: shape (len(texts), dimension)."""
        return await self._embedder.embed_passages(texts)


class SharedSearches:
    """What recall reads. It finds no neighbours when it is told to find none.

    A search that was already made for a question is not made again while ``shared`` is set; the
    memory must not change in between. An error is not kept.
    """

    def __init__(self, store: RecallStore) -> None:
        self.neighbours = True
        self.shared = False
        self._store = store
        self._found: dict[Hashable, Any] = {}

    def forget(self) -> None:
        """Forget what was found: another question is asked from now on."""
        self._found.clear()

    def search_dense(
        self, collection: str, scope: str, vector: Vectors, limit: int, where: Filter
    ) -> list[Hit]:
        """Search by meaning."""
        key = ("dense", collection, scope, vector.tobytes(), limit, where)
        return self._once(
            key, lambda: self._store.search_dense(collection, scope, vector, limit, where)
        )

    def search_keyword(
        self, collection: str, scope: str, text: str, limit: int, where: Filter
    ) -> list[Hit]:
        """Search by words."""
        key = ("keyword", collection, scope, text, limit, where)
        return self._once(
            key, lambda: self._store.search_keyword(collection, scope, text, limit, where)
        )

    def profiles_seen(self, scope: str) -> list[SeenProfile]:
        """Read scenes and persona."""
        return self._once(("profiles", scope), lambda: self._store.profiles_seen(scope))

    def events_within(self, scope: str, spans: Sequence[Span], where: Filter) -> list[IndexedEvent]:
        """Read what stands beside hits; nothing, when no neighbours are wanted."""
        if not self.neighbours:
            return []
        key = ("events", scope, tuple(spans), where)
        return self._once(key, lambda: self._store.events_within(scope, spans, where))

    def _once(self, key: Hashable, search: Callable[[], T]) -> T:
        if not self.shared:
            return search()
        if key not in self._found:
            self._found[key] = search()
        return cast("T", self._found[key])


class LineTokens:
    """Counts tokens as :func:`~connectors.tokens.count_tokens` does, the same line once.

    A token of o200k ends where a line ends, unless space or a slash begins the next one: a text
    in which it does is counted whole.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Count the tokens of a text."""
        if _RUN.search(text):
            return count_tokens(text)
        return sum(map(self._line, _LINE.findall(text)))

    def _line(self, line: str) -> int:
        if line not in self._known:
            self._known[line] = count_tokens(line)
        return self._known[line]

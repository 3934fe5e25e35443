"""Stand-ins that decide nothing: a clock that stands, an embedder whose vectors are all one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from stores.protocols import Vectors
from tests.rig.events import START

__all__ = ["OnesEmbedder", "StillClock"]


class StillClock:
    """Always the start of the test's conversation."""

    def now(self) -> datetime:
        return START


class OnesEmbedder:
    """Two dimensions, both one, for every text."""

    name = "ones"
    dimension = 2

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), 2), np.float32)

    async def embed_query(self, text: str) -> Vectors:
        return np.ones(2, np.float32)

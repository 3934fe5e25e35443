"""Counts tokens with a real tokenizer: o200k, the one of the GPT-4o family.

Budgets are counted, never estimated. Another model's tokenizer differs by some percent; o200k
is a fair stand-in for all of them, also for Chinese.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["count_tokens"]


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from rs_bpe import openai  # loaded at first use: the vocabulary takes about 0.1 s

    return openai.o200k_base()


def count_tokens(text: str) -> int:
    """Count the tokens of ``text``. Thread-safe; about 6 million characters a second.

    Lone surrogates, which no tokenizer takes, count as the replacement character.

    >>> count_tokens("hello world")
    2
    >>> count_tokens("")
    0
    """
    count: int = _tokenizer().count(text.encode("utf-8", "replace").decode("utf-8"))
    return count

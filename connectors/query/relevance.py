"""Whether a hit bears on the question at all. Pure.

A search always finds something: the nearest, however far. A hit counts when it shares enough
of the question's words, or when its cosine is above what the embedding model gives to texts
that have nothing to do with each other. Neither alone will do: a question in another language
than the memory shares no word with it, and a name that only one memory holds need not be near.

Measured on the development half of LoCoMo (docs/benchmarks.md): it takes nothing from what is
found for questions that have an answer, gives nothing to all of seven questions about other
things, and nothing to two thirds of the questions of another pair of friends.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator

from stores.terms import index_terms, query_terms

__all__ = ["OFFLINE_FLOOR", "Relevance"]

OFFLINE_FLOOR = 0.825
"""Cosine of the bundled model from which two texts have something in common: unrelated ones
have 0.76 to 0.82, and 97 % of questions with an answer find it above 0.82."""

_SHARE = 0.3  # of the question's words
_LATIN = re.compile(r"[a-zà-öø-ÿ'0-9]+")
# Question words and particles of Chinese, which no server's tokenizer drops for us.
_CHINESE_STOPS = re.compile(
    "什么|哪里|哪儿|哪个|怎么|怎样|多少|为什么|是不是|有没有|用户|[我你您他她它们的是在了吗呢吧啊有和与跟谁几叫这那]"
)


class Relevance:
    """Judges hits of one question.

    :arg question: cleaned.
    :arg floor: cosine from which a hit counts by itself; ``None`` where the model's scale is
        not known: then every hit of the dense arm counts.
    """

    def __init__(self, question: str, floor: float | None) -> None:
        self._floor = floor
        self._words = frozenset(_words(query_terms(question)))
        # A question of stop words only ("Who am I?") is about everything.
        self._about_all = not index_terms(question).strip() or not self._words
        self._needed = max(1, math.ceil(len(self._words) * _SHARE))

    def __call__(self, text: str, cosine: float | None) -> bool:
        """Say whether a hit counts.

        :arg text: what is indexed of the record.
        :arg cosine: its score in the dense arm; ``None`` when only its words were found.
        """
        if self._about_all or (
            cosine is not None and (self._floor is None or cosine >= self._floor)
        ):
            return True
        folded = unicodedata.normalize("NFKC", text).casefold()
        terms = set(index_terms(text).split())
        shared = sum(
            1
            for word in self._words
            if (word in terms if _LATIN.fullmatch(word) else word in folded)
        )
        return shared >= self._needed


def _words(terms: str) -> Iterator[str]:
    """Give Latin words as they are; of scripts without spaces, pairs of letters."""
    for term in terms.split():
        if _LATIN.fullmatch(term):
            yield term
            continue
        for run in _CHINESE_STOPS.sub(" ", term).split():
            yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))

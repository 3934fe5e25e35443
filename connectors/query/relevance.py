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
from collections.abc import Collection, Iterator

from stores.terms import index_terms, query_terms

__all__ = ["OFFLINE_FLOOR", "Relevance"]

OFFLINE_FLOOR = 0.825
"""Cosine of the bundled model from which two texts have something in common: unrelated ones
have 0.76 to 0.82, and 97 % of questions with an answer find it above 0.82."""

_SHARE = 0.3  # of the question's words
_LETTERS = "a-zà-öø-ÿ"
_LATIN = re.compile(f"[{_LETTERS}'0-9]+")
_NUMBER = re.compile("[0-9]")
_TWO_APOSTROPHES = re.compile(f"[{_LETTERS}]'[a-z]+'[{_LETTERS}]")  # behind them a word begins
_IRREGULAR = frozenset({"die", "lie", "tie"})
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
        self._question = question
        self._floor = floor
        self._words = frozenset(_words(query_terms(question)))
        # A question of stop words only ("Who am I?") is about everything.
        self._about_all = not index_terms(question).strip() or not self._words
        self._needed = max(1, math.ceil(len(self._words) * _SHARE))
        self._other = tuple(word for word in self._words if not _LATIN.fullmatch(word))
        self._numbers = frozenset(word for word in self._words if _NUMBER.search(word))
        self._stems = self._words.difference(self._other, self._numbers)
        self._begins = _beginning(self._stems)

    def without(self, names: Collection[str]) -> Relevance:
        """Judge as if the question named none of ``names``.

        For what tells of several people: that it names one of them says nothing of its matter. A
        question of names alone is about everything.
        """
        words = {word for name in names for word in name.split() if len(word) > 1}
        if not words:
            return self
        either = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
        name = re.compile(f"(?<![{_LETTERS}0-9])(?:{either})(?![{_LETTERS}0-9])", re.IGNORECASE)
        question = name.sub(" ", self._question)
        return self if question == self._question else Relevance(question, self._floor)

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
        shared = sum(1 for word in self._other if word in folded)
        if shared < self._needed and self._numbers:
            shared += len(self._numbers.intersection(index_terms(text).split()))
        if shared < self._needed and self._begins is not None:
            text = folded.replace("’", "'")
            if _TWO_APOSTROPHES.search(text) is None:
                text = " ".join(self._begins.findall(text))
            shared += len(self._stems.intersection(index_terms(text).split()))
        return shared >= self._needed


def _beginning(stems: Collection[str]) -> re.Pattern[str] | None:
    """Find the words of a folded text whose stem may be one of these; ``None`` without any.

    To stem a word costs more than to look at its beginning, and most words of a text begin
    otherwise. A stem has the first two letters of its words, but for dying, lying and tying.
    """
    if not stems:
        return None
    begins = sorted({stem[:1] if stem in _IRREGULAR else stem[:2] for stem in stems})
    either = "|".join(map(re.escape, begins))
    return re.compile(f"(?<![{_LETTERS}])(?<![{_LETTERS}]')(?:{either})[{_LETTERS}']*")


def _words(terms: str) -> Iterator[str]:
    """Give Latin words as they are; of scripts without spaces, pairs of letters."""
    for term in terms.split():
        if _LATIN.fullmatch(term):
            yield term
            continue
        for run in _CHINESE_STOPS.sub(" ", term).split():
            yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))

"""Which known atoms a new one may be about: an exact search of a scope's active atoms, in memory.

Two arms, dense and keyword, each with a floor by rank and by score. What is found decides what a
model is asked, and the request is what its recorded answer is found by: so the search must give
the same atoms every time. It looks at all active atoms, not at an index; it counts in whole
numbers, so no order of summing and no processor changes a score; and ties go by id.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stores.protocols import Vectors
from stores.terms import terms_in

__all__ = ["UNRELATED", "Active", "Floor", "dense_floor", "terms_of"]

_SCALE = 2048
"""Numbers of a vector are rounded to 1/2048. A product of two vectors of length 1 is then a whole
number of at most 2048², which float32 holds exactly, and so is every partial sum: the product is
exact whatever the order of summing. The rounding moves a cosine by about 0.0003."""
_DECIMALS = 1000  # scores are compared to three decimals
_MOST_POSTINGS = 500  # looked at for one query, rarest terms first: the cost stays flat
_PER_THOUSANDTH = _SCALE * _SCALE / _DECIMALS
_SPARE = 32  # looked at beyond the rank, for those that are not wanted
_GROWTH = 2
_CJK_RUN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")

UNRELATED = (
    "The bridge was closed for repairs.",
    "User likes green tea.",
    "Prime numbers have two divisors.",
    "User's train leaves at nine.",
    "咖啡馆今天不营业。",
    "用户养了一只猫。",
    "The invoice is overdue.",
    "用户下周去面试。",
)
"""Texts that have nothing to do with one another: what an embedder says of them is its zero. Of
the bundled model that is a cosine of 0.79, of others 0.1."""
_NEAR_SHARE = 0.3
"""How far from that zero towards 1 a candidate must be. Of the bundled model, related pairs of
memories are at 0.37 and above, unrelated ones at 0.13 and below."""
_BLIND = 0.98
_TERM_SHARE = 0.25


class Floor:
    """Below what nothing is offered.

    :arg dense: cosine, in thousandths; above 1,000 means that the vectors tell nothing apart.
    :arg rank: atoms at most, of each arm.
    """

    def __init__(self, dense: int, rank: int = 4) -> None:
        self.dense = dense
        self.rank = rank


def dense_floor(vectors: Vectors) -> int:
    """Give the floor of an embedder, from its vectors of :data:`UNRELATED`."""
    products = (_whole(vectors) @ _whole(vectors).T) / (_SCALE * _SCALE)
    zero = float(products[np.triu_indices(len(vectors), 1)].mean())
    if zero >= _BLIND:
        return _DECIMALS + 1
    return round((zero + _NEAR_SHARE * (1 - zero)) * 100) * (_DECIMALS // 100)


def terms_of(text: str) -> list[str]:
    """Give the terms that texts are compared by: stems, and pairs of Chinese, Japanese, Korean.

    >>> terms_of("User moved to 上海市")
    ['move', '上海', '海市']
    """
    found = terms_in(text)
    if text.isascii():
        return list(dict.fromkeys(found))
    terms: list[str] = []
    for term in found:
        runs = _CJK_RUN.findall(term)
        terms += [term] if not runs else (pair for run in runs for pair in _pairs(run))
    return list(dict.fromkeys(terms))


def _pairs(run: str) -> Iterable[str]:
    return (run[at : at + 2] for at in range(max(1, len(run) - 1)))


class _Weights(dict[int, int]):
    """The weight of a term by how many atoms have it, in thousandths, as BM25 has it.

    :arg count: how many atoms there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __missing__(self, having: int) -> int:
        rare = (self._count - having + 0.5) / (having + 0.5)
        weight = self[having] = round(_DECIMALS * math.log(1 + rare))
        return weight


_weights = lru_cache(maxsize=256)(_Weights)


class Active:
    """The active atoms of one scope, to be searched. For one event loop only."""

    def __init__(self) -> None:
        """Begin with none."""
        self._ids: list[str] = []
        self._row: dict[str, int] = {}
        self._terms: dict[str, list[str]] = {}
        self._postings: dict[str, dict[str, None]] = {}
        self._matrix: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._looked_for: dict[str, list[str]] = {}  # by the last search: most are put in next

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes that the vectors take."""
        return self._matrix.nbytes

    def put(self, atom_ids: Sequence[str], texts: Sequence[str], vectors: Vectors) -> None:
        """Add atoms, or write them anew. A vector of any length but 0 counts as of length 1."""
        if not atom_ids:
            return
        whole = _whole(vectors)
        self._reserve(len(self._ids) + len(atom_ids), whole.shape[1])
        for atom_id, text, vector in zip(atom_ids, texts, whole, strict=True):
            self.remove(atom_id)
            self._row[atom_id] = len(self._ids)
            self._matrix[len(self._ids)] = vector
            self._ids.append(atom_id)
            self._terms[atom_id] = self._looked_for.get(text) or terms_of(text)
            for term in self._terms[atom_id]:
                self._postings.setdefault(term, {})[atom_id] = None

    def remove(self, atom_id: str) -> None:
        """Take an atom out; one that is not there is no error."""
        row = self._row.pop(atom_id, None)
        if row is None:
            return
        last = self._ids.pop()
        if last != atom_id:  # the last one takes its row
            self._ids[row], self._row[last] = last, row
            self._matrix[row] = self._matrix[len(self._ids)]
        for term in self._terms.pop(atom_id):
            self._postings[term].pop(atom_id)
            if not self._postings[term]:
                del self._postings[term]

    def search(
        self,
        texts: Sequence[str],
        vectors: Vectors,
        floor: Floor,
        wanted: Callable[[str], bool],
    ) -> list[list[str]]:
        """Give, for each text, the ids of the atoms it may be about, best first.

        Both arms in turn, each atom once.

        :arg wanted: atoms that it refuses are passed over.
        """
        self._looked_for = {}
        if not self._ids:
            return [[] for _ in texts]
        self._looked_for = {text: terms_of(text) for text in texts}
        dense = self.nearest(vectors, floor.dense, floor.rank, wanted)
        found = []
        for near, text in zip(dense, texts, strict=True):
            words = self._keyword(self._looked_for[text], floor, wanted)
            both = [one for pair in _turns(near, words) for one in pair]
            found.append(list(dict.fromkeys(both)))
        return found

    def nearest(
        self, vectors: Vectors, least: int, most: int, wanted: Callable[[str], bool]
    ) -> list[list[str]]:
        """Give, for each vector, the ids of the nearest atoms by cosine, best first.

        :arg least: cosine at least, in thousandths.
        :arg most: atoms at most.
        """
        if least > _DECIMALS:
            return [[] for _ in vectors]
        products = self._matrix[: len(self._ids)] @ _whole(vectors).T
        found: list[list[str]] = []
        for column in products.T:
            # On exact products first: rounding 50,000 of them to pick five would cost more.
            rows = np.flatnonzero(column >= (least - 0.5) * _PER_THOUSANDTH)
            if not len(rows):
                found.append([])
                continue
            if len(rows) > most + _SPARE:
                last = np.partition(column[rows], -(most + _SPARE))[-(most + _SPARE)]
                rows = rows[column[rows] >= last - _PER_THOUSANDTH]
            scores = np.rint(column[rows] / _PER_THOUSANDTH)
            ranked = sorted(
                (-int(score), self._ids[row]) for score, row in zip(scores, rows, strict=True)
            )
            found.append(_first(ranked, most, wanted))
        return found

    def _keyword(
        self,
        terms: Sequence[str],
        floor: Floor,
        wanted: Callable[[str], bool],
    ) -> list[str]:
        postings_of = self._postings
        weights = _weights(len(self._ids))
        weight_of = {term: weights[len(postings_of.get(term, ()))] for term in terms}
        scores: dict[str, int] = {}
        looked_at = 0
        for term in sorted(terms, key=lambda term: (-weight_of[term], term)):
            postings = postings_of.get(term, {})
            looked_at += len(postings)
            if looked_at > _MOST_POSTINGS:
                break
            added = weight_of[term]
            for atom_id in postings:
                scores[atom_id] = scores.get(atom_id, 0) + added
        said = sum(weight_of.values())

        def near(atom_id: str) -> bool:
            # Of the text that says less: a new name must not hide what the two share.
            enough = scores[atom_id] >= _TERM_SHARE * said or (
                scores[atom_id]
                >= _TERM_SHARE * sum([weights[len(postings_of[it])] for it in self._terms[atom_id]])
            )
            return enough and wanted(atom_id)

        ranked = sorted((-score, atom_id) for atom_id, score in scores.items())
        return _first(ranked[: floor.rank + _SPARE], floor.rank, near)

    def _reserve(self, rows: int, columns: int) -> None:
        have = len(self._matrix)
        if rows > have or self._matrix.shape[1] != columns:
            larger = np.zeros((max(rows, _GROWTH * have, 16), columns), np.float32)
            if self._ids:
                larger[: len(self._ids)] = self._matrix[: len(self._ids)]
            self._matrix = larger


def _whole(vectors: Vectors) -> NDArray[np.float32]:
    """Bring vectors to length 1 and round them to whole numbers of 1/2048."""
    exact = vectors.astype(np.float64)
    lengths = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
    whole: NDArray[np.float32] = np.rint(exact / np.maximum(lengths, 1e-12) * _SCALE).astype(
        np.float32
    )
    return whole


def _first(ranked: list[tuple[int, str]], most: int, wanted: Callable[[str], bool]) -> list[str]:
    found: list[str] = []
    for _, atom_id in ranked:
        if len(found) == most:
            break
        if wanted(atom_id):
            found.append(atom_id)
    return found


def _turns(first: list[str], second: list[str]) -> Iterable[list[str]]:
    for at in range(max(len(first), len(second))):
        yield [*first[at : at + 1], *second[at : at + 1]]

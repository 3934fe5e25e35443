"""What is counted for one question, and how sure a mean is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "Paired", "estimate", "evidence_found", "paired", "tokens_for"]

_RESAMPLES = 2000
_SEED = 20240101


def evidence_found(evidence: Sequence[frozenset[str]], shown: frozenset[str]) -> float | None:
    """Give the share of evidence units of which any event is shown; ``None`` without evidence.

    >>> evidence_found((frozenset({"a"}), frozenset({"b", "c"})), frozenset({"c"}))
    0.5
    """
    if not evidence:
        return None
    return sum(1 for unit in evidence if unit & shown) / len(evidence)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over questions and its 95 % interval (bootstrap, 2,000 resamples, fixed seed)."""

    mean: float
    low: float
    high: float
    count: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Estimate a mean; ``None`` for no values. The same values give the same interval."""
    if not values:
        return None
    means = _means(np.asarray(values, dtype=np.float64))
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(np.mean(values)), float(low), float(high), len(values))


@dataclass(frozen=True, slots=True)
class Paired:
    """A mean difference between two rows on the same questions.

    :arg p: two-sided, by flipping the signs of the differences at random: how often chance
        alone gives a mean difference at least this large.
    """

    difference: float
    low: float
    high: float
    p: float
    count: int


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired | None:
    """Compare two rows question by question; ``None`` for no questions."""
    if not ours:
        return None
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    observed = float(differences.mean())
    low, high = np.percentile(_means(differences), [2.5, 97.5])
    rng = np.random.default_rng(_SEED)
    hits = 0
    for _ in range(_RESAMPLES):
        flipped = differences * rng.choice((-1.0, 1.0), size=len(differences))
        hits += abs(float(flipped.mean())) >= abs(observed) - 1e-12
    return Paired(observed, float(low), float(high), (hits + 1) / (_RESAMPLES + 1), len(ours))


def tokens_for(target: float, points: Sequence[tuple[float, float]]) -> float | None:
    """Give the tokens at which a curve reaches ``target``, between its points in a line.

    :arg points: (tokens, evidence), tokens ascending; the curve begins at no tokens and none.

    >>> tokens_for(0.5, [(100, 0.4), (200, 0.6)])
    150.0
    """
    before_tokens, before = 0.0, 0.0
    for tokens, found in points:
        if target <= before:
            break
        if found >= target:
            share = (target - before) / (found - before)
            return before_tokens + share * (tokens - before_tokens)
        before_tokens, before = tokens, max(before, found)
    return before_tokens if target <= before else None


def _means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = values[_picks(len(values))].mean(axis=1)
    return means


@lru_cache(maxsize=2)  # a summary asks for the same size again and again
def _picks(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(_SEED).integers(0, count, size=(_RESAMPLES, count))

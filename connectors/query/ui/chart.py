"""The outcomes over time as bars, stacked by result. Pure geometry; the template draws it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from stores.records.outcome import OutcomeResult

__all__ = ["HEIGHT", "RESULTS", "WIDTH", "Bar", "Chart", "chart_of"]

WIDTH, HEIGHT = 600, 120
RESULTS: tuple[str, ...] = get_args(OutcomeResult)
"""From the bottom of a bar to its top."""

_LEAST_SLOTS, _MOST_BARS = 10, 30
_GAP = 2.0
_STEPS_MS = tuple(1000 * s for s in (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400))


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of one bar, in the chart's own units, from the top left corner."""

    x: float
    y: float
    width: float
    height: float
    result: str
    count: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Chart:
    """All bars. ``step_ms`` is the time that one stands for, ``most`` what the highest counts."""

    bars: tuple[Bar, ...]
    start_ms: int
    end_ms: int
    step_ms: int
    most: int


def chart_of(ended: Sequence[tuple[int, str]]) -> Chart | None:
    """Count outcomes, each the log's time in ms and its result, into at most thirty bars.

    ``None`` without any.

    >>> chart = chart_of([(0, "empty"), (500, "empty"), (3000, "extracted")])
    >>> [(bar.x, bar.height, bar.count) for bar in chart.bars]
    [(360.0, 120.0, 2), (540.0, 60.0, 1)]
    """
    if not ended:
        return None
    first, last = min(at for at, _ in ended), max(at for at, _ in ended)
    step = next(
        (one for one in _STEPS_MS if last // one - first // one < _MOST_BARS),
        -(-(last - first + 1) // (_MOST_BARS - 1)),
    )
    slots = max(_LEAST_SLOTS, last // step - first // step + 1)
    begin = last // step - slots + 1
    counts = Counter((at // step - begin, result) for at, result in ended)
    heights = Counter[int]()
    for (slot, _), count in counts.items():
        heights[slot] += count
    most = max(heights.values())
    each = WIDTH / slots
    bars = []
    for slot in sorted(heights):
        top = float(HEIGHT)
        for result in RESULTS:
            count = counts[slot, result]
            if count:
                height = HEIGHT * count / most
                top -= height
                at = (begin + slot) * step
                bars.append(Bar(slot * each, top, max(1.0, each - _GAP), height, result, count, at))
    return Chart(tuple(bars), begin * step, (begin + slots) * step, step, most)

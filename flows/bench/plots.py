"""Plots as SVG text, without a library: a report stays one file that any browser opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log, log10

__all__ = ["Point", "bars", "lines"]

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 190, 16, 44
_COLOURS = (
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e",
    "#8c564b", "#e377c2", "#17becf", "#7f7f7f", "#bcbd22",
)  # fmt: skip
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a series, with the interval of its height where one is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


def lines(
    series: Mapping[str, Sequence[Point]],
    *,
    x_label: str,
    y_label: str,
    joined: bool = True,
    top: float = 1.0,
    log_x: bool = False,
) -> str:
    """Draw one line, or apart points, for each series.

    :arg top: height at the top of the plot; at the bottom it is 0.
    :arg log_x: places grow by factors; all of them above 0.
    """
    values = sorted({point.x for points in series.values() for point in points}) or [1.0]
    place = _by_factors(values[0], values[-1]) if log_x else _evenly(values[-1])
    parts = [_axes(x_label, y_label, top)]
    for value in values if log_x else _ticks(values[-1]):
        x = _x(place(value))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{value:,.0f}", "middle"))
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(_x(place(point.x)), _y(point.y / top)) for point in points]
        if joined and len(places) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        for (x, y), point in zip(places, points, strict=True):
            label = escape(f"{name}: {point.y:,.3f} at {point.x:,.0f}")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">'
                f"<title>{label}</title></circle>"
            )
            if point.low is not None and point.high is not None:
                parts.append(_whisker(x, point.low / top, point.high / top, colour))
        parts.append(_legend(number, name, colour))
    return _svg(parts)


def _evenly(farthest: float) -> Callable[[float], float]:
    return lambda value: value / (farthest or 1.0)


def _by_factors(least: float, farthest: float) -> Callable[[float], float]:
    span = log(farthest / least) or 1.0
    return lambda value: log(value / least) / span


def _ticks(farthest: float) -> Iterator[float]:
    """Give round places, at most one more than :data:`_TICKS`."""
    least = (farthest or 1.0) / _TICKS
    power = 10.0 ** floor(log10(least))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= least)
    return (step * tick for tick in range(floor((farthest or 1.0) / step) + 1))


def bars(groups: Mapping[str, Mapping[str, Point]], *, y_label: str) -> str:
    """Draw a group of bars for each kind, one bar a row, with its interval."""
    names = list(dict.fromkeys(name for rows in groups.values() for name in rows))
    parts = [_axes("", y_label, 1.0)]
    slot = 1 / max(1, len(groups))
    width = slot * 0.8 / max(1, len(names))
    for place, (kind, rows) in enumerate(groups.items()):
        middle = _x(place * slot + slot / 2)
        # Labels of long names take turns in height, so that neighbours do not overlap.
        height = _HEIGHT - _BOTTOM + 14 + 13 * (place % 2)
        parts.append(_text(middle, height, kind, "middle"))
        for number, name in enumerate(names):
            if name not in rows:
                continue
            point = rows[name]
            left = _x(place * slot + slot * 0.1 + number * width)
            wide = _x(width) - _x(0)
            colour = _COLOURS[number % len(_COLOURS)]
            label = escape(f"{kind}, {name}: {point.y:.3f}")
            parts.append(
                f'<rect x="{left:.1f}" y="{_y(point.y):.1f}" width="{wide:.1f}" '
                f'height="{_y(0) - _y(point.y):.1f}" fill="{colour}">'
                f"<title>{label}</title></rect>"
            )
            if point.low is not None and point.high is not None:
                parts.append(_whisker(left + wide / 2, point.low, point.high, "#333"))
    for number, name in enumerate(names):
        parts.append(_legend(number, name, _COLOURS[number % len(_COLOURS)]))
    return _svg(parts)


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _axes(x_label: str, y_label: str, top: float) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        parts.append(
            f'<line x1="{_x(0):.0f}" x2="{_x(1):.0f}" y1="{_y(share):.1f}" y2="{_y(share):.1f}" '
            'stroke="#ddd"/>'
        )
        parts.append(_text(_x(0) - 6, _y(share) + 4, _height(share * top), "end"))
    parts.append(_text(_x(0.5), _HEIGHT - 6, x_label, "middle"))
    turned = f'transform="rotate(-90 12 {_y(0.5):.0f})"'
    parts.append(
        f'<text x="12" y="{_y(0.5):.0f}" text-anchor="middle" {turned}>{escape(y_label)}</text>'
    )
    return "".join(parts)


def _height(value: float) -> str:
    return f"{value:.1f}" if value < _TICKS * 2 else f"{value:,.0f}"


def _whisker(x: float, low: float, high: float, colour: str) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_y(low):.1f}" y2="{_y(high):.1f}" '
        f'stroke="{colour}" opacity="0.6"/>'
    )


def _legend(number: int, name: str, colour: str) -> str:
    x, y = _WIDTH - _RIGHT + 16, _TOP + 10 + number * 18
    square = f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
    return square + _text(x + 16, y, name, "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'
    )

"""The report of a speed run: one HTML file with tables and curves, nothing loaded from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from benchmarks.figures import Curve, Row
from flows.bench.plots import Point, lines
from flows.bench.report import page

__all__ = ["to_html"]

_MANY = 1000  # from which a figure has no use for what stands behind the point
_HEADS = ("what", "measured", "unit", "beside", "ratio", "to reach", "note")


def to_html(
    rows: Sequence[Row],
    curves: Sequence[Curve],
    failed: Mapping[str, str],
    config: Mapping[str, Any],
) -> str:
    """Write the report.

    :arg rows: of one benchmark after the other.
    :arg failed: why, by what was run.
    """
    parts = [
        "<h1>Sediment: speed</h1>",
        "<p>Each figure stands beside its ceiling, a baseline or a peer of the same run, because "
        "machines differ and are noisy; the ratio is what can be compared.</p>",
        "<p>Chat model and embeddings are <b>scripted</b>, but where a line says bundled: servers "
        "of the tests, which answer over HTTP after a set time. So nothing here says how good "
        "memories are.</p>",
    ]
    if failed:
        parts += ["<h2>Failed</h2>", "<ul>"]
        parts += [f"<li>{escape(name)}: {escape(why)}</li>" for name, why in failed.items()]
        parts.append("</ul>")
    for benchmark, some in groupby(rows, key=lambda row: row.benchmark):
        parts += [f"<h2>{escape(benchmark)}</h2>", _table(list(some))]
    for curve in curves:
        parts += [f"<h2>{escape(curve.title)}</h2>", _plot(curve)]
    told = json.dumps(config, indent=2)
    parts += ["<h2>Configuration</h2>", f"<pre>{escape(told)}</pre>"]
    return page("Sediment: speed", parts)


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cells(row: Row) -> Iterator[str]:
    values = (row.name, row.measured, row.unit, row.beside, row.ratio, row.target, row.note)
    for value in values:
        yield f"<td>{escape(_written(value))}</td>"


def _written(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.0f}" if abs(value) >= _MANY else f"{value:.4g}"


def _plot(curve: Curve) -> str:
    series = {
        name: [Point(memories, cost) for memories, cost in points]
        for name, points in curve.series.items()
    }
    highest = max((point.y for points in series.values() for point in points), default=1.0)
    return lines(series, x_label="memories", y_label=curve.unit, top=highest or 1.0, log_x=True)

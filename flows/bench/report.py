"""The report of a run: one HTML file with its tables and plots, nothing loaded from anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from flows.bench.metrics import Estimate
from flows.bench.plots import Point, bars, lines
from flows.bench.rows import Row
from flows.bench.run import TIMED
from flows.bench.summary import COLUMNS, RowSummary, fields_of

__all__ = ["page", "to_html"]

_SHOWN = tuple(name for name in COLUMNS if not name.endswith(("_low", "_high", "tested")))
_STYLE = (
    "body{font:14px/1.45 sans-serif;margin:2em auto;max-width:1100px;color:#222}"
    "table{border-collapse:collapse;font-size:12px}"
    "td,th{border:1px solid #ccc;padding:2px 6px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}td:first-child,small{white-space:nowrap}"
    "pre{background:#f6f6f6;padding:8px;overflow:auto;font-size:12px}.wide{overflow-x:auto}"
)


def to_html(
    rows: Sequence[Row],
    all_types: Sequence[RowSummary],
    by_type: Mapping[str, Sequence[RowSummary]],
    apart: Sequence[RowSummary],
    config: Mapping[str, Any],
) -> str:
    """Write the report.

    :arg by_type: of the scored questions.
    :arg apart: of the questions that are not scored, such as adversarial ones.
    """
    read = any(one.accuracy for one in all_types)
    parts = [
        f"<h1>{escape(str(config['benchmark']))}: memory quality</h1>",
        f"<p>{escape(_headline(all_types, config))}</p>",
        "<h2>Rows</h2>",
        "<ul>",
        *(f"<li><b>{escape(row.name)}</b>: {escape(row.means)}</li>" for row in rows),
        "</ul>",
        "<h2>Scored questions</h2>",
        _table(all_types),
        "<p>Intervals are 95 %, by bootstrap over questions; vs_plain is the mean difference to "
        "the row plain on the same questions, vs_plain_p by random sign flips. Empty: does not "
        f"apply, or not measured. Latency is of one question in {TIMED}.</p>",
        *_errors(all_types),
    ]
    if read:
        parts += [
            "<h2>Accuracy against tokens injected</h2>",
            lines(
                {
                    one.row: [_point(one.injected_tokens, one.accuracy)]
                    for one in all_types
                    if one.accuracy
                },
                x_label="tokens of context",
                y_label="accuracy",
                joined=False,
            ),
        ]
    parts += [
        "<h2>Evidence found against tokens injected</h2>",
        lines(
            {
                one.row: [
                    _point(tokens, found)
                    for (tokens, _), found in zip(one.curve, one.evidence_at.values(), strict=True)
                ]
                for one in all_types
                if one.curve
            },
            x_label="tokens of context, mean",
            y_label="evidence found",
        ),
        "<h2>Evidence found among the first k items</h2>",
        lines(
            {
                one.row: [_point(float(k), found) for k, found in one.recall_at.items()]
                for one in all_types
                if one.recall_at
            },
            x_label="k",
            y_label="recall",
        ),
        "<h2>By question type</h2>",
        _by_type(by_type, "accuracy" if read else "evidence within 1,000 tokens", read),
    ]
    for name, summaries in by_type.items():
        parts += [f"<h3>{escape(name)}</h3>", _table(summaries)]
    if apart:
        parts += ["<h2>Not scored, reported apart</h2>", _table(apart)]
    told = json.dumps(config, indent=2, ensure_ascii=False)
    parts += ["<h2>Configuration</h2>", f"<pre>{escape(told)}</pre>"]
    return page(f"Sediment: {config['benchmark']}", parts)


def page(title: str, parts: Sequence[str]) -> str:
    """Write an HTML file that loads nothing.

    :arg parts: of its body, as HTML.
    """
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _headline(summaries: Sequence[RowSummary], config: Mapping[str, Any]) -> str:
    questions = max((one.questions for one in summaries), default=0)
    return (
        f"{questions} scored questions, half: {config['half']} ({config['half_rule']}). "
        f"Reader: {config['reader'] or 'none, retrieval only'}. "
        f"Extraction: {config['extractor']}. Commit: {config['commit'] or 'unknown'}."
    )


def _errors(summaries: Sequence[RowSummary]) -> list[str]:
    """Tell what could not be answered; nothing where all was."""
    told = [
        f"<li><b>{escape(one.row)}</b>: {count} of {one.questions}: {escape(why)}</li>"
        for one in summaries
        for why, count in sorted(one.errors.items())
    ]
    if not told:
        return []
    return ["<h3>Not answered, or not judged; counted as wrong</h3>", "<ul>", *told, "</ul>"]


def _by_type(by_type: Mapping[str, Sequence[RowSummary]], label: str, read: bool) -> str:
    def height(one: RowSummary) -> Estimate | None:
        return one.accuracy if read else one.evidence_at.get("1000")

    return bars(_heights(by_type, height), y_label=label)


def _heights(
    by_type: Mapping[str, Sequence[RowSummary]], height: Callable[[RowSummary], Estimate | None]
) -> dict[str, dict[str, Point]]:
    return {
        name: {one.row: _point(0.0, found) for one in summaries if (found := height(one))}
        for name, summaries in by_type.items()
    }


def _point(x: float, found: Estimate | None) -> Point:
    assert found is not None
    return Point(x, found.mean, found.low, found.high)


def _table(summaries: Sequence[RowSummary]) -> str:
    """Write what ``summary.csv`` holds, an interval in the cell of its mean."""
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in _SHOWN)
    body = "".join(f"<tr>{_cells(fields_of(one))}</tr>" for one in summaries)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cells(values: Mapping[str, str | float | int | None]) -> str:
    cells = []
    for name in _SHOWN:
        value, low = values[name], values.get(f"{name}_low")
        text = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        if low is not None:
            text = f"{value:.3f}<br><small>{low:.3f} to {values[f'{name}_high']:.3f}</small>"
        cells.append(f"<td>{text if low is not None else escape(text)}</td>")
    return "".join(cells)

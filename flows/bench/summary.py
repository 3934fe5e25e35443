"""From lines to one record a row: means, intervals, the paired test, costs. Pure."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flows.bench.building import BuildCost
from flows.bench.metrics import Estimate, Paired, estimate, paired, tokens_for
from flows.bench.results import Line
from flows.bench.rows import BASELINE, Row

__all__ = ["COLUMNS", "Price", "RowSummary", "Tally", "summarise", "to_csv", "types_to_csv"]

_RESTS_ON: Mapping[str, tuple[str, ...]] = {
    "atoms": ("atoms",),
    "scenes": ("atoms", "scenes"),
    "persona": ("atoms", "scenes", "persona"),
}
"""A layer is built from the one below it, so a row pays for that as well."""
_EQUAL_AT = "2000"  # tokens at which the baseline's evidence is to be matched
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Give the dollars of so many tokens."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / _MILLION


@dataclass(frozen=True, slots=True)
class Tally:
    """What building and asking cost.

    :arg prices: by ``build``, ``reader`` and ``judge``; missing ones cost nothing known.
    """

    build: Mapping[str, BuildCost]
    prices: Mapping[str, Price]


@dataclass(frozen=True, slots=True)
class RowSummary:
    """One row over the questions of one kind.

    :arg evidence_questions: of which the data names evidence; the others are in no mean of it.
    :arg errors: how many could not be answered or judged, by why; they count as wrong.
    :arg tested: what the paired test compares: ``accuracy``, or ``evidence_at_1000_tokens``
        where no reader was asked.
    :arg tokens_for_plain: tokens at which the row finds what plain finds within 2,000.
    :arg dollars: ``None`` where a price that is needed is not given.
    """

    row: str
    questions: int
    accuracy: Estimate | None
    evidence_at: Mapping[str, Estimate]
    recall_at: Mapping[str, Estimate]
    injected_tokens: float
    curve: Sequence[tuple[float, float]]
    latency_ms: tuple[float, float] | None
    reader_tokens: int
    build: BuildCost
    dollars: float | None
    tested: str
    against_plain: Paired | None
    tokens_for_plain: float | None
    evidence_questions: int
    errors: Mapping[str, int]


def summarise(lines: Sequence[Line], rows: Sequence[Row], tally: Tally) -> list[RowSummary]:
    """Summarise the rows over these lines, in the order of the rows."""
    by_row: dict[str, dict[str, Line]] = {row.name: {} for row in rows}
    for line in lines:
        if line.row in by_row:
            by_row[line.row][line.question_id] = line
    plain = by_row.get(BASELINE, {})
    target = estimate(_evidence(plain.values(), _EQUAL_AT))
    return [_summary(row, by_row[row.name], plain, target, tally) for row in rows]


def _summary(
    row: Row,
    lines: Mapping[str, Line],
    plain: Mapping[str, Line],
    target: Estimate | None,
    tally: Tally,
) -> RowSummary:
    ours = list(lines.values())
    read = [line for line in ours if line.correct is not None]
    budgets = sorted({key for line in ours for key in line.evidence_at}, key=int)
    evidence = {key: one for key in budgets if (one := estimate(_evidence(ours, key)))}
    places = sorted({key for line in ours for key in line.recall_at}, key=int)
    recall = {
        key: one
        for key in places
        if (one := estimate([line.recall_at[key] for line in ours if key in line.recall_at]))
    }
    curve = [
        (float(np.mean([line.tokens_at[key] for line in ours if line.evidence_at])), one.mean)
        for key, one in evidence.items()
    ]
    took = [line.latency_ms for line in ours if line.latency_ms is not None]
    build = BuildCost()
    for layer in {below for one in row.layers for below in _RESTS_ON.get(one, ())}:
        build += tally.build.get(layer, BuildCost())
    tested = "accuracy" if read else "evidence_at_1000_tokens"
    return RowSummary(
        row=row.name,
        questions=len(ours),
        accuracy=estimate([float(line.correct or False) for line in read]),
        evidence_at=evidence,
        recall_at=recall,
        injected_tokens=float(np.mean([line.injected_tokens for line in ours])) if ours else 0.0,
        curve=curve,
        latency_ms=(
            (float(np.percentile(took, 50)), float(np.percentile(took, 95))) if took else None
        ),
        reader_tokens=sum(
            line.reader_prompt_tokens + line.reader_completion_tokens for line in ours
        ),
        build=build,
        dollars=_dollars(ours, build, tally.prices),
        tested=tested,
        against_plain=None if row.name == BASELINE else _test(tested, lines, plain),
        tokens_for_plain=None if target is None else tokens_for(target.mean, curve),
        evidence_questions=sum(1 for line in ours if line.evidence_at),
        errors=Counter(line.error for line in ours if line.error),
    )


def _evidence(lines: Iterable[Line], budget: str) -> list[float]:
    return [line.evidence_at[budget] for line in lines if budget in line.evidence_at]


def _test(tested: str, lines: Mapping[str, Line], plain: Mapping[str, Line]) -> Paired | None:
    def value(line: Line) -> float | None:
        if tested == "accuracy":
            return None if line.correct is None else float(line.correct)
        return line.evidence_at.get("1000")

    pairs = [
        (ours, theirs)
        for key, line in lines.items()
        if key in plain
        and (ours := value(line)) is not None
        and (theirs := value(plain[key])) is not None
    ]
    return paired([one for one, _ in pairs], [other for _, other in pairs])


def _dollars(lines: Sequence[Line], build: BuildCost, prices: Mapping[str, Price]) -> float | None:
    spent = {
        "build": (build.prompt_tokens, build.completion_tokens),
        "reader": (
            sum(line.reader_prompt_tokens for line in lines),
            sum(line.reader_completion_tokens for line in lines),
        ),
        "judge": (
            sum(line.judge_prompt_tokens for line in lines),
            sum(line.judge_completion_tokens for line in lines),
        ),
    }
    needed = {name: tokens for name, tokens in spent.items() if any(tokens)}
    if any(name not in prices for name in needed):
        return None
    return sum(prices[name].of(*tokens) for name, tokens in needed.items())


COLUMNS = (
    "row",
    "accuracy",
    "evidence_at_1000_tokens",
    "evidence_at_2000_tokens",
    "recall_at_10",
    "injected_tokens",
    "build_tokens",
    "build_calls",
    "accuracy_low",
    "accuracy_high",
    "evidence_at_1000_tokens_low",
    "evidence_at_1000_tokens_high",
    "evidence_at_2000_tokens_low",
    "evidence_at_2000_tokens_high",
    "recall_at_10_low",
    "recall_at_10_high",
    "questions",
    "tested",
    "vs_plain",
    "vs_plain_low",
    "vs_plain_high",
    "vs_plain_p",
    "tokens_for_plain_evidence",
    "latency_p50_ms",
    "latency_p95_ms",
    "reader_tokens",
    "dollars",
    "evidence_questions",
    "errors",
)
"""Of ``summary.csv``. An empty field does not apply to the row, or was not measured."""


def to_csv(summaries: Sequence[RowSummary]) -> str:
    """Write ``summary.csv``: one line a row; shares with four decimals."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in summaries:
        writer.writerow({name: _written(value) for name, value in fields_of(one).items()})
    return text.getvalue()


def types_to_csv(by_type: Mapping[str, Sequence[RowSummary]]) -> str:
    """Write ``types.csv``: the same for each question type, the type in front."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ("type", *COLUMNS), lineterminator="\n")
    writer.writeheader()
    for name, summaries in by_type.items():
        for one in summaries:
            values = {key: _written(value) for key, value in fields_of(one).items()}
            writer.writerow({"type": name, **values})
    return text.getvalue()


def fields_of(one: RowSummary) -> dict[str, str | float | int | None]:
    """Give a summary by the names of :data:`COLUMNS`."""
    values: dict[str, str | float | int | None] = {
        "row": one.row,
        "questions": one.questions,
        "injected_tokens": round(one.injected_tokens, 1),
        "build_tokens": one.build.prompt_tokens + one.build.completion_tokens,
        "build_calls": one.build.calls,
        "tested": one.tested,
        "tokens_for_plain_evidence": _rounded(one.tokens_for_plain, 0),
        "latency_p50_ms": _rounded(one.latency_ms and one.latency_ms[0], 1),
        "latency_p95_ms": _rounded(one.latency_ms and one.latency_ms[1], 1),
        "reader_tokens": one.reader_tokens,
        "dollars": _rounded(one.dollars, 4),
        "evidence_questions": one.evidence_questions,
        "errors": sum(one.errors.values()),
    }
    estimates = {
        "accuracy": one.accuracy,
        "evidence_at_1000_tokens": one.evidence_at.get("1000"),
        "evidence_at_2000_tokens": one.evidence_at.get("2000"),
        "recall_at_10": one.recall_at.get("10"),
    }
    for name, found in estimates.items():
        values[name] = _rounded(None if found is None else found.mean)
        values[f"{name}_low"] = _rounded(None if found is None else found.low)
        values[f"{name}_high"] = _rounded(None if found is None else found.high)
    test = one.against_plain
    values["vs_plain"] = _rounded(None if test is None else test.difference)
    values["vs_plain_low"] = _rounded(None if test is None else test.low)
    values["vs_plain_high"] = _rounded(None if test is None else test.high)
    values["vs_plain_p"] = _rounded(None if test is None else test.p)
    return {name: values[name] for name in COLUMNS}


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def _written(value: str | float | int | None) -> str:
    return "" if value is None else str(value)

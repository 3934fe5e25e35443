"""Metrics by cases counted by hand."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from flows.bench.building import BuildCost
from flows.bench.metrics import estimate, evidence_found, paired, tokens_for
from flows.bench.report import to_html
from flows.bench.results import Line
from flows.bench.rows import rows_named
from flows.bench.summary import Price, Tally, fields_of, summarise, to_csv
from stores.errors import UserError

UNITS = (frozenset({"a"}), frozenset({"b", "c"}), frozenset({"d"}))


def line(
    question: str, row: str, found: float, *, correct: bool | None = None, prompt: int = 0
) -> Line:
    return Line(
        question_id=question,
        row=row,
        type="t",
        half="dev",
        scored=True,
        evidence_units=1,
        evidence_at={"1000": found, "2000": found},
        recall_at={"10": found},
        tokens_at={"1000": 900, "2000": 1800},
        injected_tokens=1800,
        items=(),
        latency_ms=10.0,
        correct=correct,
        reader_prompt_tokens=prompt,
    )


def test_a_unit_is_found_by_any_of_its_events() -> None:
    assert evidence_found(UNITS, frozenset({"a", "c", "x"})) == pytest.approx(2 / 3)
    assert evidence_found(UNITS, frozenset()) == 0.0
    assert evidence_found((), frozenset({"a"})) is None


def test_an_interval_holds_the_mean_and_never_changes() -> None:
    values = [0.0, 1.0] * 50
    first, again = estimate(values), estimate(values)
    assert first == again
    assert first is not None
    assert first.mean == 0.5
    # Of 100 fair coins: 0.5 plus or minus about 1.96 * 0.05.
    assert first.low == pytest.approx(0.40, abs=0.02)
    assert first.high == pytest.approx(0.60, abs=0.02)
    assert estimate([]) is None


def test_equal_rows_differ_by_chance_and_unequal_ones_do_not() -> None:
    same = paired([1.0, 0.0, 1.0], [1.0, 0.0, 1.0])
    assert same is not None
    assert (same.difference, same.p) == (0.0, 1.0)
    better = paired([1.0] * 20, [0.0] * 20)
    assert better is not None
    assert better.difference == better.low == better.high == 1.0
    assert better.p < 0.01


def test_tokens_for_equal_evidence_lie_between_two_points_of_the_curve() -> None:
    curve = [(100.0, 0.4), (200.0, 0.6), (400.0, 0.6)]
    assert tokens_for(0.2, curve) == 50.0
    assert tokens_for(0.5, curve) == 150.0
    assert tokens_for(0.7, curve) is None
    assert tokens_for(0.0, curve) == 0.0


def test_a_summary_counts_each_row_and_compares_it_with_plain() -> None:
    rows = rows_named(["sediment", "events"])
    lines = [
        *(line(f"q{n}", "plain", 0.5, correct=False, prompt=100) for n in range(4)),
        *(line(f"q{n}", "sediment", 1.0, correct=n < 3, prompt=50) for n in range(4)),
        line("q0", "events", 1.0, correct=True),
    ]
    build = {"atoms": BuildCost(10, 1000, 100), "persona": BuildCost(1, 20, 2)}
    prices = {"build": Price(1.0, 10.0), "reader": Price(2.0, 0.0)}
    found = {one.row: fields_of(one) for one in summarise(lines, rows, Tally(build, prices))}
    assert list(found) == ["plain", "events", "sediment"]
    assert found["sediment"]["accuracy"] == 0.75
    assert found["sediment"]["vs_plain"] == 0.75
    assert found["sediment"]["evidence_at_1000_tokens"] == 1.0
    assert found["sediment"]["build_calls"] == 11
    assert found["sediment"]["build_tokens"] == 1122
    assert found["sediment"]["dollars"] == round((1020 + 102 * 10 + 200 * 2) / 1e6, 4)
    # Plain finds 0.5 within 2,000 tokens; sediment finds 1.0 in 900, so 0.5 in 450.
    assert found["sediment"]["tokens_for_plain_evidence"] == 450
    assert found["events"]["build_calls"] == found["plain"]["build_calls"] == 0
    assert found["plain"]["vs_plain"] is None
    assert found["events"]["vs_plain"] == 1.0  # on the one question that both were asked


def test_a_price_that_is_needed_and_missing_gives_no_dollars() -> None:
    (plain,) = summarise([line("q", "plain", 1.0, correct=True, prompt=9)], rows_named(["plain"]),
                         Tally({}, {}))  # fmt: skip
    assert plain.dollars is None


def test_the_table_has_the_promised_columns_in_front() -> None:
    text = to_csv(summarise([line("q", "plain", 1.0)], rows_named(["plain"]), Tally({}, {})))
    (row,) = csv.DictReader(io.StringIO(text))
    assert list(row)[:8] == [
        "row",
        "accuracy",
        "evidence_at_1000_tokens",
        "evidence_at_2000_tokens",
        "recall_at_10",
        "injected_tokens",
        "build_tokens",
        "build_calls",
    ]
    assert (row["row"], row["accuracy"], row["recall_at_10"]) == ("plain", "", "1.0")


def test_what_could_not_be_answered_is_counted_and_told() -> None:
    answered = line("q1", "plain", 1.0, correct=True)
    cut_off = replace(line("q2", "plain", 1.0, correct=False), error="cut <off>")
    unnamed = replace(line("q3", "plain", 1.0, correct=True), evidence_at={})
    rows = rows_named(["plain"])
    summaries = summarise([answered, cut_off, unnamed], rows, Tally({}, {}))
    fields = fields_of(summaries[0])
    assert (fields["questions"], fields["evidence_questions"], fields["errors"]) == (3, 2, 1)
    config = {"benchmark": "b", "half": "dev", "half_rule": "", "reader": "r", "judge": "",
              "extractor": "", "commit": ""}  # fmt: skip
    told = to_html(rows, summaries, {}, [], config)
    assert "<b>plain</b>: 1 of 3: cut &lt;off&gt;" in told
    assert "Not answered" not in to_html(rows, summarise([answered], rows, Tally({}, {})), {}, [],
                                         config)  # fmt: skip


def test_rows_keep_their_order_and_the_baseline() -> None:
    assert [row.name for row in rows_named(["sediment", "no-memory"])] == [
        "no-memory",
        "plain",
        "sediment",
    ]
    with pytest.raises(UserError, match="--rows: best is no row"):
        rows_named(["best"])

"""The figures of ``sediment status``, from records and a metrics page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from connectors.kafka.deadletter import dead_letter
from connectors.stage_figures import StageFigures, stage_figures
from flows.upkeep.status import (
    dead_letter_counts,
    log_away,
    outcome_rates,
    partition_lags,
)
from stores.records import LogRecord, Outcome, Position
from tests.rig.events import START, TOPIC, record


def _letter(stage: str, reason: str, timestamp_ms: int) -> LogRecord:
    letter = dead_letter(
        record(b"x"), topic="sediment.l1.dlq", stage=stage, error_class="E", reason=reason,
        error="", attempt=1, first_failed_at=START, last_failed_at=START, pipeline="p",
    )  # fmt: skip
    position = Position("sediment.l1.dlq", 0, 0)
    return LogRecord(position, timestamp_ms, letter.key, letter.value, letter.headers)


def _outcome(result: str, reason: str | None = None) -> LogRecord:
    outcome = Outcome(
        outcome_id="o", kind="window", stage="reconcile", result=result, reason=reason,
        topic=TOPIC, partition=0, offsets=(0,), pipeline="p",
    )  # fmt: skip
    return LogRecord(
        Position("sediment.outcomes", 0, 0), 0, b"o", outcome.model_dump_json().encode()
    )


def test_lag_of_each_flow_that_has_read_anything() -> None:
    lags = partition_lags({1: 7, 0: 10}, {"all": {}, "l0": {0: 10}, "l1": {0: 4, 1: 9}})
    assert [(one.flow, one.partition, one.lag) for one in lags] == [
        ("l0", 0, 0),
        ("l0", 1, 7),
        ("l1", 0, 6),
        ("l1", 1, 0),  # the topic was made anew
    ]


def test_dead_letters_by_stage_and_reason() -> None:
    letters = [
        _letter("extract", "timeout", 5),
        _letter("extract", "timeout", 3),
        _letter("decode", "invalid_json", 9),
        record(b"not a dead letter"),
    ]
    assert [
        (one.stage, one.reason, one.count, one.newest_ms) for one in dead_letter_counts(letters)
    ] == [
        ("extract", "timeout", 2, 5),
        ("decode", "invalid_json", 1, 9),
        ("unreadable", "", 1, letters[3].timestamp_ms),
    ]


def test_outcomes_by_result_and_minute() -> None:
    records = [_outcome("extracted"), _outcome("extracted"), _outcome("skipped", "no_user_text")]
    rates = outcome_rates([*records, record(b"{}")], span_ms=120_000)
    assert [(one.result, one.reason, one.count, one.per_minute) for one in rates] == [
        ("extracted", "", 2, 1.0),
        ("skipped", "no_user_text", 1, 0.5),
        ("unreadable", "", 1, 0.5),
    ]


def test_stages_of_a_metrics_page() -> None:
    registry = CollectorRegistry()
    pending = Gauge("sediment_stage_pending", "", ["stage"], registry=registry)
    in_flight = Gauge("sediment_stage_in_flight", "", ["stage"], registry=registry)
    retries = Counter("sediment_stage_retries", "", ["stage", "reason"], registry=registry)
    waiting = Gauge("sediment_stage_retries_waiting", "", ["stage"], registry=registry)
    oldest = Gauge("sediment_stage_oldest_pending_seconds", "", ["stage"], registry=registry)
    pending.labels("extract").set(12)
    pending.labels("index").set(1)
    in_flight.labels("extract").set(3)
    retries.labels("extract", "timeout").inc(2)
    retries.labels("extract", "rate_limited").inc(5)
    waiting.labels("extract").set(4)
    oldest.labels("extract").set(61.5)
    page = generate_latest(registry).decode()
    assert stage_figures(text_string_to_metric_families(page)) == [
        StageFigures("extract", 12, 3, 7, 4, 61.5),
        StageFigures("index", 1, 0, 0, 0, 0.0),
    ]


def test_a_log_that_is_away_is_told_only_while_it_is() -> None:
    page = (
        "# TYPE sediment_log_away_seconds gauge\n"
        'sediment_log_away_seconds{doing="reading"} 0.0\n'
        'sediment_log_away_seconds{doing="writing"} 42.0\n'
    )
    assert log_away(page) == {"writing": 42.0}
    assert log_away("# TYPE other gauge\nother 1.0\n") == {}

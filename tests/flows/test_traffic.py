"""Traffic runs: what is said and when, how the model fails, and what a run is held against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.traffic import main, waiting
from benchmarks.traffic_plan import (
    DISTURBANCES,
    SESSION_EVENTS,
    Ask,
    Conversations,
    Failures,
    Plan,
    Recalls,
    Sample,
    growths,
    not_held,
    recalls,
    within_s,
)
from stores.records import L0Event
from tests.rig.scripted_llm import CHAT, EMBEDDINGS, Received, Step

PLAN = Plan(minutes=3, rate=5, scopes=12)


def said(plan: Plan) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]:
    talk = Conversations(plan)
    return [talk.next() for _ in range(plan.events)], list(talk.ends())


def test_two_hours_are_said_in_the_minutes_given() -> None:
    events, _ = said(PLAN)
    first, last = (
        L0Event.model_validate_json(value).occurred_at for _, value in (events[0], events[-1])
    )
    assert 7190 < (last - first).total_seconds() < 7200
    assert PLAN.compression == 40
    assert (PLAN.due(0.0), PLAN.due(60.0), PLAN.due(1e6)) == (0, 300, PLAN.events)


def test_every_event_is_valid_its_id_is_its_own_and_every_session_ends_once() -> None:
    events, ends = said(PLAN)
    assert (events, ends) == said(PLAN), "the same for the same seed"
    assert events != said(replace(PLAN, seed=1))[0]
    told = [(key, L0Event.model_validate_json(value)) for key, value in [*events, *ends]]
    assert len({event.event_id for _, event in told}) == len(told)
    assert len({(key, event.user_id) for key, event in told}) == len({key for key, _ in told}) > 6
    sessions: dict[tuple[str | None, str | None], list[str]] = {}
    for _, event in told:
        sessions.setdefault((event.user_id, event.session_id), []).append(event.type)
    for types in sessions.values():
        assert types.index("session_end") == len(types) - 1
        assert len(types) <= SESSION_EVENTS + 1


def test_a_session_that_has_ended_is_not_ended_again() -> None:
    events, ends = said(Plan(minutes=1, rate=(SESSION_EVENTS + 1) / 60, scopes=1))
    assert L0Event.model_validate_json(events[-1][1]).type == "session_end"
    assert ends == []


def test_a_model_fails_a_share_of_its_calls_in_every_way_and_has_new_luck_when_asked_again() -> (
    None
):
    failures = Failures(0.05, seed=3)

    def ask(path: str, number: int) -> Step:
        return failures(Received(0, path, {}, {"messages": [{"content": str(number)}]}, 0.0))

    for number in range(3000):
        ask(CHAT, number)
    assert failures.calls == 3000
    assert 0.035 < failures.failed.total() / 3000 < 0.065
    assert failures.failed.keys() == Failures.KINDS.keys()
    before = failures.failed.copy()
    steps = {ask(CHAT, 7).status for _ in range(300)}
    assert 200 in steps
    assert failures.failed != before, "the same question fails at another time"
    assert all(ask(EMBEDDINGS, number) == Step() for number in range(200))
    assert failures.calls == 3300


def test_every_disturbance_is_over_before_memory_is_compared() -> None:
    shares = [one.share for one in DISTURBANCES]
    assert shares == sorted(shares)
    assert shares[-1] < 0.5


def test_recalls_are_counted_and_none_asked_is_not_available() -> None:
    asks = [Ask(n, float(n)) for n in range(98)]
    asks += [Ask(99, 5000.0, "500"), Ask(100, 98.0, degraded=("embed:timeout",), tries=2)]
    found = recalls(asks)
    assert (found.asked, found.answered, found.asked_again) == (100, 99, 1)
    assert (found.p50_ms, found.p95_ms) == (49.0, 94.0)
    assert found.availability == 0.99
    assert (found.failures, found.degraded) == ({"500": 1}, {"embed:timeout": 1})
    assert recalls([]).availability == 0.0


def test_memory_is_compared_where_the_process_is_one_and_the_same() -> None:
    samples = [
        Sample(
            float(at),
            {
                "grows": (1, 100.0 + at),
                "flat": (2, 50.0),
                "restarted": (3 if at < 80 else 4, 50.0),
                **({"late": (5, 10.0)} if at > 70 else {}),
            },
        )
        for at in range(0, 120)
    ]
    flat, grows = growths(samples, 100, calm_s=40)
    assert (flat.name, grows.name) == ("flat", "grows")
    assert (grows.middle_mb, grows.end_mb, grows.mb_per_hour) == (155.0, 195.0, 3600.0)
    assert grows.percent == pytest.approx(25.8, abs=0.05)
    assert (flat.percent, flat.mb_per_hour) == (0.0, 0.0)
    late = growths(samples, 100, calm_s=72)
    assert [(one.name, one.middle_mb) for one in late] == [
        ("flat", 50.0), ("grows", 177.0), ("late", 10.0),
    ]  # fmt: skip
    assert growths(samples, 100, calm_s=81) == [], "too late to be compared with the end"


GOOD = Recalls(1000, 999, 3, 10.0, 20.0, {}, {})
HELD = {
    "clean": True, "drained": True, "accepted": 10, "refused": 0, "recorded": 10, "asked": GOOD,
    "died": [], "skipped": [],
}  # fmt: skip


def test_a_run_in_which_all_is_well_holds() -> None:
    assert not_held(**HELD) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"clean": False}, "audit"),
        ({"drained": False}, "time was up"),
        ({"recorded": 9}, "1 acknowledged"),
        ({"refused": 2}, "2 events"),
        ({"asked": replace(GOOD, answered=998)}, "99.800%"),
        ({"died": ["l1"]}, "l1"),
        ({"skipped": ["l1 rescaled"]}, "l1 rescaled"),
    ],
)
def test_what_does_not_hold_is_told(wrong: dict[str, object], told: str) -> None:
    (line,) = not_held(**{**HELD, **wrong})  # type: ignore[arg-type]
    assert told in line


def test_what_has_not_ended_is_counted_with_and_without_reasons() -> None:
    assert waiting({"ends": {"extracted": 5, "skipped": {"repeated": 2}}}) == 0
    assert waiting({"ends": {"open": 1, "pending": {"a": 2, "b": 3}, "not_read": 4}}) == 10


def test_a_share_is_recallable_within_the_bound_of_its_bucket() -> None:
    page = "# TYPE sediment_recallable_seconds histogram\n" + "".join(
        f'sediment_recallable_seconds_bucket{{layer="events",le="{le}"}} {count}\n'
        for le, count in (("0.1", 0), ("1", 60), ("5", 96), ("+Inf", 100))
    )
    assert within_s(page, "events", 0.5) == 1.0
    assert within_s(page, "events", 0.95) == 5.0
    assert within_s(page, "atoms", 0.5) is None
    assert within_s("", "events", 0.5) is None


@pytest.mark.parametrize("arguments", [["--rate", "0"], ["--minutes", "0.5"], ["--failures", "1"]])
def test_an_option_that_makes_no_sense_is_named(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err

"""The async stage in small real dataflows: order, retries, batches, fairness, back-pressure."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, cluster_main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from connectors.metrics import STAGE_IN_FLIGHT, STAGE_PENDING, STAGE_RETRIES
from flows.async_stage import Done, Failed, PendingWork, async_stage
from stores.errors import (
    LockConflict,
    MalformedAnswer,
    RateLimited,
    RequestRefused,
    RequestTimedOut,
    ServiceUnavailable,
)
from tests.flows.stage_rig import (
    START,
    Gate,
    GatedSource,
    Item,
    Result,
    ScriptedWork,
    SteppingClock,
    TurnedClock,
    flow_of,
    numbers_by_key,
    run,
    stage_of,
    wait_for,
)
from tests.rig.thread_states import ThreadStates


def refused() -> RequestRefused:
    return RequestRefused("400", status=400)


@pytest.mark.parametrize("per_key", [1, 8])
def test_every_item_leaves_once_in_the_order_of_its_key(per_key: int) -> None:
    items = [("abc"[n % 3], n) for n in range(60)]
    work = ScriptedWork(script={("a", 3): [RateLimited("429")], ("b", 4): [LockConflict("held")]})
    out = run([items[:30], items[30:]], stage_of(work, per_key=per_key))
    assert numbers_by_key(out) == {key: [n for name, n in items if name == key] for key in "abc"}
    assert all(isinstance(result, Done) for _, result in out)
    assert {result.output for _, result in out if isinstance(result, Done)} == {
        f"{key}-{n}" for key, n in items
    }
    assert 1 <= work.most_in_flight <= per_key


FAULTS: dict[str, Exception] = {
    "timeout": RequestTimedOut("late"),
    "limited": RateLimited("429"),
    "down": ServiceUnavailable("llm", "503"),
    "conflict": LockConflict("held"),
    "malformed": MalformedAnswer("no `text`"),
    "refused": RequestRefused("400", status=400),
}


def expected_end(faults: Sequence[str]) -> tuple[bool, int]:
    """Say by hand whether an item with these faults succeeds, and after how many attempts."""
    attempts = transient = malformed = 0
    for fault in faults:
        if fault == "conflict":
            continue
        attempts += 1
        transient += fault in {"timeout", "limited", "down"}
        malformed += fault == "malformed"
        if fault == "refused" or transient > 3 or malformed > 2:
            return False, attempts
    return True, attempts + 1


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    schedule=st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(sorted(FAULTS)), max_size=5)),
        min_size=1,
        max_size=15,
    ),
    per_key=st.sampled_from([1, 2, 8]),
    batch=st.sampled_from([1, 4, 15]),
)
def test_any_schedule_of_failures_ends_each_item_once_in_order(
    schedule: list[tuple[str, list[str]]], per_key: int, batch: int
) -> None:
    items: list[Item] = [(key, number) for number, (key, _) in enumerate(schedule)]
    script: dict[Item, list[Exception]] = {
        item: [FAULTS[fault] for fault in faults]
        for item, (_, faults) in zip(items, schedule, strict=True)
    }
    stage = stage_of(ScriptedWork(script=script), per_key=per_key, concurrency=5)
    out = run([items[at : at + batch] for at in range(0, len(items), batch)], stage)
    for key in "abc":
        assert numbers_by_key(out).get(key, []) == [n for name, n in items if name == key]
    for _, result in out:
        succeeds, attempts = expected_end(schedule[result.item[1]][1])
        assert isinstance(result, Done if succeeds else Failed)
        assert result.attempts == attempts


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    bad=st.dictionaries(
        st.integers(0, 19), st.sampled_from(["refused", "limited", "malformed"]), max_size=5
    ),
    batch_max=st.sampled_from([2, 7, 20]),
)
def test_bad_items_fail_alone_out_of_any_batch(bad: dict[int, str], batch_max: int) -> None:
    items: list[Item] = [("a", number) for number in range(20)]
    work = ScriptedWork(always={("a", number): FAULTS[fault] for number, fault in bad.items()})
    out = run([items], stage_of(work, batch_max=batch_max, per_key=2))
    assert numbers_by_key(out) == {"a": list(range(20))}
    assert {r.item[1] for _, r in out if isinstance(r, Failed)} == set(bad)


def test_batches_are_filled_from_what_waits() -> None:
    work = ScriptedWork()
    run([[("a", number) for number in range(20)]], stage_of(work, batch_max=8))
    assert [len(call) for call in work.calls] == [8, 8, 4]


def test_retries_wait_for_the_clock_and_carry_their_times() -> None:
    clock, out = TurnedClock(), list[Result]()
    work = ScriptedWork(always={("a", 0): RateLimited("429", retry_after=7.0)})
    made: list[int] = []

    def turn(seconds: float) -> bool:
        """Turn the clock once the next call has been made; first check that it waited."""
        if len(work.calls) != len(made) + 1 or stage.status().in_flight:
            return False
        made.append(len(work.calls))
        clock.turn(seconds)
        return True

    stage = stage_of(work, clock=clock)
    run([("a", 0), *(Gate(partial(turn, wait)) for wait in (7.0, 15.0, 45.0))], stage, out=out)
    ((_, result),) = out
    assert isinstance(result, Failed)
    assert (result.reason, result.error_class, result.attempts) == (
        "rate_limited",
        "RateLimited",
        4,
    )
    assert result.first_failed_at == START
    assert result.last_failed_at == START + timedelta(seconds=67)


def test_nothing_is_tried_again_before_its_time() -> None:
    clock, polls = TurnedClock(), list[int]()
    work = ScriptedWork(script={("a", 0): [RateLimited("429", retry_after=30.0)]})

    def failed() -> bool:
        if not work.calls or stage.status().in_flight:
            return False
        clock.turn(29.9)
        return True

    def almost_due() -> bool:
        polls.append(len(work.calls))
        return len(polls) > 200  # the loop has asked the clock several times by then

    def due() -> bool:
        assert set(polls) == {1}
        clock.turn(0.1)
        return True

    stage = stage_of(work, clock=clock)
    ((_, result),) = run([("a", 0), Gate(failed), Gate(almost_due), Gate(due)], stage)
    assert result.attempts == 2


def test_malformed_answer_is_asked_again_with_the_error_shown() -> None:
    work = ScriptedWork(script={("a", 0): [MalformedAnswer("no `text`")]})
    run([[("a", 0), ("a", 1)]], stage_of(work))
    assert work.shown == [None, "no `text`", None]


def test_a_bug_fails_its_item_is_logged_and_the_stage_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = ScriptedWork(always={("a", 0): KeyError("what Ana said")})
    with caplog.at_level(logging.ERROR):
        out = run([[("a", 0), ("a", 1)]], stage_of(work))
    (_, failed), (_, done) = out
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.error_class) == ("internal_error", "KeyError")
    assert "Ana" not in failed.message
    assert isinstance(done, Done)
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is KeyError


def test_wrong_number_of_results_is_a_bug() -> None:
    async def work(items: Sequence[Item], previous_error: str | None) -> list[str]:
        return ["one too many"] * (len(items) + 1)

    ((_, result),) = run([("a", 0)], stage_of(work))
    assert isinstance(result, Failed)
    assert result.reason == "internal_error"


def test_call_that_takes_too_long_is_cancelled_and_tried_again() -> None:
    cancelled: list[Item] = []

    async def work(items: Sequence[Item], previous_error: str | None) -> list[str]:
        if not cancelled:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.extend(items)
                raise
        return ["late but good"]

    counter = STAGE_RETRIES.labels("under_test", "timeout")
    before = counter._value.get()
    ((_, result),) = run([("a", 0)], stage_of(work, timeout_s=0.05))
    assert result == Done(("a", 0), "late but good", attempts=2)
    assert cancelled == [("a", 0)]
    assert counter._value.get() == before + 1


def test_poison_key_slows_nobody() -> None:
    clock, out = TurnedClock(), list[Result]()
    work = ScriptedWork(always={("poison", 0): ServiceUnavailable("llm", "503")})
    healthy = [(f"k{n % 5}", n) for n in range(50)]

    def the_rest_is_through() -> bool:
        return len(out) == len(healthy)

    def the_poison_has_failed() -> bool:
        clock.turn(60)
        return len(out) == len(healthy) + 2

    stage = stage_of(work, clock=clock, concurrency=2)
    run(
        [
            [("poison", 0), ("poison", 1), *healthy],
            Gate(the_rest_is_through),
            Gate(the_poison_has_failed),
        ],
        stage,
        out=out,
    )
    assert numbers_by_key(out)["poison"] == [0, 1]
    assert [type(r) for key, r in out if key == "poison"] == [Failed, Done]


@pytest.mark.parametrize("per_key", [4, 8])
def test_hot_key_does_not_starve_the_others(per_key: int) -> None:
    calls: list[str] = []
    total = 1010

    async def work(items: Sequence[Item], previous_error: str | None) -> list[str]:
        while not everything_was_taken:
            everything_was_taken.extend([True] * (stage.status().pending == total))
            await asyncio.sleep(0.005)
        calls.append(items[0][0])
        return ["done"]

    everything_was_taken: list[bool] = []
    stage = stage_of(work, concurrency=4, per_key=per_key)
    hot = [("a-hot", n) for n in range(1000)]
    run([[*hot, *((f"k{n}", n) for n in range(10))]], stage)
    assert max(calls.index(f"k{n}") for n in range(10)) <= 4 + 2 * 11


def test_source_pauses_at_the_cap() -> None:
    """No call ends before the full source was asked for more often enough to read it all."""
    pending, most, asked, release = PendingWork(cap=20), [0], [0], threading.Event()

    def pause() -> bool:
        most[0] = max(most[0], pending.count())
        asked[0] += pending.full()
        if asked[0] > 30:
            release.set()
        return pending.full()

    async def work(items: Sequence[Item], previous_error: str | None) -> list[str]:
        while not release.is_set():
            await asyncio.sleep(0.001)
        return ["done" for _ in items]

    stage = stage_of(work, pending=pending)
    items = [("ab"[n % 2], n) for n in range(200)]
    out = run([items[at : at + 5] for at in range(0, 200, 5)], stage, pause=pause)
    assert len(out) == 200
    assert 20 <= most[0] <= 20 + 5
    assert pending.count() == 0


def test_gauges_and_status_tell_what_is_pending() -> None:
    clock, seen = TurnedClock(), list[tuple[int, int, float, float, float]]()
    release = threading.Event()

    async def work(items: Sequence[Item], previous_error: str | None) -> list[str]:
        while not release.is_set():
            await asyncio.sleep(0.005)
        return ["done"]

    def look() -> bool:
        status = stage.status()
        if status.in_flight < 2:
            return False
        clock.turn(90)
        status = stage.status()
        seen.append(
            (
                status.pending,
                status.keys,
                status.oldest_pending_age_s,
                STAGE_PENDING.labels("under_test")._value.get(),
                STAGE_IN_FLIGHT.labels("under_test")._value.get(),
            )
        )
        release.set()
        return True

    stage = stage_of(work, clock=clock)
    run([[("a", 0), ("a", 1), ("b", 2)], Gate(look)], stage)
    assert seen == [(3, 2, 90.0, 3.0, 2.0)]
    assert stage.status().pending == 0
    assert STAGE_PENDING.labels("under_test")._value.get() == 0
    assert STAGE_IN_FLIGHT.labels("under_test")._value.get() == 0


def test_gauges_tell_the_age_of_the_oldest_and_how_many_wait_for_a_retry() -> None:
    clock, seen = TurnedClock(), list[tuple[float | None, float | None]]()
    work = ScriptedWork({("a", 0): [ServiceUnavailable("llm", "down")]})

    def gauge(name: str) -> float | None:
        return REGISTRY.get_sample_value(f"sediment_stage_{name}", {"stage": "under_test"})

    def look() -> bool:
        if len(work.calls) < 2 or stage.status().in_flight:
            return False
        clock.turn(3)  # the first retry is due after 5 s at the earliest
        seen.append((gauge("oldest_pending_seconds"), gauge("retries_waiting")))
        clock.turn(60)
        return True

    stage = stage_of(work, clock=clock)
    results = run([("a", 0), ("b", 0), Gate(look)], stage)
    assert sorted(key for key, _ in results) == ["a", "b"]
    assert seen == [(3.0, 1.0)]
    assert (gauge("oldest_pending_seconds"), gauge("retries_waiting")) == (0.0, 0.0)


def test_key_is_looked_at_often_only_while_a_result_may_come_soon() -> None:
    async def hang(items: Sequence[Item], previous_error: str | None) -> list[str]:
        await asyncio.Event().wait()
        return []

    with stage_of(hang, concurrency=2) as stage:
        engine = stage.engine()
        soon = []
        for number in range(5):
            lane = engine.open(())
            engine.accept(lane, [(f"k{number}", number)])
            soon.append(engine.soon(lane))
            wait_for(lambda: stage.status().in_flight == min(stage.status().keys, 2))
        assert soon == [True, True, True, True, False]


def test_two_workers_share_the_stage() -> None:
    items = [(f"k{n % 7}", n) for n in range(140)]
    work = ScriptedWork(script={item: [RateLimited("429")] for item in items[::20]})
    stage, out = stage_of(work, concurrency=3, clock=SteppingClock()), list[Result]()
    with stage:
        cluster_main(
            flow_of(GatedSource([items[at : at + 20] for at in range(0, 140, 20)]), stage, out),
            [],
            0,
            worker_count_per_proc=2,
        )
    order = numbers_by_key(out)
    assert order == {f"k{key}": list(range(key, 140, 7)) for key in range(7)}


def test_a_worker_with_stages_alone_keeps_its_thread_state() -> None:
    """What is local to a thread of Bytewax's is there at the next call, and shows that."""
    items = [(f"k{n % 7}", n) for n in range(140)]
    stage, states = stage_of(ScriptedWork()), ThreadStates()

    def look(result: Result) -> Result:
        states.look()
        return result

    flow = Dataflow("states")
    up = op.input("in", flow, GatedSource([items[at : at + 20] for at in range(0, 140, 20)]))
    done = async_stage("stage", op.key_on("key", up, lambda item: item[0]), stage)
    op.output("out", op.map("look", done, look), TestingSink([]))
    with stage:
        cluster_main(flow, [], 0, worker_count_per_proc=2)
    assert len(states.calls) == len(items)
    assert sorted(states.begun) == sorted(set(states.calls))

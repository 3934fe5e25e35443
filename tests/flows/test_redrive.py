"""Redrive: a dead letter that comes again is its original, and a window the same window."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka.deadletter import parse_dead_letter
from connectors.kafka.redrive import REDRIVE_HEADERS, as_it_was, redriven_from
from flows import outputs
from flows.decode import decode
from flows.dedup import _FirstOnly
from flows.topology import _read
from flows.upkeep.redrive import Case, Wanted
from flows.window import Ended, ScopeWindows, WindowPolicy
from flows.window.operator import _WindowLogic
from stores.errors import MalformedAnswer
from stores.records import LogRecord, OutRecord, Position, SourcedEvent, Window
from tests.flows.stage_rig import TurnedClock
from tests.rig.dead_letters import FIELDS, TOPICS, MemoryLog, cases_of, given_up
from tests.rig.events import TOPIC, at, record, sourced
from tests.rig.fake_chat import FakeChat, extract

POLICY = WindowPolicy(user_turns=3)
KEY = b"acme/helper/ana"


def conversation(count: int, session: str = "s1", first: int = 0) -> list[SourcedEvent]:
    """Give user messages of one session, at consecutive offsets."""
    return [
        sourced(f"{session}-{n}", seconds=10 * n, offset=first + n, session_id=session)
        for n in range(count)
    ]


def windows_of(events: Sequence[SourcedEvent]) -> list[Window]:
    cutting = ScopeWindows(POLICY)
    ended = [one for event in events for one in cutting.on_event(event)]
    return [one for one in (*ended, *cutting.close_all("end_of_input")) if isinstance(one, Window)]


def come_again(out: OutRecord, offset: int = 900) -> SourcedEvent:
    """Read a redriven record as the flow does, long after the original."""
    was = as_it_was(read_later(out, offset))
    assert was is not None
    event = decode(was[0], FIELDS, was[1])
    assert isinstance(event, SourcedEvent)
    return event


def read_later(out: OutRecord, offset: int = 900) -> LogRecord:
    time_ms = int(at(1_000_000).timestamp() * 1000)
    return LogRecord(Position(out.topic, 2, offset), time_ms, out.key, out.value, out.headers)


def redriven_events(window: Window) -> list[SourcedEvent]:
    """Give a window up and redrive it."""
    log = MemoryLog()
    log.append(outputs.failed_window(window, "extract", given_up(window), TOPICS))
    (case,) = cases_of(log).all()
    assert case.problem == ""
    return [come_again(out, 900 + n) for n, out in enumerate(case.redriven())]


# --- the record ------------------------------------------------------------------------------


def test_a_redriven_record_is_its_original_again() -> None:
    original = replace(record(b"{", offset=7), key=b"\xff", headers=(("trace", b"1"),))
    log = MemoryLog()
    log.refuse(original)
    (case,) = cases_of(log).all()
    (out,) = case.redriven()
    assert (out.topic, out.key, out.value) == (TOPIC, original.key, original.value)
    assert out.headers[: len(original.headers)] == original.headers
    assert redriven_from(read_later(out)) == case.first.id == "l0.dlq/0/0"
    was = as_it_was(read_later(out))
    assert was is not None
    assert was[0] == original


def test_a_message_that_failed_behind_the_windows_and_names_none_is_an_ordinary_record() -> None:
    """Taken for a dead letter it would be dropped, without an outcome: nothing waits for it."""
    (window,) = windows_of(conversation(1))
    log = MemoryLog()
    log.append(outputs.failed_window(window, "reconcile", given_up(window), TOPICS))
    again = read_later(cases_of(log).all()[0].redriven()[0])
    assert _read(again, FIELDS)[0].position == window.events[0].position
    without = replace(again, headers=tuple(one for one in again.headers if "window" not in one[0]))
    was, event = _read(without, FIELDS)
    assert isinstance(event, SourcedEvent)
    assert (was, event.redriven, event.position) == (without, None, without.position)


def test_a_window_that_fails_again_leaves_the_same_letters_and_outcome() -> None:
    """Nothing of the redrive stays in them, however often it is repeated."""
    (window,) = windows_of(conversation(3))
    first = outputs.failed_window(window, "extract", given_up(window), TOPICS)
    cutting = ScopeWindows(POLICY)
    (again,) = [w for e in redriven_events(window) for w in cutting.on_event(e)]
    assert isinstance(again, Window)
    assert outputs.failed_window(again, "extract", given_up(again), TOPICS) == first


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sediment-partition", b"x"),
        ("sediment-offset", b"-1"),
        ("sediment-offset", b"9" * 30),
        ("sediment-timestamp-ms", b"9" * 30),
        ("sediment-window-size", b""),
        ("sediment-window-index", b"3"),
        ("sediment-window-index", b"-1"),
        ("sediment-topic", b"\xff"),
        ("sediment-stage", b"by hand"),
        ("sediment-window-id", b"a window"),
        ("sediment-window-id", b""),
    ],
)
def test_headers_that_are_not_ours_make_an_ordinary_record(name: str, value: bytes) -> None:
    (window,) = windows_of(conversation(3))
    log = MemoryLog()
    log.append(outputs.failed_window(window, "extract", given_up(window), TOPICS))
    out = cases_of(log).all()[0].redriven()[0]
    assert tuple(header for header, _ in out.headers) == REDRIVE_HEADERS
    assert as_it_was(read_later(out)) is not None
    wrong = tuple((n, value if n == name else v) for n, v in out.headers)
    assert as_it_was(replace(read_later(out), headers=wrong)) is None
    without = tuple((n, v) for n, v in out.headers if n != name)
    assert as_it_was(replace(read_later(out), headers=without)) is None


def test_a_snapshot_keeps_that_an_event_was_redriven() -> None:
    (window,) = windows_of(conversation(3))
    event = redriven_events(window)[1]
    assert event.redriven is not None
    assert pickle.loads(pickle.dumps(event)) == event


# --- windows ---------------------------------------------------------------------------------


def test_a_redriven_window_passes_by_the_open_one() -> None:
    events = conversation(8)
    failed, live, _ = windows_of(events)
    cutting = ScopeWindows(POLICY)
    ended = [one for event in events[:4] for one in cutting.on_event(event)]
    again = [one for event in redriven_events(failed) for one in cutting.on_event(event)]
    ended += [one for event in events[4:6] for one in cutting.on_event(event)]
    assert again == [
        replace(failed, events=tuple(redriven_events(failed)), background=(), closed_by="redrive")
    ]
    assert [e.record for e in redriven_events(failed)] == [e.record for e in failed.events]
    assert ended == [failed, live]


def test_a_half_arrived_window_waits_and_end_of_input_does_not_close_it() -> None:
    (window,) = windows_of(conversation(3))
    first, second, third = redriven_events(window)
    cutting = ScopeWindows(POLICY)
    for event in (third, first, first):
        assert cutting.on_event(event) == []
    assert cutting.close_all("end_of_input") == []
    resumed = ScopeWindows(POLICY, pickle.loads(pickle.dumps(cutting.snapshot())))
    (whole,) = resumed.on_event(second)
    assert isinstance(whole, Window)
    assert [e.event.event_id for e in whole.events] == ["s1-0", "s1-1", "s1-2"]
    assert resumed.snapshot().redriven == ()


def test_waiting_windows_are_bounded_and_the_oldest_can_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = windows_of([e for n in range(101) for e in conversation(3, f"s{n}", 3 * n)])
    cutting = ScopeWindows(POLICY)
    for window in waiting:
        assert cutting.on_event(redriven_events(window)[0]) == []
    assert len(cutting.snapshot().redriven) == 100
    assert waiting[0].window_id in caplog.text
    (whole,) = [w for e in redriven_events(waiting[0]) for w in cutting.on_event(e)]
    assert isinstance(whole, Window)
    assert whole.window_id == waiting[0].window_id


def shown(ended: Sequence[Ended]) -> list[tuple[str, str, list[str], list[str]]]:
    return [
        (
            one.window_id,
            one.closed_by,
            [e.event.event_id for e in one.events],
            [e.event.event_id for e in one.background],
        )
        for one in ended
        if isinstance(one, Window)
    ]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=4))
def test_live_events_and_redriven_windows_do_not_touch_each_other(
    seed: int, restarts: list[int]
) -> None:
    """However they interleave, twice redriven or not, and wherever the flow restarts."""
    chance = random.Random(seed)
    live = conversation(20)
    undisturbed = windows_of(live)
    redriven = [redriven_events(window) for window in chance.sample(undisturbed, 3)]
    redriven += [list(chance.choice(redriven)) for _ in range(chance.randint(0, 2))]
    queues = [list(live), *[list(events) for events in redriven]]
    cutting = ScopeWindows(POLICY)
    ended: list[Ended] = []
    step = 0
    while any(queues):
        if step in restarts:
            cutting = ScopeWindows(POLICY, pickle.loads(pickle.dumps(cutting.snapshot())))
        ended += cutting.on_event(chance.choice([queue for queue in queues if queue]).pop(0))
        step += 1
    ended += cutting.close_all("end_of_input")
    of_live = [one for one in ended if isinstance(one, Window) and one.closed_by != "redrive"]
    assert shown(of_live) == shown(undisturbed)
    again = [one for one in ended if isinstance(one, Window) and one.closed_by == "redrive"]
    wanted = {window.window_id: window for window in undisturbed}
    assert {one.window_id for one in again} == {
        event.redriven.window_id for events in redriven for event in events if event.redriven
    }
    for one in again:
        original = wanted[one.window_id]
        assert [e.record for e in one.events] == [e.record for e in original.events]


def test_a_redriven_record_that_decodes_now_is_a_new_event_once() -> None:
    event = redriven_after_repair()
    cutting = ScopeWindows(POLICY)
    assert cutting.on_event(event) == cutting.on_event(event) == []
    (window,) = cutting.close_all("end_of_input")
    assert [e.event.event_id for e in window.events] == ["bad"]
    assert window.events[0].position.offset == 7


@pytest.mark.parametrize("whole", [False, True])
def test_a_live_flow_waits_for_new_events_only(whole: bool) -> None:
    """An event that decodes now is closed when idle; a redriven window opens nothing."""
    events = redriven_events(windows_of(conversation(3))[0]) if whole else [redriven_after_repair()]
    logic = _WindowLogic(POLICY, TurnedClock(), True, lambda: False, None, None)
    ended, _ = logic.on_batch([events])
    assert [w.closed_by for w in ended if isinstance(w, Window)] == ["redrive"] * whole
    assert (logic.notify_at() is None) == whole


def redriven_after_repair() -> SourcedEvent:
    """Give an event that a flow refused which knew too little: it decodes with today's."""
    broken = record(b"{", offset=7)
    log = MemoryLog()
    log.refuse(broken)
    out = cases_of(log).all()[0].redriven()[0]
    value = sourced("bad", offset=7).record.value
    return come_again(replace(out, value=value))


def test_an_event_the_index_gave_up_is_indexed_again_and_in_no_window_again() -> None:
    event = sourced("e1")
    log = MemoryLog()
    log.append(outputs.failed_event(given_up(event), TOPICS))
    (out,) = cases_of(log).all()[0].redriven()
    again = come_again(out)
    cutting, first_only = ScopeWindows(POLICY), _FirstOnly(100, None)
    assert cutting.on_event(again) == []
    assert cutting.close_all("end_of_input") == []
    assert first_only.on_batch([[event, event, again, again]])[0] == [event, again, again]
    # Any other redriven record is a repeat here: its text was indexed the first time.
    (window,) = windows_of([event])
    assert first_only.on_batch([redriven_events(window)])[0] == []


def test_a_recorded_answer_that_was_refused_is_not_heard_again() -> None:
    """The first request is the recorded one; what follows a complaint differs by dead letter."""
    (live,) = windows_of(conversation(3))
    again = replace(live, events=tuple(redriven_events(live)))

    def hashes(window: Window) -> list[str]:
        chat = FakeChat("no JSON")
        error = None
        for _ in range(3):
            with pytest.raises(MalformedAnswer) as failure:
                extract(chat, window, error)
            error = str(failure.value)
        return [request.request_hash() for request in chat.requests]

    assert hashes(again)[0] == hashes(live)[0]
    assert hashes(again) == hashes(again)
    assert len({*hashes(live), *hashes(again)}) == 5


# --- cases and their states ------------------------------------------------------------------


def the_case(log: MemoryLog) -> Case:
    (case,) = cases_of(log).all()
    return case


def test_a_window_goes_from_open_to_redriven_to_resolved() -> None:
    (window,) = windows_of(conversation(3))
    log = MemoryLog()
    log.append(outputs.failed_window(window, "extract", given_up(window), TOPICS))
    case = the_case(log)
    assert case.state == "open"
    assert [letter.id for letter in case.letters] == ["l1.dlq/0/0", "l1.dlq/0/1", "l1.dlq/0/2"]
    produced = case.redriven()
    log.append(produced[:2])
    assert the_case(log).state == "open", "half of it is not it"
    log.append(produced[2:])
    assert the_case(log).state == "redriven"
    log.append(outputs.without_user_text(window, TOPICS))
    assert the_case(log).state == "resolved"
    log.append(outputs.failed_window(window, "reconcile", given_up(window, seconds=90), TOPICS))
    assert the_case(log).state == "open"
    assert the_case(log).newest.stage == "reconcile"
    assert len(the_case(log).copies) == 6


def test_letters_of_a_crash_that_wrote_them_twice_are_one_case() -> None:
    (window,) = windows_of(conversation(3))
    log = MemoryLog()
    written = outputs.failed_window(window, "extract", given_up(window), TOPICS)
    log.append(written[:2])
    log.append(written)
    case = the_case(log)
    assert [letter.id for letter in case.letters] == ["l1.dlq/0/2", "l1.dlq/0/3", "l1.dlq/0/4"]
    log.append(case.redriven())
    assert the_case(log).state == "redriven"


def test_a_window_with_a_missing_letter_or_outcome_says_so() -> None:
    (window,) = windows_of(conversation(3))
    *letters, outcome = outputs.failed_window(window, "extract", given_up(window), TOPICS)
    log = MemoryLog()
    log.append(letters)
    assert "outcome" in the_case(log).problem
    log = MemoryLog()
    log.append([letters[0], letters[2], outcome])
    assert the_case(log).problem == "1 of the window's 3 letters are missing"


def test_a_windows_order_is_that_of_its_outcome() -> None:
    """Letters of producers that do not key may stand in any order, and in any partition."""
    (window,) = windows_of(conversation(3))
    *letters, outcome = outputs.failed_window(window, "extract", given_up(window), TOPICS)
    log = MemoryLog()
    log.append([*reversed(letters), outcome])
    assert the_case(log).event_ids == ("s1-0", "s1-1", "s1-2")


def test_a_drop_holds_until_it_fails_anew() -> None:
    (window,) = windows_of(conversation(3))
    log = MemoryLog()
    log.append(outputs.failed_window(window, "extract", given_up(window), TOPICS))
    dropped = the_case(log).dropped()
    assert dropped.outcome_id != window.window_id
    assert (dropped.result, dropped.reason) == ("skipped", "dropped_by_operator")
    assert (dropped.kind, dropped.stage, dropped.offsets) == ("window", "extract", (0, 1, 2))
    assert dropped.event_ids == ("s1-0", "s1-1", "s1-2")
    value = dropped.model_dump_json().encode()
    log.append([OutRecord(TOPICS.outcomes, dropped.outcome_id.encode(), value)])
    assert the_case(log).state == "dropped"
    log.append(outputs.failed_window(window, "extract", given_up(window), TOPICS))
    assert the_case(log).state == "open"


def test_an_event_that_the_index_gave_up_is_resolved_by_its_own_outcome_only() -> None:
    event = sourced("e1")
    (window,) = windows_of([event])
    log = MemoryLog()
    log.append(outputs.failed_event(given_up(event), TOPICS))
    log.append(outputs.without_user_text(window, TOPICS))
    assert the_case(log).state == "open"
    log.append(outputs.indexed_at_last(event, TOPICS))
    assert the_case(log).state == "resolved"


def test_a_refused_record_is_resolved_when_a_window_holds_it() -> None:
    log = MemoryLog()
    log.refuse(record(b"{", offset=7))
    other, same = conversation(1), [redriven_after_repair()]
    log.append(outputs.without_user_text(windows_of(other)[0], TOPICS))
    assert the_case(log).state == "open"
    log.append(outputs.without_user_text(windows_of(same)[0], TOPICS))
    assert the_case(log).state == "resolved"


def test_only_what_is_not_settled_has_to_be_looked_for() -> None:
    (window,) = windows_of(conversation(3))
    log = MemoryLog()
    log.append(outputs.failed_window(window, "extract", given_up(window), TOPICS))
    assert cases_of(log).since_ms == log.read(TOPICS.l1_dead)[0].timestamp_ms
    log.append(outputs.without_user_text(window, TOPICS))
    assert cases_of(log).since_ms is None


def test_filters() -> None:
    (window,) = windows_of(conversation(3))
    log = MemoryLog()
    log.append(outputs.failed_window(window, "extract", given_up(window), TOPICS))
    case = the_case(log)
    failed = parse_dead_letter(case.first.read).last_failed_at
    second = timedelta(seconds=1)
    for wanted in (
        Wanted(),
        Wanted(stage="extract", reason="refused", state="open"),
        Wanted(scope_ids=(("tenant", "acme"), ("user", "ana"))),
        Wanted(since=failed, until=failed + second),
    ):
        assert wanted.takes(case)
    for unwanted in (
        Wanted(stage="index"),
        Wanted(reason="timeout"),
        Wanted(state="dropped"),
        Wanted(scope_ids=(("tenant", "acme"), ("user", "bob"))),
        Wanted(since=failed + second),
        Wanted(until=failed),
    ):
        assert not unwanted.takes(case)


def test_a_refused_record_has_the_scope_of_its_key() -> None:
    log = MemoryLog()
    log.refuse(replace(record(b"{"), key=KEY))
    case = the_case(log)
    assert case.scope == KEY.decode()
    assert Wanted(scope_ids=(("user", "ana"),)).takes(case)

"""Windows: where they close, what they hold, and that a restart cuts the same ones."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, run_main
from hypothesis import given
from hypothesis import strategies as st

from flows.forget.request import is_request, without_forgotten
from flows.window import (
    Ended,
    Forgotten,
    Requested,
    ScopeWindows,
    Skipped,
    WindowPolicy,
    WindowSnapshot,
    window,
)
from stores.records import Redriven, SourcedEvent, Window
from stores.tombstones import Tombstones, tombstone_of
from tests.rig.events import START, sourced

GAP = WindowPolicy().gap.total_seconds()


def _cut(
    events: Sequence[SourcedEvent], policy: WindowPolicy | None = None, *, end: bool = True
) -> list[tuple[str, str, list[str]]]:
    """Give (session, closed by, event ids) of each window, in order."""
    windows = ScopeWindows(policy or WindowPolicy())
    ended = [one for event in events for one in windows.on_event(event)]
    if end:
        ended.extend(windows.close_all("end_of_input"))
    return [_shown(one) for one in ended]


def _shown(one: Ended) -> tuple[str, str, list[str]]:
    if not isinstance(one, Window):
        why = f"skipped: {one.reason}" if isinstance(one, Skipped) else type(one).__name__.lower()
        return one.event.event.session_id, why, [one.event.event.event_id]
    return one.session_id, one.closed_by, [e.event.event_id for e in one.events]


def _turns(
    count: int, session: str = "s1", start: float = 0, step: float = 10
) -> list[SourcedEvent]:
    return [
        sourced(
            f"{session}-{n}",
            seconds=start + n * step,
            session_id=session,
            role="assistant" if n % 2 else "user",
        )
        for n in range(count)
    ]


def test_five_user_turns_close_a_window() -> None:
    assert _cut(_turns(11)) == [
        ("s1", "turns", [f"s1-{n}" for n in range(9)]),
        ("s1", "end_of_input", ["s1-9", "s1-10"]),
    ]


def test_the_turns_of_all_users_of_a_session_count_together() -> None:
    users = [sourced(f"u{n}", seconds=n, name=("Ana", "Bo")[n % 2]) for n in range(6)]
    assert [(why, len(ids)) for _, why, ids in _cut(users)] == [("turns", 5), ("end_of_input", 1)]


def test_warm_up_closes_at_one_two_and_four() -> None:
    users = [sourced(f"u{n}", seconds=n) for n in range(13)]
    cut = _cut(users, WindowPolicy(warmup=True))
    assert [len(ids) for _, _, ids in cut] == [1, 2, 4, 5, 1]


def test_a_gap_in_event_time_closes_before_the_next_event() -> None:
    events = [*_turns(2), sourced("later", seconds=GAP + 11)]
    assert [why for _, why, _ in _cut(events)] == ["gap", "end_of_input"]
    events = [*_turns(2), sourced("sooner", seconds=GAP + 10)]
    assert [why for _, why, _ in _cut(events)] == ["end_of_input"]


def test_another_sessions_clock_closes_an_idle_window() -> None:
    events = [*_turns(2, "old"), *_turns(1, "new", start=GAP + 11)]
    assert _cut(events, end=False) == [("old", "gap", ["old-0", "old-1"])]


def test_session_end_closes_and_belongs_to_the_window() -> None:
    end = sourced("end", seconds=30, type="session_end", role=None, content=None)
    assert _cut([*_turns(2), end], end=False) == [("s1", "session_end", ["s1-0", "s1-1", "end"])]


@pytest.mark.parametrize("late", [0, GAP + 100])
def test_a_session_end_without_a_window_is_skipped_with_a_reason(late: float) -> None:
    end = sourced("end", seconds=late, type="session_end", role=None, content=None)
    events = [*_turns(1), end] if late else [end]
    assert _cut(events, end=False)[-1] == ("s1", "skipped: session_end", ["end"])


# --- what was forgotten ------------------------------------------------------------------------


def _asks(target: str, seconds: float = 35, offset: int = 99, **request: Any) -> SourcedEvent:
    return sourced(
        "f", seconds=seconds, offset=offset, type="forget", role=None, content=None,
        request={"target": target, **request},
    )  # fmt: skip


def _run(events: Sequence[SourcedEvent], kept_out: Tombstones) -> list[Ended]:
    """Read events as a flow does: a request is known before the windows see it."""
    windows = ScopeWindows(WindowPolicy(user_turns=3), kept_out=kept_out)
    ended: list[Ended] = []
    for event in events:
        if is_request(event):
            kept_out.add(tombstone_of(event))
        ended.extend(windows.on_event(event))
    return [*ended, *windows.close_all("end_of_input")]


def _left(ended: Sequence[Ended], kept_out: Tombstones) -> list[Window]:
    """Give the windows as the extract stage sees them."""
    windows = [without_forgotten(one, kept_out) for one in ended if isinstance(one, Window)]
    return [one for one in windows if one.events]


def test_a_request_takes_events_out_of_open_windows_and_goes_on_behind_them() -> None:
    events = [*_turns(4), _asks("event", event_ids=["s1-2"])]
    assert list(map(_shown, _run(events, Tombstones()))) == [
        ("s1", "forgotten", ["s1-2"]),
        ("s1", "requested", ["f"]),
        ("s1", "end_of_input", ["s1-0", "s1-1", "s1-3"]),
    ]


def test_what_comes_late_is_dated_before_the_request_and_ends_at_once() -> None:
    late = [sourced("late", seconds=34, offset=3), sourced("new", seconds=36, offset=4)]
    events = [*_turns(1), _asks("session", offset=2), *late]
    assert list(map(_shown, _run(events, Tombstones()))) == [
        ("s1", "forgotten", ["s1-0"]),
        ("s1", "requested", ["f"]),
        ("s1", "forgotten", ["late"]),
        ("s1", "turns", ["new"]),  # the third turn, as it would have been
    ]


def test_a_session_that_was_forgotten_as_a_whole_makes_no_window() -> None:
    known = Tombstones([tombstone_of(_asks("session"))])
    assert {_shown(one)[1] for one in _run(_turns(4), known)} == {"forgotten"}


def test_a_repeated_request_changes_nothing() -> None:
    events = [*_turns(2), _asks("event", event_ids=["s1-0"])]
    assert _run([*events, events[-1]], Tombstones()) == _run(events, Tombstones())


def test_a_request_that_had_failed_comes_again() -> None:
    again = replace(_asks("user"), redriven=Redriven("l1.dlq/0/3", "reconcile"))
    assert list(map(_shown, _run([*_turns(1), _asks("user"), again], Tombstones()))) == [
        ("s1", "forgotten", ["s1-0"]),
        ("s1", "requested", ["f"]),
        ("s1", "requested", ["f"]),
    ]
    index = replace(again, redriven=Redriven("l0.dlq/0/3", "index"))
    assert _run([index], Tombstones()) == []


def test_a_redriven_window_comes_without_what_was_forgotten() -> None:
    events = [
        replace(one, redriven=Redriven(f"l1.dlq/0/{n}", "extract", "w1", 3, n))
        for n, one in enumerate(_turns(3))
    ]
    known = Tombstones([tombstone_of(_asks("event", event_ids=["s1-1"]))])
    assert list(map(_shown, _run(events, known))) == [
        ("s1", "forgotten", ["s1-1"]),
        ("s1", "redrive", ["s1-0", "s1-2"]),
    ]


def test_a_background_holds_nothing_that_was_forgotten() -> None:
    asks = _asks("event", event_ids=["s1-1"])
    *_, last = _run([*_turns(5), asks, *_turns(8)[5:]], Tombstones())
    assert isinstance(last, Window)
    assert [one.event.event_id for one in last.background] == ["s1-0", "s1-2", "s1-3", "s1-4"]


_SESSIONS = st.sampled_from(["s1", "s2"])
_TURN = st.tuples(_SESSIONS, st.sampled_from(["user", "assistant"]), st.sampled_from([1, 30, 700]))


@given(st.lists(_TURN, min_size=1, max_size=24), st.data())
def test_windows_are_cut_where_they_were_whatever_is_forgotten(
    turns: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    """Live with a request, and again from the beginning with its tombstone known: the same."""
    seconds = 0
    events = []
    for number, (session, role, step) in enumerate(turns):
        seconds += step
        fields = {"session_id": session, "role": role}
        events.append(sourced(f"e{number}", seconds=seconds, offset=number, **fields))
    target = data.draw(st.sampled_from(["session", "event", "user"]))
    about = {"event_ids": [data.draw(st.sampled_from(events)).event.event_id]}
    place = data.draw(st.integers(0, len(events)))
    before = events[place - 1].occurred_at.timestamp() - START.timestamp() if place else 0
    request = _asks(target, before, place, **(about if target == "event" else {}))
    log = [*events[:place], request, *events[place:]]

    live = Tombstones()
    ended = _run(log, live)
    replayed = _run(log, live.copy())
    assert _left(replayed, live) == _left(ended, live)
    uncovered = [e for e in events if not live.covers_event(e)]
    told = [e for one in _left(ended, live) for e in one.events]
    assert sorted(e.event.event_id for e in told) == sorted(e.event.event_id for e in uncovered)
    untouched = _run(events, Tombstones())
    assert {one.window_id for one in _left(replayed, live)} <= {
        one.window_id for one in untouched if isinstance(one, Window)
    }
    gone = [one for one in replayed if isinstance(one, Forgotten)]
    assert len(gone) + len(uncovered) == len(events)
    assert sum(isinstance(one, Requested) for one in replayed) == 1


def test_a_window_closes_before_it_grows_over_its_cap() -> None:
    long = [sourced(f"e{n}", seconds=n, role="assistant", content="x" * 300) for n in range(5)]
    cut = _cut(long, WindowPolicy(max_tokens=250))
    assert [(why, len(ids)) for _, why, ids in cut] == [
        ("size", 2),
        ("size", 2),
        ("end_of_input", 1),
    ]


def test_one_event_over_the_cap_is_a_window_of_its_own_and_not_lost() -> None:
    events = [sourced("a"), sourced("huge", seconds=1, content="x" * 3000), sourced("b", seconds=2)]
    assert [ids for _, _, ids in _cut(events, WindowPolicy(max_tokens=100))] == [
        ["a"],
        ["huge"],
        ["b"],
    ]


def test_a_late_session_still_forms_one_window() -> None:
    events = [*_turns(2, "new", start=10_000), *_turns(4, "old")]
    assert ("old", "end_of_input", [f"old-{n}" for n in range(4)]) in _cut(events)


def test_equal_timestamps_are_all_kept() -> None:
    same = [sourced(f"e{n}", role="assistant") for n in range(30)]
    assert sum(len(ids) for _, _, ids in _cut(same)) == 30


def test_a_repeated_event_id_is_dropped_also_after_its_window_closed() -> None:
    once = _turns(10)
    assert _cut([*once, *once]) == _cut(once)


def test_ids_are_remembered_up_to_the_cap_and_memory_stays_bounded() -> None:
    policy = WindowPolicy(dedup_ids=3)
    windows = ScopeWindows(policy)
    for n in range(50):
        windows.on_event(sourced(f"e{n}", seconds=n))
    assert len(windows.snapshot().seen) == 3 * 16


def test_background_is_the_sessions_earlier_messages() -> None:
    windows = ScopeWindows(WindowPolicy(background=2))
    cut = [w for e in _turns(19) for w in windows.on_event(e) if isinstance(w, Window)]
    assert [e.event.event_id for e in cut[0].background] == []
    assert [e.event.event_id for e in cut[1].background] == ["s1-7", "s1-8"]


def test_the_window_id_depends_on_content_only() -> None:
    first, again = (
        [w for e in _turns(9) for w in ScopeWindows(WindowPolicy(user_turns=1)).on_event(e)]
        for _ in range(2)
    )
    assert [w.window_id for w in first if isinstance(w, Window)] == [
        w.window_id for w in again if isinstance(w, Window)
    ]


steps = st.lists(
    st.tuples(
        st.sampled_from(["s1", "s2", "s3"]),
        st.sampled_from(["user", "assistant", "session_end"]),
        st.integers(-2, 3),
    ),
    max_size=40,
)


def _drawn(script: list[tuple[str, str, int]]) -> list[SourcedEvent]:
    events = []
    seconds = 10_000.0
    for n, (session, kind, move) in enumerate(script):
        seconds += move * GAP / 2
        fields: dict[str, Any] = (
            {"type": "session_end", "role": None, "content": None}
            if kind == "session_end"
            else {"role": kind}
        )
        events.append(sourced(f"e{n}", seconds=seconds, offset=n, session_id=session, **fields))
    return events


@given(steps)
def test_every_event_ends_exactly_once_and_in_order(script: list[tuple[str, str, int]]) -> None:
    cut = _cut(_drawn(script))
    ended = [event_id for _, _, ids in cut for event_id in ids]
    assert sorted(ended) == sorted(f"e{n}" for n in range(len(script)))
    for session in ("s1", "s2", "s3"):
        order = [int(i[1:]) for name, _, ids in cut if name == session for i in ids]
        assert order == sorted(order)


@given(steps, st.data())
def test_a_restart_anywhere_cuts_the_same_windows(
    script: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    events = _drawn(script)
    at = data.draw(st.integers(0, len(events)))
    before = ScopeWindows(WindowPolicy())
    ended = [one for event in events[:at] for one in before.on_event(event)]
    snapshot: WindowSnapshot = pickle.loads(pickle.dumps(before.snapshot()))
    # What the old run still does must not reach into the snapshot.
    for event in events[at:]:
        before.on_event(event)
    after = ScopeWindows(WindowPolicy(), snapshot)
    ended += [one for event in events[at:] for one in after.on_event(event)]
    ended += after.close_all("end_of_input")
    assert [_shown(one) for one in ended] == _cut(events)


class _TurnedClock:
    """A clock that tests turn: it moves by ``step`` at every look."""

    def __init__(self, step: timedelta) -> None:
        self.time = START
        self.step = step

    def now(self) -> datetime:
        self.time += self.step
        return self.time


def _flow(
    source: TestingSource[Any],
    out: list[tuple[str, Ended]],
    *,
    clock: _TurnedClock | None = None,
    live: bool = False,
    stopping: bool = False,
    kept_out: Tombstones | None = None,
) -> Dataflow:
    flow = Dataflow("window_test")
    events = op.input("in", flow, source)
    cut = window(
        "window",
        op.map("of_scopes", events, lambda one: (one.scope, [one])),
        WindowPolicy(),
        clock or _TurnedClock(timedelta(0)),
        live=live,
        stopping=lambda: stopping,
        kept_out=kept_out,
    )
    op.output("out", cut, TestingSink(out))
    return flow


def test_a_request_that_another_process_read_is_known_here_too() -> None:
    out: list[tuple[str, Ended]] = []
    known = Tombstones()
    run_main(_flow(TestingSource([*_turns(2), _asks("session")]), out, kept_out=known))
    assert [_shown(one)[1:] for _, one in out] == [
        ("forgotten", ["s1-0"]),
        ("forgotten", ["s1-1"]),
        ("requested", ["f"]),
    ]
    assert len(list(known)) == 1


def test_end_of_input_closes_and_a_graceful_stop_does_not(tmp_path: Path) -> None:
    init_db_dir(tmp_path, 1)
    recovery = RecoveryConfig(tmp_path)
    events = _turns(4)
    out: list[tuple[str, Ended]] = []
    source = TestingSource([*events[:2], TestingSource.EOF(), *events[2:]])
    run_main(_flow(source, out, stopping=True), recovery_config=recovery)
    assert out == []
    run_main(_flow(source, out), recovery_config=recovery)
    assert [_shown(one) for _, one in out] == [
        ("s1", "end_of_input", [f"s1-{n}" for n in range(4)])
    ]


def test_a_live_flow_closes_what_waits_longer_than_the_gap() -> None:
    """The clock jumps past the gap between two looks, so the notification is due at once."""
    out: list[tuple[str, Ended]] = []
    events: list[Any] = [*_turns(2), TestingSource.EOF()]
    clock = _TurnedClock(timedelta(seconds=GAP + 1))
    run_main(_flow(TestingSource(events), out, clock=clock, live=True))
    assert [_shown(one)[1] for _, one in out] == ["idle"]

"""Windows: where they close, what they hold, and that a restart cuts the same ones."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
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

from flows.window import ScopeWindows, Skipped, WindowPolicy, WindowSnapshot, window
from stores.records import SourcedEvent, Window
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


def _shown(one: Window | Skipped) -> tuple[str, str, list[str]]:
    if isinstance(one, Skipped):
        return one.event.event.session_id, f"skipped: {one.reason}", [one.event.event.event_id]
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


def test_a_forget_request_ends_visibly() -> None:
    forget = sourced("f", type="forget", role=None, content=None)
    assert _cut([forget]) == [("s1", "skipped: forget_unhandled", ["f"])]


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
    out: list[tuple[str, Window | Skipped]],
    *,
    clock: _TurnedClock | None = None,
    live: bool = False,
    stopping: bool = False,
) -> Dataflow:
    flow = Dataflow("window_test")
    events = op.input("in", flow, source)
    cut = window(
        "window",
        events,
        WindowPolicy(),
        clock or _TurnedClock(timedelta(0)),
        live=live,
        stopping=lambda: stopping,
    )
    op.output("out", cut, TestingSink(out))
    return flow


def test_end_of_input_closes_and_a_graceful_stop_does_not(tmp_path: Path) -> None:
    init_db_dir(tmp_path, 1)
    recovery = RecoveryConfig(tmp_path)
    events = _turns(4)
    out: list[tuple[str, Window | Skipped]] = []
    source = TestingSource([*events[:2], TestingSource.EOF(), *events[2:]])
    run_main(_flow(source, out, stopping=True), recovery_config=recovery)
    assert out == []
    run_main(_flow(source, out), recovery_config=recovery)
    assert [_shown(one) for _, one in out] == [
        ("s1", "end_of_input", [f"s1-{n}" for n in range(4)])
    ]


def test_a_live_flow_closes_what_waits_longer_than_the_gap() -> None:
    """The clock jumps past the gap between two looks, so the notification is due at once."""
    out: list[tuple[str, Window | Skipped]] = []
    events: list[Any] = [*_turns(2), TestingSource.EOF()]
    clock = _TurnedClock(timedelta(seconds=GAP + 1))
    run_main(_flow(TestingSource(events), out, clock=clock, live=True))
    assert [_shown(one)[1] for _, one in out] == ["idle"]

"""Windows: which stretch of a session one extraction call sees.

Pure logic first (:class:`ScopeWindows`: no I/O, no Bytewax, event time only), then the short
function that wires it into a dataflow.

A session's window closes

- ``turns``: with the N-th user message in it (5; optionally 1, 2, 4 for a new session),
- ``gap``: when event time moves more than 600 s past it, in its own session or in another one
  of the scope,
- ``session_end``: at that event, which belongs to the window,
- ``size``: before it would grow over its token cap,
- ``idle``: live only, when nothing has come for the gap in processing time,
- ``end_of_input``: when a finite log ends.

Only the last two depend on when the flow ran, so a replay cuts the same windows as live
processing did wherever events came in order. A window that was given up and is redriven does
not close anew: it is put together again from its events, under its old id, beside the
session's open window (``redrive``). A late event joins the session's open window or
opens one; nothing is dropped for lateness. A repeated event id is dropped and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import get_args

import bytewax.operators as op
from bytewax.dataflow import Stream
from bytewax.operators import KeyedStream, StatefulBatchLogic

from connectors.metrics import DUPLICATES, WINDOW_EVENTS
from flows.dedup import RecentIds
from stores.ids import content_id
from stores.protocols import Clock
from stores.records import ClosedBy, Redriven, SourcedEvent, Window

__all__ = ["ScopeWindows", "Skipped", "WindowPolicy", "WindowSnapshot", "estimate_tokens", "window"]

_WARMUP = (1, 2, 4)
_OBSERVED = {why: WINDOW_EVENTS.labels(why) for why in get_args(ClosedBy)}
_CLOSED_SESSIONS_KEPT = 32
"""Sessions of a scope without an open window whose last messages are kept as background."""
_REDRIVEN_WAITING = 100
"""Redriven windows of a scope that may wait for the rest of their events at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """When windows close.

    :arg user_turns: user messages in a full window.
    :arg warmup: close a new session's first three windows after 1, 2 and 4 user messages.
    :arg gap: silence that ends a window. 600 s is the reference system's idle timer.
    :arg max_tokens: cap on a window's text, by :func:`estimate_tokens`.
    :arg background: earlier messages of the session handed along as context.
    :arg dedup_ids: event ids remembered per scope; a repeat that comes later than that many
        other events is taken as new.
    """

    user_turns: int = 5
    warmup: bool = False
    gap: timedelta = timedelta(seconds=600)
    max_tokens: int = 6000
    background: int = 5
    dedup_ids: int = 100_000


@dataclass(frozen=True, slots=True)
class Skipped:
    """An event that ends without a window, and why (one of ``SKIP_REASONS``)."""

    event: SourcedEvent
    reason: str


def estimate_tokens(text: str) -> int:
    """Estimate tokens from UTF-8 bytes, on the high side: a tokenizer is too slow per event.

    >>> estimate_tokens("hello world"), estimate_tokens("你好")
    (4, 3)
    """
    return len(text.encode("utf-8", "surrogatepass")) // 3 + 1


@dataclass(slots=True)
class _Session:
    """One session: its open window's events (none when closed) and what came before it.

    ``idle_since`` is the scope's event-time clock at the session's last event: for a session
    whose events come late it runs ahead of their dates, so that they still form one window.
    """

    events: list[SourcedEvent]
    background: list[SourcedEvent]
    windows_closed: int
    user_turns: int
    tokens: int
    last_at: datetime
    idle_since: datetime

    def copy(self) -> _Session:
        return replace(self, events=list(self.events), background=list(self.background))


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """A copy of one scope's state, for recovery."""

    open: tuple[tuple[str, _Session], ...]
    closed: tuple[tuple[str, _Session], ...]
    seen: bytes
    clock: datetime | None
    redriven: tuple[tuple[str, tuple[tuple[int, SourcedEvent], ...]], ...] = ()


class ScopeWindows:
    """The windows of one scope. Feed events in log order; each call gives what it ended."""

    def __init__(self, policy: WindowPolicy, resume: WindowSnapshot | None = None) -> None:
        """Start anew or from a snapshot."""
        self._policy = policy
        self._open: dict[str, _Session] = {}
        self._closed: dict[str, _Session] = {}  # in the order of their last closing
        self._seen = RecentIds(policy.dedup_ids, resume.seen if resume else b"")
        self._clock: datetime | None = None
        # Half-arrived redriven windows, by id; events by their place in the window.
        self._redriven: dict[str, dict[int, SourcedEvent]] = {}
        if resume is not None:
            self._open = {name: session.copy() for name, session in resume.open}
            self._closed = {name: session.copy() for name, session in resume.closed}
            self._clock = resume.clock
            self._redriven = {window_id: dict(events) for window_id, events in resume.redriven}
        # At or before every open session's idle_since: spares looking at all of them each time.
        self._idle_floor = self._oldest_idle()

    @property
    def open_sessions(self) -> tuple[str, ...]:
        """Name the sessions with an open window, in the order they were opened."""
        return tuple(self._open)

    def is_open(self, session_id: str) -> bool:
        """Tell whether a session has an open window."""
        return session_id in self._open

    def on_event(self, sourced: SourcedEvent) -> list[Window | Skipped]:
        """Take the scope's next event. A repeated one changes nothing."""
        redriven = sourced.redriven
        if redriven is not None and not _is_new(redriven):
            return self._on_redriven(sourced, redriven)
        event = sourced.event
        if not self._seen.add(event.event_id):
            DUPLICATES.inc()
            return []
        now = max(self._clock, sourced.occurred_at) if self._clock else sourced.occurred_at
        self._clock = now
        ended: list[Window | Skipped] = []
        if self._idle_floor is not None and now - self._idle_floor > self._policy.gap:
            ended.extend(self._close_idle(now, but=event.session_id))
        if event.type == "forget":
            return [*ended, Skipped(sourced, "forget_unhandled")]
        tokens = estimate_tokens(event.text())
        ended.extend(self._close_before(sourced, tokens))
        if event.type == "session_end" and not self.is_open(event.session_id):
            return [*ended, Skipped(sourced, "session_end")]
        ended.extend(self._append(sourced, tokens, now))
        return ended

    def close_all(self, why: ClosedBy, names: Iterable[str] | None = None) -> list[Window]:
        """Close the open windows of ``names``, or all: input ended, or nothing came for long."""
        wanted = self.open_sessions if names is None else names
        return [self._close(name, why) for name in wanted if name in self._open]

    def snapshot(self) -> WindowSnapshot:
        """Copy the state."""
        return WindowSnapshot(
            tuple((name, session.copy()) for name, session in self._open.items()),
            tuple((name, session.copy()) for name, session in self._closed.items()),
            self._seen.snapshot(),
            self._clock,
            tuple((name, tuple(events.items())) for name, events in self._redriven.items()),
        )

    def _on_redriven(self, sourced: SourcedEvent, redriven: Redriven) -> list[Window | Skipped]:
        """Collect an event of a window that was given up; give the window once it is whole.

        It passes by the remembered ids, the scope's clock and every open window. An event that
        was given up by the index alone belongs to a window already: nothing to do.
        """
        window_id = redriven.window_id
        if not window_id:
            return []
        events = self._redriven.setdefault(window_id, {})
        events.setdefault(redriven.window_index, sourced)
        if len(events) < redriven.window_size:
            if len(self._redriven) > _REDRIVEN_WAITING:
                self._give_up_oldest_redriven()
            return []
        del self._redriven[window_id]
        _OBSERVED["redrive"].observe(len(events))
        return [
            Window(
                window_id=window_id,
                scope=sourced.scope,
                session_id=sourced.event.session_id,
                events=tuple(events[place] for place in sorted(events)),
                background=(),
                closed_by="redrive",
            )
        ]

    def _give_up_oldest_redriven(self) -> None:
        """Drop a window that is not whole: its dead letters stand, to be redriven again."""
        window_id = next(iter(self._redriven))
        events = self._redriven.pop(window_id)
        _log.warning(
            "redriven window %s is dropped: %d of its events came and the rest did not; its dead "
            "letters stand as they were, redrive them again",
            window_id, len(events),
        )  # fmt: skip

    def _close_before(self, sourced: SourcedEvent, tokens: int) -> list[Window]:
        """Close the event's own session where the event cannot join its window."""
        name = sourced.event.session_id
        session = self._open.get(name)
        if session is None:
            return []
        if sourced.occurred_at - session.last_at > self._policy.gap:
            return [self._close(name, "gap")]
        if session.tokens + tokens > self._policy.max_tokens:
            return [self._close(name, "size")]
        return []

    def _append(self, sourced: SourcedEvent, tokens: int, now: datetime) -> list[Window]:
        name = sourced.event.session_id
        session = self._open.get(name)
        if session is None:
            session = self._closed.pop(name, None) or _Session(
                [], [], 0, 0, 0, sourced.occurred_at, now
            )
            session.last_at = sourced.occurred_at
            self._open[name] = session
            if self._idle_floor is None:
                self._idle_floor = now
        session.last_at = max(session.last_at, sourced.occurred_at)
        session.idle_since = now
        session.events.append(sourced)
        session.tokens += tokens
        if sourced.event.type == "session_end":
            return [self._close(name, "session_end")]
        if sourced.event.role == "user":
            session.user_turns += 1
            if session.user_turns >= self._turns_wanted(session):
                return [self._close(name, "turns")]
        return []

    def _turns_wanted(self, session: _Session) -> int:
        if self._policy.warmup and session.windows_closed < len(_WARMUP):
            return min(_WARMUP[session.windows_closed], self._policy.user_turns)
        return self._policy.user_turns

    def _close_idle(self, now: datetime, but: str) -> list[Window]:
        ended = [
            self._close(name, "gap")
            for name, session in list(self._open.items())
            if name != but and now - session.idle_since > self._policy.gap
        ]
        self._idle_floor = self._oldest_idle()
        return ended

    def _oldest_idle(self) -> datetime | None:
        return min((session.idle_since for session in self._open.values()), default=None)

    def _close(self, name: str, why: ClosedBy) -> Window:
        session = self._open.pop(name)
        events = tuple(session.events)
        first, last = events[0], events[-1]
        closed = Window(
            window_id=content_id(
                "window", first.scope, name, first.event.event_id, last.event.event_id
            ),
            scope=first.scope,
            session_id=name,
            events=events,
            background=tuple(session.background),
            closed_by=why,
        )
        if self._policy.background:
            messages = [*session.background, *(e for e in events if e.event.type == "message")]
            session.background = messages[-self._policy.background :]
        session.events = []
        session.user_turns = 0
        session.tokens = 0
        session.windows_closed += 1
        self._closed[name] = session
        if len(self._closed) > _CLOSED_SESSIONS_KEPT:
            del self._closed[next(iter(self._closed))]
        _OBSERVED[why].observe(len(events))
        return closed


def _is_new(redriven: Redriven) -> bool:
    """Tell whether a dead letter that came again was no event before: then it is a new one."""
    return redriven.stage == "decode"


# --- wiring ----------------------------------------------------------------------------------


class _WindowLogic(StatefulBatchLogic[SourcedEvent, "Window | Skipped", WindowSnapshot]):
    def __init__(
        self,
        policy: WindowPolicy,
        clock: Clock,
        live: bool,
        stopping: Callable[[], bool],
        resume: WindowSnapshot | None,
    ) -> None:
        self._windows = ScopeWindows(policy, resume)
        self._gap = policy.gap
        self._clock = clock
        self._live = live
        self._stopping = stopping
        self._arrived = {name: clock.now() for name in self._windows.open_sessions} if live else {}

    def on_batch(self, values: list[SourcedEvent]) -> tuple[Sequence[Window | Skipped], bool]:
        ended: list[Window | Skipped] = []
        for sourced in values:
            ended.extend(self._windows.on_event(sourced))
        if self._live:
            now = self._clock.now()
            self._arrived.update(
                (sourced.event.session_id, now)
                for sourced in values
                if sourced.redriven is None or _is_new(sourced.redriven)
            )
        return ended, self.RETAIN

    def on_notify(self) -> tuple[Sequence[Window | Skipped], bool]:
        now = self._clock.now()
        # Some of these have closed since in another way; close_all passes them over.
        idle = [name for name, at in self._arrived.items() if now - at >= self._gap]
        for name in idle:
            del self._arrived[name]
        return self._windows.close_all("idle", idle), self.RETAIN

    def on_eof(self) -> tuple[Sequence[Window | Skipped], bool]:
        # A graceful stop is not the end of the conversation: open windows stay open.
        if self._stopping():
            return [], self.RETAIN
        return self._windows.close_all("end_of_input"), self.RETAIN

    def notify_at(self) -> datetime | None:
        return min(self._arrived.values()) + self._gap if self._arrived else None

    def snapshot(self) -> WindowSnapshot:
        return self._windows.snapshot()


def window(
    step_id: str,
    up: Stream[SourcedEvent],
    policy: WindowPolicy,
    clock: Clock,
    *,
    live: bool,
    stopping: Callable[[], bool],
) -> KeyedStream[Window | Skipped]:
    """Cut each scope's events into windows, keyed by scope, in the scope's order.

    A crash repeats windows since the last snapshot, with the same ids.

    :arg clock: processing time, for ``idle`` only.
    :arg live: the log is followed; close windows that wait too long.
    :arg stopping: true when the flow is asked to stop: end of input then closes nothing.
    """
    keyed = op.key_on(f"{step_id}_by_scope", up, lambda sourced: sourced.scope)

    def build(resume: WindowSnapshot | None) -> _WindowLogic:
        return _WindowLogic(policy, clock, live, stopping, resume)

    return op.stateful_batch(step_id, keyed, build)

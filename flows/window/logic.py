"""The windows of one scope. Pure: no I/O, no Bytewax, event time only."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args

from connectors.metrics import DUPLICATES, WINDOW_EVENTS
from flows.dedup import RecentIds
from flows.forget.request import is_request
from stores.ids import content_id
from stores.protocols import KeptOut
from stores.records import ClosedBy, Redriven, SourcedEvent, Window
from stores.requests import edit_window_id
from stores.tombstones import NothingKeptOut

__all__ = [
    "Ended",
    "Forgotten",
    "Requested",
    "ScopeWindows",
    "Skipped",
    "WindowPolicy",
    "WindowSnapshot",
    "estimate_tokens",
    "is_new",
]

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


@dataclass(frozen=True, slots=True)
class Forgotten:
    """An event that a forget request covers: it ends here."""

    event: SourcedEvent


@dataclass(frozen=True, slots=True)
class Requested:
    """A forget or reject request: it goes on behind every window that was closed before it."""

    event: SourcedEvent


Ended = Window | Skipped | Forgotten | Requested
"""What the window stage hands on."""


def estimate_tokens(text: str) -> int:
    """Estimate tokens from UTF-8 bytes, on the high side: a tokenizer is too slow per event.

    >>> estimate_tokens("hello world"), estimate_tokens("你好")
    (4, 3)
    """
    return len(text.encode("utf-8", "surrogatepass")) // 3 + 1


@dataclass(slots=True)
class _Session:
    """One session: its open window's events (none when closed) and what came before it.

    ``first_id`` and ``last_id`` name the window, also where those events were forgotten. ``None``
    keeps the place of a forgotten message: a background is as long as it would have been.

    ``idle_since`` is the scope's event-time clock at the session's last event: for a session
    whose events come late it runs ahead of their dates, so that they still form one window.
    """

    events: list[SourcedEvent | None]
    background: list[SourcedEvent | None]
    windows_closed: int
    user_turns: int
    tokens: int
    last_at: datetime
    idle_since: datetime
    first_id: str = ""
    last_id: str = ""

    # Written out: 100,000 of these are copied and pickled for a snapshot, and read at a restart.
    def _fields(self) -> tuple[Any, ...]:
        place = (self.windows_closed, self.user_turns, self.tokens, self.last_at, self.idle_since)
        return (self.events, self.background, *place, self.first_id, self.last_id)

    def copy(self) -> _Session:
        events, background, *rest = self._fields()
        return _Session(list(events), list(background), *rest)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Session, self._fields())


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """A copy of one scope's state, for recovery."""

    open: tuple[tuple[str, _Session], ...]
    closed: tuple[tuple[str, _Session], ...]
    seen: bytes
    clock: datetime | None
    redriven: tuple[tuple[str, tuple[tuple[int, SourcedEvent], ...]], ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return (WindowSnapshot, (self.open, self.closed, self.seen, self.clock, self.redriven))


class ScopeWindows:
    """The windows of one scope. Feed events in log order; each call gives what it ended."""

    def __init__(
        self,
        policy: WindowPolicy,
        resume: WindowSnapshot | None = None,
        kept_out: KeptOut | None = None,
    ) -> None:
        """Start anew or from a snapshot; ``kept_out`` knows a request before it comes here."""
        self._policy = policy
        self._kept_out = NothingKeptOut() if kept_out is None else kept_out
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

    def on_event(self, sourced: SourcedEvent) -> list[Ended]:
        """Take the scope's next event. A repeated one changes nothing."""
        redriven = sourced.redriven
        event = sourced.event
        if redriven is not None and not is_new(redriven):
            if is_request(sourced):  # it had failed: the index alone, or all behind the windows
                return [Requested(sourced)] if redriven.stage != "index" else []
            return self._on_redriven(sourced, redriven)
        if not self._seen.add(event.event_id):
            DUPLICATES.inc()
            return []
        now = max(self._clock, sourced.occurred_at) if self._clock else sourced.occurred_at
        self._clock = now
        ended: list[Ended] = []
        if self._idle_floor is not None and now - self._idle_floor > self._policy.gap:
            ended.extend(self._close_idle(now, but=event.session_id))
        if is_request(sourced):
            ended += [*self._take_out(), Requested(sourced)]
        elif event.type == "edit":
            ended += self._edit(sourced)
        else:
            ended += self._join(sourced, now)
        return ended

    def _join(self, sourced: SourcedEvent, now: datetime) -> list[Ended]:
        """Take an event into its session's window, closing what has to be closed."""
        event = sourced.event
        tokens = estimate_tokens(event.text())
        ended: list[Ended] = [*self._close_before(sourced, tokens)]
        if event.type == "session_end" and not self.is_open(event.session_id):
            return [*ended, Skipped(sourced, "session_end")]
        return [*ended, *self._append(sourced, tokens, now)]

    def _edit(self, sourced: SourcedEvent) -> list[Ended]:
        """Give a person's edit as a window of its own: it joins no session's."""
        if self._kept_out.covers_event(sourced):
            return [Forgotten(sourced)]
        event = sourced.event
        _OBSERVED["edit"].observe(1)
        return [
            Window(
                window_id=edit_window_id(sourced.scope, event.event_id),
                scope=sourced.scope,
                session_id=event.session_id,
                events=(sourced,),
                background=(),
                closed_by="edit",
            )
        ]

    def close_all(self, why: ClosedBy, names: Iterable[str] | None = None) -> list[Window]:
        """Close the open windows of ``names``, or all: input ended, or nothing came for long."""
        wanted = self.open_sessions if names is None else names
        return [
            closed for name in wanted if name in self._open for closed in self._close(name, why)
        ]

    def snapshot(self) -> WindowSnapshot:
        """Copy the state."""
        return WindowSnapshot(
            tuple((name, session.copy()) for name, session in self._open.items()),
            tuple((name, session.copy()) for name, session in self._closed.items()),
            self._seen.snapshot(),
            self._clock,
            tuple((name, tuple(events.items())) for name, events in self._redriven.items()),
        )

    def _take_out(self) -> list[Ended]:
        """Take what is kept out from open windows and backgrounds; each event ends once."""
        ended: list[Ended] = []
        for session in (*self._open.values(), *self._closed.values()):
            events, session.events = session.events, self._without(session.events)
            session.background = self._without(session.background)
            ended.extend(
                Forgotten(was)
                for was, left in zip(events, session.events, strict=True)
                if was is not None and left is None
            )
        return ended

    def _without(self, events: Iterable[SourcedEvent | None]) -> list[SourcedEvent | None]:
        return [None if one is None or self._kept_out.covers_event(one) else one for one in events]

    def _on_redriven(self, sourced: SourcedEvent, redriven: Redriven) -> list[Ended]:
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
        in_order = [events[place] for place in sorted(events)]
        left = tuple(one for one in in_order if not self._kept_out.covers_event(one))
        ended: list[Ended] = [Forgotten(one) for one in in_order if one not in left]
        if left:
            whole = Window(
                window_id=window_id,
                scope=sourced.scope,
                session_id=sourced.event.session_id,
                events=left,
                background=(),
                closed_by="redrive",
            )
            ended.append(whole)
        return ended

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
            return self._close(name, "gap")
        if session.tokens + tokens > self._policy.max_tokens:
            return self._close(name, "size")
        return []

    def _append(self, sourced: SourcedEvent, tokens: int, now: datetime) -> list[Ended]:
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
        session.first_id = session.first_id or sourced.event.event_id
        session.last_id = sourced.event.event_id
        session.tokens += tokens
        ended: list[Ended] = []
        if self._kept_out.covers_event(sourced):
            ended.append(Forgotten(sourced))
            if sourced.event.type == "message":
                session.events.append(None)
        else:
            session.events.append(sourced)
        if sourced.event.type == "session_end":
            return [*ended, *self._close(name, "session_end")]
        if sourced.event.role == "user":
            session.user_turns += 1
            if session.user_turns >= self._turns_wanted(session):
                ended.extend(self._close(name, "turns"))
        return ended

    def _turns_wanted(self, session: _Session) -> int:
        if self._policy.warmup and session.windows_closed < len(_WARMUP):
            return min(_WARMUP[session.windows_closed], self._policy.user_turns)
        return self._policy.user_turns

    def _close_idle(self, now: datetime, but: str) -> list[Window]:
        ended = [
            closed
            for name, session in list(self._open.items())
            if name != but and now - session.idle_since > self._policy.gap
            for closed in self._close(name, "gap")
        ]
        self._idle_floor = self._oldest_idle()
        return ended

    def _oldest_idle(self) -> datetime | None:
        return min((session.idle_since for session in self._open.values()), default=None)

    def _close(self, name: str, why: ClosedBy) -> list[Window]:
        """Close a session's window and give it; none when all of it was forgotten."""
        session = self._open.pop(name)
        events = tuple(one for one in session.events if one is not None)
        closed = [
            Window(
                window_id=content_id(
                    "window", first.scope, name, session.first_id, session.last_id
                ),
                scope=first.scope,
                session_id=name,
                events=events,
                background=tuple(one for one in session.background if one is not None),
                closed_by=why,
            )
            for first in events[:1]
        ]
        if self._policy.background:
            messages = session.background + [
                one for one in session.events if one is None or one.event.type == "message"
            ]
            session.background = messages[-self._policy.background :]
        session.events = []
        session.first_id = session.last_id = ""
        session.user_turns = 0
        session.tokens = 0
        session.windows_closed += 1
        self._closed[name] = session
        if len(self._closed) > _CLOSED_SESSIONS_KEPT:
            del self._closed[next(iter(self._closed))]
        if events:
            _OBSERVED[why].observe(len(events))
        return closed


def is_new(redriven: Redriven) -> bool:
    """Tell whether a dead letter that came again was no event before: then it is a new one."""
    return redriven.stage == "decode"

"""Which events without an outcome can still be in flight: the order in which windows close.

Pure, and kept apart from :mod:`flows.upkeep.audit`, which counts. One :class:`ScopeOrder` takes the
events of one scope in log order, those with an outcome and those without, and says of each
one without by which offset its window was closed *for sure*.

For sure means: whatever else closed windows on the way. ``idle`` and ``end_of_input`` depend on
when the flow ran, so the log does not tell where they cut, and a window may have begun later
than the rules of :mod:`flows.window` alone would have it. What holds all the same, for a window
that holds an event *e*:

- ``turns``: it is closed once N user messages have come from *e* on, *e* included;
- ``size``: it is closed before the event with which the text from *e* on passes the cap;
- ``gap``: it is closed when the scope's clock is more than the gap past the session's last
  event, and when the session's own next event is more than the gap past every date since the
  session's last known end (a cut in between only makes the true distance larger);
- ``session_end`` closes whatever is open in the session;
- an event of the session that is known to have ended in another window comes after *e*'s window
  was closed: windows of a session follow each other.

Beside that, :class:`~flows.window.ScopeWindows` is run over the events without an outcome, to
tell the likely from the sure: that alone decides between "open" and "pending", both of which
explain an event, and never that one is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from flows.forget.request import is_request
from flows.window import ScopeWindows, WindowPolicy, estimate_tokens
from stores.records import Position, SourcedEvent, Window

__all__ = ["ScopeOrder", "Unended"]


@dataclass(slots=True, eq=False)
class Unended:
    """An accepted event that has no outcome.

    :arg closed_by: the offset at which its window was closed for sure; ``None`` while the
        window may be open.
    :arg likely_open: by the rules of windows alone, its window is open.
    """

    position: Position
    timestamp_ms: int
    event_id: str
    session_id: str
    occurred_at: datetime
    closed_by: int | None = None
    likely_open: bool = True


@dataclass(slots=True)
class _Stretch:
    """Events of one session, one after the other, whose windows may be open.

    ``users`` and ``tokens`` count from the beginning of the stretch; ``before`` holds, for each
    event, what they were before it.
    """

    events: list[Unended]
    before: list[tuple[int, int]]
    users: int
    tokens: int
    last_at: datetime
    idle_since: datetime


@dataclass(slots=True)
class ScopeOrder:
    """The events of one scope, in log order.

    :arg ids: different event ids so far; the audit counts them.
    :arg spread: its events lie in several partitions, so their order is not known.
    """

    policy: WindowPolicy
    ids: int = 0
    spread: bool = False
    unended: dict[Position, Unended] = field(default_factory=dict)
    _partition: int = -1
    _clock: datetime | None = None
    _stretches: dict[str, _Stretch] = field(default_factory=dict)
    _likely: ScopeWindows | None = None

    def lies_in(self, partition: int) -> None:
        """Take note of the partition of an event."""
        if self._partition not in (-1, partition):
            self.spread = True
        self._partition = partition

    def ended(self, sourced: SourcedEvent) -> None:
        """Take an event that has an outcome."""
        event, offset = sourced.event, sourced.position.offset
        self._advance(sourced)
        if _stands_alone(sourced):  # it joins no window and closes none of its session
            return
        self._close(event.session_id, offset)
        if self._likely is not None:
            self._mark(self._likely.close_all("idle", [event.session_id]))

    def forgotten(self, sourced: SourcedEvent) -> None:
        """Take an event that was forgotten and has no window's outcome: it keeps its place.

        So it counts where windows are cut, as in the flow, and nothing is said of itself.
        """
        self._advance(sourced)
        if _stands_alone(sourced):
            return
        self._join(sourced, _unended(sourced))
        if self._likely is not None:
            self._follow(self._likely, sourced)

    def without_outcome(self, sourced: SourcedEvent) -> Unended:
        """Take an event that has none."""
        event, offset = sourced.event, sourced.position.offset
        self._advance(sourced)
        one = _unended(sourced)
        self.unended[sourced.position] = one
        if _stands_alone(sourced):  # it waits behind the windows that were closed before it
            one.closed_by, one.likely_open = offset, False
            return one
        self._join(sourced, one)
        if self._likely is None:
            self._likely = ScopeWindows(replace(self.policy, background=0, dedup_ids=1))
        self._follow(self._likely, sourced)
        one.likely_open = one.likely_open and self._likely.is_open(event.session_id)
        return one

    def _advance(self, sourced: SourcedEvent) -> None:
        """Move the scope's clock, which closes the idle windows of its other sessions."""
        now = max(self._clock, sourced.occurred_at) if self._clock else sourced.occurred_at
        self._clock = now
        for name, stretch in list(self._stretches.items()):
            if name != sourced.event.session_id and now - stretch.idle_since > self.policy.gap:
                self._close(name, sourced.position.offset)

    def _join(self, sourced: SourcedEvent, one: Unended) -> None:
        event, offset, now = sourced.event, sourced.position.offset, self._clock
        assert now is not None
        tokens = estimate_tokens(event.text())
        stretch = self._stretches.get(event.session_id)
        if stretch is not None and sourced.occurred_at - stretch.last_at > self.policy.gap:
            self._close(event.session_id, offset)
            stretch = None
        if stretch is None:
            stretch = _Stretch([], [], 0, 0, sourced.occurred_at, now)
            self._stretches[event.session_id] = stretch
        full = sum(
            stretch.tokens - earlier + tokens > self.policy.max_tokens
            for _, earlier in stretch.before
        )
        self._close_first(stretch, full, offset)
        stretch.events.append(one)
        stretch.before.append((stretch.users, stretch.tokens))
        stretch.users += event.type == "message" and event.role == "user"
        stretch.tokens += tokens
        stretch.last_at = max(stretch.last_at, sourced.occurred_at)
        stretch.idle_since = now
        if event.type == "session_end":
            self._close(event.session_id, offset)
            return
        full = sum(
            stretch.users - earlier >= self.policy.user_turns for earlier, _ in stretch.before
        )
        self._close_first(stretch, full, offset)

    def _close(self, session_id: str, offset: int) -> None:
        stretch = self._stretches.pop(session_id, None)
        if stretch is not None:
            self._close_first(stretch, len(stretch.events), offset)

    @staticmethod
    def _close_first(stretch: _Stretch, count: int, offset: int) -> None:
        """Close the windows of the first ``count`` events: both counts only fall along them."""
        for one in stretch.events[:count]:
            one.closed_by, one.likely_open = offset, False
        del stretch.events[:count], stretch.before[:count]

    def _follow(self, likely: ScopeWindows, sourced: SourcedEvent) -> None:
        for ended in likely.on_event(sourced):
            self._mark([ended] if isinstance(ended, Window) else [])

    def _mark(self, windows: list[Window]) -> None:
        for window in windows:
            for sourced in window.events:
                if sourced.position in self.unended:
                    self.unended[sourced.position].likely_open = False


def _stands_alone(sourced: SourcedEvent) -> bool:
    return is_request(sourced) or sourced.event.type == "edit"


def _unended(sourced: SourcedEvent) -> Unended:
    event = sourced.event
    return Unended(
        sourced.position,
        sourced.record.timestamp_ms,
        event.event_id,
        event.session_id,
        sourced.occurred_at,
    )

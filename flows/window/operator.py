"""Windows as a keyed step of a dataflow, with processing time for those that wait too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain

import bytewax.operators as op
from bytewax.operators import KeyedStream, StatefulBatchLogic

from flows.forget.request import is_request
from flows.window.logic import Ended, ScopeWindows, WindowPolicy, WindowSnapshot, is_new
from stores.protocols import Clock
from stores.records import SourcedEvent
from stores.tombstones import Tombstones, tombstone_of

__all__ = ["window"]


class _WindowLogic(StatefulBatchLogic[Sequence[SourcedEvent], Ended, WindowSnapshot]):
    def __init__(
        self,
        policy: WindowPolicy,
        clock: Clock,
        live: bool,
        stopping: Callable[[], bool],
        kept_out: Tombstones | None,
        resume: WindowSnapshot | None,
    ) -> None:
        self._windows = ScopeWindows(policy, resume, kept_out)
        self._kept_out = kept_out
        self._gap = policy.gap
        self._clock = clock
        self._live = live
        self._stopping = stopping
        self._arrived = {name: clock.now() for name in self._windows.open_sessions} if live else {}

    def on_batch(self, values: list[Sequence[SourcedEvent]]) -> tuple[Sequence[Ended], bool]:
        ended: list[Ended] = []
        for sourced in chain.from_iterable(values):
            if self._kept_out is not None and is_request(sourced):
                # Whoever decoded it knows already; in a cluster that is another process.
                self._kept_out.add(tombstone_of(sourced))
            ended.extend(self._windows.on_event(sourced))
        if self._live:
            now = self._clock.now()
            self._arrived.update(
                (sourced.event.session_id, now)
                for sourced in chain.from_iterable(values)
                if sourced.redriven is None or is_new(sourced.redriven)
            )
        return ended, self.RETAIN

    def on_notify(self) -> tuple[Sequence[Ended], bool]:
        now = self._clock.now()
        # Some of these have closed since in another way; close_all passes them over.
        idle = [name for name, at in self._arrived.items() if now - at >= self._gap]
        for name in idle:
            del self._arrived[name]
        return self._windows.close_all("idle", idle), self.RETAIN

    def on_eof(self) -> tuple[Sequence[Ended], bool]:
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
    up: KeyedStream[Sequence[SourcedEvent]],
    policy: WindowPolicy,
    clock: Clock,
    *,
    live: bool,
    stopping: Callable[[], bool],
    kept_out: Tombstones | None = None,
) -> KeyedStream[Ended]:
    """Cut each scope's events into windows, in the scope's order.

    A crash repeats windows since the last snapshot, with the same ids.

    :arg clock: processing time, for ``idle`` only.
    :arg live: the log is followed; close windows that wait too long.
    :arg stopping: true when the flow is asked to stop: end of input then closes nothing.
    :arg kept_out: what was forgotten; the requests that come here are added.
    """

    def build(resume: WindowSnapshot | None) -> _WindowLogic:
        return _WindowLogic(policy, clock, live, stopping, kept_out, resume)

    return op.stateful_batch(step_id, up, build)

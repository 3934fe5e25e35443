"""One asyncio loop in one thread that makes the calls of a stage, for all its keys and workers."""

from __future__ import annotations

import asyncio
import atexit
import copy
import heapq
import itertools
import logging
import math
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from connectors.metrics import (
    STAGE_IN_FLIGHT,
    STAGE_OLDEST_SECONDS,
    STAGE_RETRIES,
    STAGE_RETRIES_WAITING,
)
from flows.async_stage.away import Away
from flows.async_stage.lane import Call, Done, Failed, Lane, PendingItem
from flows.async_stage.pressure import (
    FailureLimit,
    FailureTally,
    LogPatience,
    PendingWork,
    StageStatus,
)
from flows.async_stage.retry import INTERNAL_ERROR, RetryPolicy, describe, reason_of
from stores.errors import FlowHalted, LogAway, RequestTimedOut, UserError
from stores.protocols import Clock

__all__ = ["Engine", "StageSpec", "Work"]

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

Work = Callable[[Sequence[I], "str | None"], Awaitable[Sequence[O]]]
"""``work(items, previous_error)`` gives one output for each item, in order.

It is called again after a crash, a timeout or a failure, so doing it twice must be the same as
doing it once. ``previous_error`` says what was wrong with the last answer about these items.
"""

_CLOCK_CHECK_S = 0.02  # how often the clock is asked whether a retry is due; it may be turned
_CANCEL_WAIT_S = 5.0  # a cancelled call that has not ended by then is left behind

_log = logging.getLogger(__name__)


def _never() -> bool:
    return False


def _now(standing: weakref.WeakMethod[Callable[[], StageStatus]]) -> StageStatus:
    status = standing()
    return StageStatus() if status is None else status()


@dataclass(frozen=True)
class StageSpec(Generic[I, O]):
    """What a stage does and within which limits. Cheap to make; nothing is started.

    :arg work: see :data:`Work`. A ``FlowHalted`` or ``UserError`` from it stops the flow; any
        other exception outside ``Transient`` and ``Terminal`` is a bug: logged, and given up.
    :arg concurrency: calls in flight at once, in this process, and threads for blocking calls.
    :arg per_key: unfinished calls of one key at once; 1 is strictly one after the other.
    :arg batch_max: items of one key that may go into one call. Never waits to fill up.
    :arg timeout_s: seconds after which a call is cancelled and counts as ``RequestTimedOut``.
    :arg stopping: true once the flow was asked to stop: no call is begun any more.
    :arg grace_s: seconds that calls in flight then have to end.
    :arg log_patience_s: see :class:`LogPatience`.
    :arg aclose: awaited on the stage's loop before it ends, to close clients that belong to it.
    :arg spread: gives random numbers in [0, 1) for the jitter of retries.
    """

    name: str
    work: Work[I, O]
    clock: Clock
    pending: PendingWork
    concurrency: int = 60
    per_key: int = 1
    batch_max: int = 1
    timeout_s: float = 180.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    failure_limit: FailureLimit = field(default_factory=FailureLimit)
    stopping: Callable[[], bool] = _never
    grace_s: float = 10.0
    log_patience_s: float = math.inf
    aclose: Callable[[], Awaitable[None]] | None = None
    spread: Callable[[], float] = random.random


class Engine(Generic[I, O]):
    """One life of a stage's loop, from the first item to :meth:`stop` or to a halt.

    Thread-safe. Workers hand in items and collect results; everything else happens on the loop.
    Free slots go round the keys that have something to call, one call a turn, so a key with
    thousands of items starves nobody.

    Every method that a worker calls raises :class:`~stores.errors.FlowHalted` once the stage has
    halted (:class:`~stores.errors.LogAway` where it is the log that stays away), before it gives
    out anything: what is not emitted stays in the snapshot.
    """

    def __init__(self, spec: StageSpec[I, O]) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._lanes: set[Lane[I, O]] = set()
        self._abandoned: deque[Lane[I, O]] = deque()
        self._ready: deque[Lane[I, O]] = deque()
        self._is_ready: set[Lane[I, O]] = set()
        self._alarms: list[tuple[datetime, int, Lane[I, O]]] = []
        self._alarm_order = itertools.count()
        self._alarm_timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], Lane[I, O]] = {}
        self._tally = FailureTally(spec.name, spec.failure_limit)
        self._away = Away(spec.name)
        self._halted: FlowHalted | LogAway | None = None
        self._log_patience = LogPatience(spec.name, spec.log_patience_s)
        self._grace_ends: float | None = None
        self._gauge = STAGE_IN_FLIGHT.labels(spec.name)
        # Looked up when somebody reads the metrics, and only then.
        standing = weakref.WeakMethod(self.status)
        STAGE_OLDEST_SECONDS.labels(spec.name).set_function(
            lambda: _now(standing).oldest_pending_age_s
        )
        STAGE_RETRIES_WAITING.labels(spec.name).set_function(lambda: _now(standing).retries_waiting)
        self._wanted = False
        self._ending = False
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name=f"stage-{spec.name}", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    # --- for the workers -----------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True when this life is over and the stage needs another engine."""
        return self._ending or self._halted is not None

    def open(self, restored: Iterable[PendingItem[I]]) -> Lane[I, O]:
        """Make the lane of one key, with what its snapshot held; that work starts at once."""
        lane: Lane[I, O] = Lane(
            restored, per_key=self._spec.per_key, batch_max=self._spec.batch_max
        )
        with self._lock:
            self._raise_if_over()
            self._lanes.add(lane)
            if len(lane):
                self._spec.pending.add(self._spec.name, len(lane))
                self._enqueue(lane)
        return lane

    def accept(self, lane: Lane[I, O], items: Sequence[I]) -> None:
        """Take items of a key; they count as pending until they are collected."""
        with self._lock:
            self._raise_if_over()
            lane.accept(items, self._spec.clock.now())
            self._spec.pending.add(self._spec.name, len(items))
            self._enqueue(lane)

    def collect(self, lane: Lane[I, O]) -> list[Done[I, O] | Failed[I]]:
        """Give the results of a key that may leave now, in its order. Does not wait."""
        with self._lock:
            return self._take(lane)

    def drain(self, lane: Lane[I, O]) -> list[Done[I, O] | Failed[I]]:
        """Wait until everything of a key has ended, retries included, and give the results.

        When the flow is stopping, waits only for calls in flight and for no longer than the
        grace that all keys share; the rest stays pending.
        """
        results: list[Done[I, O] | Failed[I]] = []
        with self._settled:
            while True:
                results += self._take(lane)
                if not len(lane):
                    return results
                if self._spec.stopping() and not (lane.running and self._within_grace()):
                    return results
                # Woken by every result; the timeout is only for noticing `stopping`.
                self._settled.wait(0.05)

    def snapshot(self, lane: Lane[I, O]) -> tuple[PendingItem[I], ...]:
        """Copy what a key has pending."""
        with self._lock:
            return lane.snapshot()

    @property
    def busy(self) -> bool:
        """Whether so much waits that its sources pause now and then, or soon will."""
        return self._spec.pending.half_full()

    def soon(self, lane: Lane[I, O]) -> bool:
        """Say whether a key may have a result soon, so that it pays to look often.

        Not while it only waits for a retry, or has more keys in front of it than there are slots.
        """
        with self._lock:
            in_turn = lane in self._is_ready and len(self._ready) <= self._spec.concurrency
            return in_turn or lane.running or lane.settled

    def abandon(self, lane: Lane[I, O]) -> None:
        """Drop a lane that nobody will collect from any more; its calls are cancelled.

        Takes no lock: it may be called by the garbage collector in the middle of anything.
        """
        self._abandoned.append(lane)
        self._wake()

    def status(self) -> StageStatus:
        """Tell how the stage stands."""
        with self._lock:
            waiting = [lane for lane in self._lanes if len(lane)]
            oldest = min((lane.oldest for lane in waiting if lane.oldest), default=None)
            age = (self._spec.clock.now() - oldest).total_seconds() if oldest else 0.0
            return StageStatus(
                pending=sum(map(len, waiting)),
                keys=len(waiting),
                in_flight=len(self._tasks),
                oldest_pending_age_s=age,
                retries_waiting=sum(lane.retrying for lane in waiting),
            )

    def stop(self) -> None:
        """End this life: cancel every call, close the loop, end the thread. Waits for it."""
        self._ending = True
        self._wake()
        self._thread.join(_CANCEL_WAIT_S * 2)
        if self._thread.is_alive():
            _log.warning("stage %s: its thread has not ended; left behind", self._spec.name)

    # --- under the lock ------------------------------------------------------------------------

    def _raise_if_over(self) -> None:
        if self._halted is not None:
            # A fresh one each time: several workers raise it, and each adds its own traceback.
            raise copy.copy(self._halted) from self._halted.__cause__
        if self._ending:
            message = f"stage {self._spec.name}: closed while its flow was running"
            raise FlowHalted(message)

    def _take(self, lane: Lane[I, O]) -> list[Done[I, O] | Failed[I]]:
        self._raise_if_over()
        results = lane.take()
        if results:
            self._spec.pending.add(self._spec.name, -len(results))
        return results

    def _within_grace(self) -> bool:
        if self._grace_ends is None:
            self._grace_ends = time.monotonic() + self._spec.grace_s
        return time.monotonic() < self._grace_ends

    def _enqueue(self, lane: Lane[I, O]) -> None:
        if lane not in self._is_ready:
            self._line_up(lane)
            self._wake()

    def _line_up(self, lane: Lane[I, O]) -> None:
        if lane not in self._is_ready:
            self._is_ready.add(lane)
            self._ready.append(lane)

    def _wake(self) -> None:
        if not self._wanted:
            self._wanted = True
            try:
                self._loop.call_soon_threadsafe(self._pump)
            except RuntimeError:  # the loop has ended, and with it everything it would do
                return

    def _drop(self, lane: Lane[I, O]) -> None:
        if lane in self._lanes:
            self._lanes.remove(lane)
            if len(lane):
                self._spec.pending.add(self._spec.name, -len(lane))
                for task, owner in self._tasks.items():
                    if owner is lane:
                        task.cancel()

    # --- on the loop ---------------------------------------------------------------------------

    def _main(self) -> None:
        executor = ThreadPoolExecutor(self._spec.concurrency, f"stage-{self._spec.name}-call")
        self._loop.set_default_executor(executor)
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            self._loop.close()
            with self._settled:
                for lane in list(self._lanes):
                    self._drop(lane)
                self._gauge.set(0)
                self._settled.notify_all()
            atexit.unregister(self.stop)

    async def _live(self) -> None:
        await self._end.wait()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_WAIT_S)
        if self._spec.aclose is not None:
            try:
                await self._spec.aclose()
            except Exception:
                _log.exception("stage %s: closing its clients failed", self._spec.name)

    def _pump(self) -> None:
        """Fill the free slots, going round the keys."""
        self._wanted = False
        spec = self._spec
        with self._lock:
            while self._abandoned:
                self._drop(self._abandoned.popleft())
            if self.ended:
                self._end.set()
                return
            if spec.stopping():
                return
            now = spec.clock.now()
            while self._alarms and self._alarms[0][0] <= now:
                self._line_up(heapq.heappop(self._alarms)[2])
            while len(self._tasks) < spec.concurrency and self._ready:
                lane = self._ready.popleft()
                self._is_ready.discard(lane)
                call = lane.next_call(now) if lane in self._lanes else None
                if call is not None:
                    task = self._loop.create_task(self._make(lane, call))
                    task.add_done_callback(self._free)
                    self._tasks[task] = lane
                    if not lane.full:
                        self._line_up(lane)
                elif (due := lane.next_due(now)) is not None:
                    heapq.heappush(self._alarms, (due, next(self._alarm_order), lane))
            self._gauge.set(len(self._tasks))
            if self._alarms and self._alarm_timer is None:
                self._alarm_timer = self._loop.call_later(_CLOCK_CHECK_S, self._check_alarms)

    def _check_alarms(self) -> None:
        self._alarm_timer = None
        self._pump()

    async def _make(self, lane: Lane[I, O], call: Call[I, O]) -> None:
        task = asyncio.current_task()
        assert task is not None
        late = False

        def cancel() -> None:
            nonlocal late
            late = True
            task.cancel()

        timer = self._loop.call_later(self._spec.timeout_s, cancel)
        outputs: Sequence[O] = ()
        error: BaseException | None = None
        try:
            outputs = await self._spec.work(call.items, call.shown)
            if len(outputs) != len(call.items):
                message = f"{len(outputs)} results for {len(call.items)} items"
                raise ValueError(message)
        except asyncio.CancelledError as cancelled:
            error = cancelled
            if late:
                error = RequestTimedOut(f"no answer within {self._spec.timeout_s:g} s")
        except (Exception, SystemExit) as raised:
            error = raised
        finally:
            timer.cancel()
        with self._settled:
            if lane not in self._lanes or self.ended:
                return
            if error is None:
                self._log_patience.answered()
                lane.succeed(call, outputs)
                self._tally.succeeded(len(outputs))
                self._away.succeeded()
            else:
                self._failed(lane, call, error)
            self._line_up(lane)  # its slot is given back behind this, and then given out
            self._settled.notify_all()

    def _free(self, task: asyncio.Task[None]) -> None:
        """Give back the slot of a call, also of one that was cancelled before it began."""
        with self._settled:
            del self._tasks[task]
            if not task.cancelled() and (broken := task.exception()) is not None:
                self._halted = FlowHalted(f"stage {self._spec.name}: {describe(broken)}")
                self._halted.__cause__ = broken
                self._settled.notify_all()
        if not self._wanted:  # without waking the loop, which is here: that is a call of a socket
            self._wanted = True
            self._loop.call_soon(self._pump)

    def _failed(self, lane: Lane[I, O], call: Call[I, O], error: BaseException) -> None:
        spec, reason = self._spec, reason_of(error)
        if isinstance(error, (FlowHalted, UserError)):
            self._halted = FlowHalted(f"stage {spec.name}: {error.message}")
            self._halted.__cause__ = error
            return
        if reason == INTERNAL_ERROR:
            _log.error("stage %s: a bug in its work function", spec.name, exc_info=error)
        at, spread = spec.clock.now(), spec.spread()
        if isinstance(error, LogAway) and (over := self._log_patience.away(error, at)):
            self._halted = over
            return
        verdicts = [spec.retry.decide(error, known, at, spread) for known in call.failures]
        failures = [seen for seen, _ in verdicts]
        due = verdicts[0][1]  # the same for all: they are on the same footing
        self._away.failed(error, due, at, failures[0].conflicts)
        if due is not None:
            STAGE_RETRIES.labels(spec.name, reason).inc()
            lane.postpone(call, failures, due)
        elif len(call.entries) > 1:
            lane.split(call, failures)
        else:
            message = describe(error)
            lane.fail(call, failures[0], (reason, type(error).__name__, message))
            self._halted = self._tally.failed(reason, message)

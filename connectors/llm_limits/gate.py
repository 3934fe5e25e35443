"""Where model calls wait for the limits, whatever loop they come from."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from connectors.llm_limits.hold import RECHECK_S, Hold
from connectors.llm_limits.ledger import Ledger, LlmLimits, Spend, Verdict
from connectors.llm_limits.redis_ledger import LEASE_S
from connectors.llm_limits.turns import Turns
from connectors.metrics import LLM_COST, LLM_LIMIT_WAIT, LLM_SPENT_TODAY
from stores.errors import (
    LimitReached,
    RateLimited,
    RequestRefused,
    SedimentError,
    ServiceUnavailable,
    Transient,
)
from stores.protocols import ChatRequest

__all__ = ["PATIENCE_S", "CallGate", "CallUse"]

PATIENCE_S = 30.0
"""A call waits here this long; then it goes back to its stage, which tries again. So the time
limit of a stage needs this on top of the model's own."""

# After a 429 that does not say how long: the first after an answer, and at most; each doubles. One
# alone may be chance, and 5 s of rest for all at each of those halve what an endpoint does with
# 1 % of them; while none is answered in between, it is overloaded.
_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 5.0
_STOPPING_CHECK_S = 0.2
_CLOSE_S = 10.0
_BYTES_PER_TOKEN = 3  # at least: English has 4, Chinese 3 to 4. Corrected once the call has ended
_MICROS = 1_000_000


class CallUse:
    """What a call has used; said by whoever makes it. Unsaid, it counts as all it might have."""

    def __init__(self, gate: CallGate, model: str, need: Spend, prompt: Spend) -> None:
        self._gate = gate
        self._model = model
        self._prompt = prompt
        self.spent = need

    def used(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Say what the server counted; an answer that cannot be used was paid all the same."""
        micros = self._gate.price(self._model, prompt_tokens, completion_tokens)
        LLM_COST.labels(self._model).inc(micros / _MICROS)
        self._gate.answered()
        self.spent = Spend(prompt_tokens + completion_tokens, micros)

    def failed(self, error: SedimentError) -> None:
        """Say how it failed without an answer; a server that asks for rest is given it by all."""
        if isinstance(error, (RateLimited, RequestRefused)):
            self.spent = Spend()
        elif isinstance(error, ServiceUnavailable):
            self.spent = self._prompt
        if isinstance(error, RateLimited) and error.retry_after is None:
            self._gate.pause_a_while()
        elif isinstance(error, Transient) and error.retry_after:
            self._gate.pause(error.retry_after)


@dataclass(eq=False)
class _Waiter:
    scope: str
    need: Spend
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[str]


@dataclass(frozen=True)
class _Ended:
    scope: str
    lease: str
    need: Spend
    used: Spend


@dataclass(frozen=True)
class _Pause:
    seconds: float


@dataclass(frozen=True)
class _Close:
    pass


class CallGate:
    """Lets model calls begin, in fair turns of their scopes, when the ledger has room for them.

    Thread-safe, for any number of event loops; none is ever blocked. One thread, begun at the
    first call, asks the ledger. A call that must wait for longer than ``patience_s`` gets
    :class:`~stores.errors.LimitReached`, which its stage takes for no failure: so it waits in the
    stage, and in its snapshot over a restart.

    While the ledger cannot be asked, calls wait like that too: what was not counted is not sent.

    :arg prices: dollars for a million tokens of prompt and of answer, by model.
    :arg stopping: once true, nobody waits here any more.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: LlmLimits,
        *,
        prices: Mapping[str, tuple[float, float]] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        patience_s: float = PATIENCE_S,
        renew_s: float = LEASE_S / 3,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._limits = limits
        self._prices = prices or {}
        self._stopping = stopping
        self._patience_s = patience_s
        self._renew_s = renew_s
        self._monotonic = monotonic
        self._told: queue.SimpleQueue[_Waiter | _Ended | _Pause | _Close] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._hold = Hold(patience_s, monotonic)
        self._next_pause_s = _PAUSE_S
        # Of the thread alone:
        self._turns: Turns[_Waiter] = Turns()
        self._in_flight: Counter[str] = Counter()
        self._leases: set[str] = set()
        self._unsettled: list[_Ended | _Pause] = []
        self._ask_at = 0.0
        self._renew_at = 0.0
        self._closing = False

    # --- for model clients ---------------------------------------------------------------------

    @asynccontextmanager
    async def call(self, request: ChatRequest) -> AsyncIterator[CallUse]:
        """Wait until this call may be made; it counts as in flight inside of the block.

        Raises :class:`~stores.errors.LimitReached` when it may not for long.
        """
        prompt = sum(len(text.encode()) for _, text in request.messages) // _BYTES_PER_TOKEN
        model, most = request.model, request.max_tokens
        need = Spend(prompt + most, self.price(model, prompt, most))
        lease = await self._wait(request.scope, need)
        use = CallUse(self, model, need, Spend(prompt, self.price(model, prompt, 0)))
        try:
            yield use
        finally:
            self._told.put(_Ended(request.scope, lease, need, use.spent))

    def price(self, model: str, prompt_tokens: int, completion_tokens: int) -> int:
        """Give the price of a call in millionths of a dollar; 0 for a model without a price."""
        for_prompt, for_answer = self._prices.get(model, (0.0, 0.0))
        return round(prompt_tokens * for_prompt + completion_tokens * for_answer)

    def pause(self, seconds: float) -> None:
        """Let no worker begin a call for this long."""
        self._told.put(_Pause(seconds))

    def pause_a_while(self) -> None:
        """Let no worker begin a call for a while, because a server did not say for how long."""
        self.pause(self._next_pause_s)
        self._next_pause_s = min(2 * self._next_pause_s, _LONGEST_PAUSE_S)

    def answered(self) -> None:
        """Note that the server answers."""
        self._next_pause_s = _PAUSE_S

    def close(self) -> None:
        """Send away who waits, settle what has ended, close the ledger."""
        with self._starting:
            thread = self._thread
        if thread is None:
            self._ledger.close()
            return
        self._told.put(_Close())
        thread.join(_CLOSE_S)

    async def _wait(self, scope: str, need: Spend) -> str:
        self._start()
        if self._stopping() or self._hold.sends_away():
            raise self._hold.error()
        loop = asyncio.get_running_loop()
        waiter = _Waiter(scope, need, loop, loop.create_future())
        began = self._monotonic()
        self._told.put(waiter)
        try:
            await asyncio.wait({waiter.future}, timeout=self._patience_s)
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        LLM_LIMIT_WAIT.observe(self._monotonic() - began)
        if not waiter.future.done():
            self._leave(waiter)
            raise self._hold.error()
        return waiter.future.result()

    def _leave(self, waiter: _Waiter) -> None:
        """Stop waiting; a permission that has come in the same moment is given back."""
        if waiter.future.cancel() or waiter.future.cancelled():
            return
        if waiter.future.exception() is None:
            lease = waiter.future.result()
            self._told.put(_Ended(waiter.scope, lease, waiter.need, Spend()))

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="llm-limits", daemon=True)
                self._thread.start()

    # --- on the thread -------------------------------------------------------------------------

    def _main(self) -> None:
        while True:
            self._hear()
            try:
                self._catch_up()
                self._grant()
            except ServiceUnavailable:
                now = self._monotonic()
                self._hold.begin("redis", 1.0)
                self._ask_at = self._renew_at = now + 1.0
                self._send_all_away_if(self._closing or self._stopping())
            if self._closing:
                self._hold.end()
                self._ledger.close()
                return

    def _hear(self) -> None:
        """Take in what was told, waiting for it until there is something to do by itself."""
        now = self._monotonic()
        moments = []
        if self._leases:
            moments.append(self._renew_at)
        if len(self._turns):
            moments += [self._ask_at, now + _STOPPING_CHECK_S]
        if self._unsettled:
            moments.append(self._ask_at)
        wait = max(0.001, min(moments) - now) if moments else None
        try:
            self._note(self._told.get(timeout=wait))
            while True:
                self._note(self._told.get_nowait())
        except queue.Empty:
            return

    def _note(self, told: _Waiter | _Ended | _Pause | _Close) -> None:
        if isinstance(told, _Waiter):
            self._turns.add(told.scope, told, told.need.tokens)
        elif isinstance(told, _Close):
            self._closing = True
        else:
            self._unsettled.append(told)

    def _catch_up(self) -> None:
        """Tell the ledger what has ended, and what is still in flight."""
        if self._hold.reason == "redis" and self._monotonic() < self._ask_at and not self._closing:
            return
        while self._unsettled:
            told = self._unsettled[0]
            if isinstance(told, _Pause):
                self._ledger.pause(told.seconds)
            else:
                self._ledger.settle(told.lease, told.need, told.used)
                self._end(told)
                if self._hold.reason is None:
                    self._ask_at = 0.0  # its slot may be what somebody waits for
            del self._unsettled[0]
            self._redis_is_back()
        if self._leases and self._monotonic() >= self._renew_at:
            self._ledger.renew(sorted(self._leases))
            self._renew_at = self._monotonic() + self._renew_s
            self._redis_is_back()
            self._show_spent()

    def _redis_is_back(self) -> None:
        if self._hold.reason == "redis":
            self._hold.end()

    def _end(self, ended: _Ended) -> None:
        self._leases.discard(ended.lease)
        self._in_flight[ended.scope] -= 1
        self._in_flight += Counter()  # drops scopes that count zero

    def _grant(self) -> None:
        if self._send_all_away_if(self._closing or self._stopping()):
            return
        while (waiter := self._turns.peek(self._in_flight, self._limits.concurrency)) is not None:
            if waiter.future.done():  # it waits no more
                self._turns.discard(waiter)
                continue
            if self._monotonic() < self._ask_at:
                return
            verdict = self._ledger.take(waiter.need)
            if not verdict.lease:
                self._refused(verdict)
                return
            self._hold.end()
            self._turns.take(self._in_flight, self._limits.concurrency)
            if not self._leases:
                self._renew_at = self._monotonic() + self._renew_s
            self._leases.add(verdict.lease)
            self._in_flight[waiter.scope] += 1
            self._tell(waiter, verdict.lease)

    def _tell(self, waiter: _Waiter, lease: str) -> None:
        unused = _Ended(waiter.scope, lease, waiter.need, Spend())

        def tell() -> None:
            if waiter.future.done():
                self._told.put(unused)
            else:
                waiter.future.set_result(lease)

        try:
            waiter.loop.call_soon_threadsafe(tell)
        except RuntimeError:  # its loop has ended
            self._told.put(unused)

    def _refused(self, verdict: Verdict) -> None:
        now = self._monotonic()
        self._ask_at = now + min(verdict.wait_s, RECHECK_S)
        if verdict.reason in ("busy", "rate"):
            self._hold.end()
            return
        self._hold.begin("budget" if verdict.reason == "budget" else "paused", verdict.wait_s)
        self._show_spent()
        self._send_all_away_if(verdict.wait_s > self._patience_s)

    def _send_all_away_if(self, so: bool) -> bool:
        if not so:
            return False
        for waiter in self._turns:
            error = self._hold.error()

            def tell(waiter: _Waiter = waiter, error: LimitReached = error) -> None:
                if not waiter.future.done():
                    waiter.future.set_exception(error)

            try:
                waiter.loop.call_soon_threadsafe(tell)
            except RuntimeError:  # its loop has ended
                continue
        self._turns.clear()
        return True

    def _show_spent(self) -> None:
        spent = self._ledger.state().spent
        LLM_SPENT_TODAY.labels("tokens").set(spent.tokens)
        LLM_SPENT_TODAY.labels("dollars").set(spent.micros / _MICROS)

"""What may be asked of the model now, and what was spent today: the rules, in process.

:class:`~connectors.llm_limits.redis_ledger.RedisLedger` keeps the same rules for several workers.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import orjson

from connectors.settings import Settings

__all__ = [
    "DAY_S",
    "MAX_PAUSE_S",
    "Bucket",
    "Ledger",
    "LedgerState",
    "LlmLimits",
    "LocalLedger",
    "Spend",
    "SpentFile",
    "Verdict",
]

DAY_S = 86_400
MAX_PAUSE_S = 3600.0
"""A ``Retry-After`` that is longer is taken for a mistake: an hour later somebody asks again."""

_MICROS = 1_000_000
_SETTLING_S = 1.0


@dataclass(frozen=True, slots=True)
class LlmLimits:
    """How much may be asked of the model, by all workers together; 0 is no limit.

    Requests and tokens are smoothed over the minute: a tenth of them may come at once, so that
    no minute, wherever it begins, has more than the limit.

    :arg dollars_per_day: millionths of a dollar. A day begins at midnight UTC.
    """

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    tokens_per_day: int = 0
    micros_per_day: int = 0

    @classmethod
    def configured(cls, settings: Settings) -> LlmLimits:
        """Take the limits from the settings."""
        return cls(
            requests_per_minute=settings.llm_requests_per_minute,
            tokens_per_minute=settings.llm_tokens_per_minute,
            concurrency=settings.llm_concurrency,
            tokens_per_day=settings.llm_tokens_per_day,
            micros_per_day=round(settings.llm_dollars_per_day * _MICROS),
        )


@dataclass(frozen=True, slots=True)
class Spend:
    """What a call may use or has used: tokens, and millionths of a dollar."""

    tokens: int = 0
    micros: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of asking for a call.

    :arg lease: the permission, to be settled when the call has ended; empty when refused.
    :arg reason: why it was refused. ``busy``: enough calls are in flight; ``rate``: the minute
        is full; ``paused``: the server asked everybody to wait; ``budget``: the day's is used up.
    :arg wait_s: when it pays to ask again.
    """

    lease: str = ""
    reason: Literal["", "busy", "rate", "paused", "budget"] = ""
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LedgerState:
    """How the ledger stands.

    :arg spent: used since midnight UTC, calls that have ended only.
    :arg paused_s: seconds for which the server asked everybody to wait.
    :arg stopped: the last call that asked today did not fit into the day's budget.
    """

    spent: Spend
    in_flight: int
    paused_s: float
    stopped: bool


class Ledger(Protocol):
    """Decides about calls, one at a time. Blocking; for one thread.

    Raises :class:`~stores.errors.ServiceUnavailable` when it cannot be asked.
    """

    def take(self, need: Spend) -> Verdict:
        """Ask for a call that uses ``need`` at most."""
        ...

    def settle(self, lease: str, need: Spend, used: Spend) -> None:
        """End a call: give its slot back, and what it reserved and did not use."""
        ...

    def renew(self, leases: Sequence[str]) -> None:
        """Say that these calls are still in flight."""
        ...

    def pause(self, seconds: float) -> None:
        """Let nobody begin a call for this long; what is in flight goes on."""
        ...

    def state(self) -> LedgerState:
        """Tell how it stands."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class Bucket:
    """A token bucket by which no minute has more than ``per_minute``; 0 is no limit.

    It holds a tenth of the limit. What is larger is let through when the bucket is full, and what
    it took too much is waited for afterwards.

    >>> bucket = Bucket(60)
    >>> for _ in range(6):
    ...     bucket.take(1)
    >>> round(bucket.wait(1, now=0.0), 2), bucket.wait(1, now=2.0)
    (1.09, 0.0)
    """

    def __init__(self, per_minute: int) -> None:
        self.burst = max(1, per_minute // 10)
        self.rate = (per_minute + 1 - self.burst) / 60
        self._limited = per_minute > 0
        self._free = float(self.burst)
        self._at = 0.0

    def wait(self, amount: int, now: float) -> float:
        """Give the seconds until ``amount`` may be taken; 0.0 when it may be now."""
        self._free = min(self.burst, self._free + max(0.0, now - self._at) * self.rate)
        self._at = now
        missing = min(amount, self.burst) - self._free
        return missing / self.rate if self._limited and missing > 0 else 0.0

    def take(self, amount: int) -> None:
        """Take ``amount``; a negative one is given back."""
        self._free = min(self.burst, self._free - amount)


class SpentFile:
    """Remembers over a restart what was spent today, where no Redis does. One writer.

    The file is replaced as a whole after every call; a crash keeps the one before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[int, Spend, bool]:
        """Give the day, as days since the epoch, what it has spent, and whether it stopped."""
        try:
            kept = orjson.loads(self.path.read_bytes())
            spent = Spend(int(kept["tokens"]), int(kept["micros"]))
            return int(kept["day"]), spent, bool(kept["stopped"])
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or not ours: nothing spent
            return 0, Spend(), False

    def write(self, day: int, spent: Spend, *, stopped: bool) -> None:
        """Keep what a day has spent."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        kept = {"day": day, "tokens": spent.tokens, "micros": spent.micros, "stopped": stopped}
        new.write_bytes(orjson.dumps(kept))
        os.replace(new, self.path)


class LocalLedger:
    """The ledger of one process.

    :arg clock: seconds since the epoch.
    :arg kept: where the day's spending outlives the process; without it a restart begins at 0.
    """

    def __init__(
        self,
        limits: LlmLimits,
        *,
        clock: Callable[[], float] = time.time,
        kept: SpentFile | None = None,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._kept = kept
        self._requests = Bucket(limits.requests_per_minute)
        self._tokens = Bucket(limits.tokens_per_minute)
        self._paused_until = 0.0
        self._leases: dict[str, Spend] = {}
        self._count = 0
        self._day, self._spent, self._stopped = kept.read() if kept else (0, Spend(), False)

    def take(self, need: Spend) -> Verdict:
        """Ask for a call."""
        limits, now = self._limits, self._clock()
        if now < self._paused_until:
            return Verdict(reason="paused", wait_s=self._paused_until - now)
        self._turn_the_day(now)
        if over_budget(limits, self._spent, need):
            self._keep(stopped=True)
            return Verdict(reason="budget", wait_s=DAY_S - math.fmod(now, DAY_S))
        if over_budget(limits, self._with_reserved(), need):
            # What is in flight may use less than it reserved.
            return Verdict(reason="busy", wait_s=_SETTLING_S)
        if limits.concurrency and len(self._leases) >= limits.concurrency:
            return Verdict(reason="busy", wait_s=_SETTLING_S)
        wait = max(self._requests.wait(1, now), self._tokens.wait(need.tokens, now))
        if wait:
            return Verdict(reason="rate", wait_s=wait)
        self._requests.take(1)
        self._tokens.take(need.tokens)
        self._count += 1
        lease = str(self._count)
        self._leases[lease] = need
        self._stopped = False
        return Verdict(lease=lease)

    def settle(self, lease: str, need: Spend, used: Spend) -> None:
        """End a call."""
        if self._leases.pop(lease, None) is None:
            return
        self._turn_the_day(self._clock())
        self._tokens.take(used.tokens - need.tokens)
        spent = self._spent
        self._spent = Spend(spent.tokens + used.tokens, spent.micros + used.micros)
        self._keep(stopped=self._stopped)

    def renew(self, leases: Sequence[str]) -> None:
        """Do nothing: what this process holds ends with it."""

    def pause(self, seconds: float) -> None:
        """Let nobody begin a call for this long."""
        until = self._clock() + min(seconds, MAX_PAUSE_S)
        self._paused_until = max(self._paused_until, until)

    def state(self) -> LedgerState:
        """Tell how it stands."""
        now = self._clock()
        self._turn_the_day(now)
        paused_s = max(0.0, self._paused_until - now)
        return LedgerState(self._spent, len(self._leases), paused_s, self._stopped)

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _turn_the_day(self, now: float) -> None:
        day = int(now // DAY_S)
        if day != self._day:
            self._day, self._spent, self._stopped = day, Spend(), False

    def _keep(self, *, stopped: bool) -> None:
        self._stopped = stopped
        if self._kept is not None:
            with contextlib.suppress(OSError):  # a full disk stops the flow at its own files
                self._kept.write(self._day, self._spent, stopped=stopped)

    def _with_reserved(self) -> Spend:
        all_of_it = (self._spent, *self._leases.values())
        return Spend(sum(one.tokens for one in all_of_it), sum(one.micros for one in all_of_it))


def over_budget(limits: LlmLimits, spent: Spend, need: Spend) -> bool:
    """Say whether ``need`` would exceed the day's budget."""
    tokens = limits.tokens_per_day and spent.tokens + need.tokens > limits.tokens_per_day
    return bool(
        tokens or (limits.micros_per_day and spent.micros + need.micros > limits.micros_per_day)
    )

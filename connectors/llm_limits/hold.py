"""Whether no model call may begin at all, and how people are told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from connectors.metrics import LLM_HELD
from stores.errors import LimitReached

__all__ = ["RECHECK_S", "Hold", "HoldReason"]

HoldReason = Literal["budget", "paused", "redis"]

RECHECK_S = 5.0
"""However long a hold may last, the ledger is asked again after this: a hold may end early."""
# The longest that a call is sent away: a restart with a higher budget waits for it too. A thousand
# items that come back this often cost about a quarter of a core, which then has nothing else to do.
_BACK_IN_S = 15.0
_WHY: dict[HoldReason | None, str] = {
    "budget": "the day's budget for model calls is used up",
    "paused": "the model's endpoint asked everybody to wait",
    "redis": "Redis, which keeps the limits on model calls, does not answer",
    None: "no room within the limits on model calls",
}
_WHAT_NOW: dict[HoldReason, str] = {
    "budget": "the day's budget is used up; they go on at midnight UTC, in {wait:.0f} s, or after "
    "a restart with a higher SEDIMENT_LLM_TOKENS_PER_DAY or SEDIMENT_LLM_DOLLARS_PER_DAY",
    "paused": "the endpoint asked to wait, for {wait:.0f} s",
    "redis": "Redis, which counts them, does not answer; they go on when it does",
}

_log = logging.getLogger(__name__)


class Hold:
    """Whether calls are held, why, and until when they are sent away without asking again.

    One thread changes it, others look. A change is logged once, as a warning, and is a metric.

    :arg patience_s: who would have to wait for longer is sent away.
    :arg monotonic: seconds.
    """

    def __init__(self, patience_s: float, monotonic: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._reason: HoldReason | None = None
        self._asked_again_at = 0.0
        self._back_in_s = 0.0
        for reason in _WHAT_NOW:
            LLM_HELD.labels(reason).set(0)

    @property
    def reason(self) -> HoldReason | None:
        """Why calls are held; ``None`` when they are not."""
        return self._reason

    def sends_away(self) -> bool:
        """Say whether waiting is of no use now."""
        return self._monotonic() < self._asked_again_at

    def error(self) -> LimitReached:
        """Make what a call is sent away with."""
        wait = self._back_in_s if self._reason else 0.0
        return LimitReached(_WHY[self._reason], retry_after=min(_BACK_IN_S, wait))

    def begin(self, reason: HoldReason, wait_s: float) -> None:
        """Hold calls, or go on holding them."""
        self._back_in_s = wait_s
        if wait_s > self._patience_s:
            self._asked_again_at = self._monotonic() + min(wait_s, RECHECK_S)
        if reason == self._reason:
            return
        if self._reason is not None:
            LLM_HELD.labels(self._reason).set(0)
        self._reason = reason
        LLM_HELD.labels(reason).set(1)
        told = _WHAT_NOW[reason].format(wait=wait_s)
        _log.warning("model calls wait: %s. Nothing is lost", told)

    def end(self) -> None:
        """Let calls go on."""
        if self._reason is None:
            return
        LLM_HELD.labels(self._reason).set(0)
        self._reason = None
        self._asked_again_at = 0.0
        _log.warning("model calls go on")

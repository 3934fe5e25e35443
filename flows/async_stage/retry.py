"""When a failed call is tried again, and when it is given up. Pure: no clock, no randomness."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stores.errors import (
    LimitReached,
    LockConflict,
    LogAway,
    MalformedAnswer,
    SedimentError,
    Transient,
)

__all__ = ["INTERNAL_ERROR", "Failures", "RetryPolicy", "describe", "reason_of"]

INTERNAL_ERROR = "internal_error"
"""Reason of a failure that nobody raised on purpose: a bug in the work function."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What has gone wrong with one item so far. Part of the recovery snapshot.

    :arg calls: failed calls the item took part in; those that use up no attempt left out.
    :arg transient: those of them that failed with a ``Transient`` error.
    :arg malformed: those of them that were answered with something malformed.
    :arg conflicts: calls that found the lock taken, or the log away.
    :arg shown: text of the last malformed answer's error, to be shown to the model.
    """

    calls: int = 0
    transient: int = 0
    malformed: int = 0
    conflicts: int = 0
    shown: str | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None

    def same_footing(self, other: Failures) -> bool:
        """Say whether the next failure would mean the same for both: one call may hold both."""
        return (
            self.transient == other.transient
            and self.malformed == other.malformed
            and self.conflicts == other.conflicts
            and self.shown == other.shown
        )


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how late a failed call is tried again, by the class of its error alone.

    Anything that is neither ``Transient`` nor ``MalformedAnswer`` is given up at once: the same
    input would fail the same way.

    :arg backoff_s: seconds before each retry of a ``Transient`` error, so their number is the
        number of retries. 5, 15, 45: a restarting pod or a burst of 429 is over within 5 s, a
        failover within 20 s, a short outage within about a minute; what lasts longer is for the
        failure limit, which stops the flow, and not for a longer wait of one key.
    :arg jitter: part of the wait that is added at random, so that 60 calls that failed together
        do not come back together. A quarter spreads them over 1 s at least. It only ever adds:
        a ``retry_after`` is never undercut.
    :arg malformed_retries: a model that sees its error corrects it mostly on the second answer
        and hardly ever after the third; each costs a full call.
    :arg conflict_s: a scope's lock is held for one call of another worker, seconds as a rule.
    :arg max_conflicts: 720 waits of 5 s are an hour. Finding a lock taken says nothing about the
        item, so it uses up no attempt; but a lock that is never given back must show. A log that
        does not answer is waited for in the same way.
    :arg limit_s: at least this long until our own limit on model calls is asked again; it says
        itself how long it may take.
    """

    backoff_s: tuple[float, ...] = (5.0, 15.0, 45.0)
    jitter: float = 0.25
    malformed_retries: int = 2
    conflict_s: float = 5.0
    max_conflicts: int = 720
    limit_s: float = 1.0

    def decide(
        self, error: BaseException, before: Failures, at: datetime, spread: float
    ) -> tuple[Failures, datetime | None]:
        """Say what is known after ``error`` at time ``at``, and when to try again.

        :arg spread: a random number in [0, 1) for the jitter.
        :returns: the new failures; and when the retry is due, ``None`` for giving up.
        """
        seen = replace(before, first_at=before.first_at or at, last_at=at)
        if isinstance(error, (LockConflict, LogAway)):
            seen = replace(seen, conflicts=seen.conflicts + 1)
            wait = max(self.conflict_s, error.retry_after or 0.0)
            due = at + timedelta(seconds=wait)
            return seen, due if seen.conflicts <= self.max_conflicts else None
        if isinstance(error, LimitReached):
            # Without end: a day's budget may be used up for hours, and that is no failure.
            wait = max(self.limit_s, error.retry_after or 0.0)
            return before, at + timedelta(seconds=wait * (1.0 + self.jitter * spread))
        seen = replace(seen, calls=seen.calls + 1)
        if isinstance(error, Transient):
            seen = replace(seen, transient=seen.transient + 1)
            if seen.transient > len(self.backoff_s):
                return seen, None
            wait = max(self.backoff_s[seen.transient - 1], error.retry_after or 0.0)
            return seen, at + timedelta(seconds=wait * (1.0 + self.jitter * spread))
        if isinstance(error, MalformedAnswer):
            seen = replace(seen, malformed=seen.malformed + 1, shown=error.message)
            return seen, at if seen.malformed <= self.malformed_retries else None
        return seen, None


def reason_of(error: BaseException) -> str:
    """Give the machine-readable reason: the error's own, or that it is a bug."""
    return error.reason if isinstance(error, SedimentError) else INTERNAL_ERROR


def describe(error: BaseException) -> str:
    """Say in one line what happened, without conversation text.

    Our own errors never hold any. Of others only the class and the place are told, because
    their text may quote what was being worked on.
    """
    if isinstance(error, SedimentError):
        return error.message
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"

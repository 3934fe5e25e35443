"""Tells people what a stage waits for: once that a service does not answer, or a lock is held."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from stores.errors import LockConflict, LogAway, ServiceUnavailable

__all__ = ["Away"]

_SAY_AGAIN = timedelta(seconds=60)
"""Between two outages that are told: an endpoint that fails now and then fills no log."""

_CONFLICTS_TOLD = 2
"""Told at that many of one item: a lock is mostly held for one short call of another worker."""

_log = logging.getLogger(__name__)


class Away:
    """What one stage waits for. Not thread-safe.

    The log itself says so of its own accord, and the limits on model calls too.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._waits_for = ""
        self._told_at: datetime | None = None
        self._told_lock_at: datetime | None = None

    def failed(
        self, error: BaseException, retry_at: datetime | None, now: datetime, conflicts: int = 0
    ) -> None:
        """Note that a call failed, and when it is made again: never when it was given up.

        :arg conflicts: how often the item of the call found its lock taken so far.
        """
        if retry_at is None:
            return
        if isinstance(error, LockConflict):
            if conflicts == _CONFLICTS_TOLD and not _lately(self._told_lock_at, now):
                self._told_lock_at = now
                _log.warning(
                    "stage %s waits: another process holds the lock of a scope. It asks again in "
                    "%.0f s. The lock of a process that was killed ends by itself within a minute",
                    self._stage,
                    (retry_at - now).total_seconds(),
                )
            return
        if not isinstance(error, ServiceUnavailable) or isinstance(error, LogAway):
            return
        if self._waits_for or _lately(self._told_at, now):
            return
        self._waits_for = error.service
        self._told_at = now
        _log.warning(
            "stage %s waits: %s. It asks again in %.0f s, then ever later. Nothing is lost; "
            "`sediment doctor` looks at everything that is needed",
            self._stage,
            error.message,
            (retry_at - now).total_seconds(),
        )

    def succeeded(self) -> None:
        """Note that a call succeeded."""
        if self._waits_for:
            _log.warning("stage %s goes on: %s answers again", self._stage, self._waits_for)
            self._waits_for = ""


def _lately(told_at: datetime | None, now: datetime) -> bool:
    return told_at is not None and now - told_at < _SAY_AGAIN

"""Tells people once that a service does not answer a stage, and once that it does again."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from stores.errors import LogAway, ServiceUnavailable

__all__ = ["Away"]

_SAY_AGAIN = timedelta(seconds=60)
"""Between two outages that are told: an endpoint that fails now and then fills no log."""

_log = logging.getLogger(__name__)


class Away:
    """What one stage waits for. Not thread-safe.

    The log itself says so of its own accord, and the limits on model calls too.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._waits_for = ""
        self._told_at: datetime | None = None

    def failed(self, error: BaseException, retry_at: datetime | None, now: datetime) -> None:
        """Note that a call failed, and when it is made again: never when it was given up."""
        if not isinstance(error, ServiceUnavailable) or isinstance(error, LogAway):
            return
        lately = self._told_at is not None and now - self._told_at < _SAY_AGAIN
        if retry_at is None or self._waits_for or lately:
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

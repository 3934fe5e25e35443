"""How long brokers may be away before a flow gives up, and how it tells of it meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

from connectors.kafka.connection import unavailable
from connectors.log import given_up
from connectors.metrics import LOG_AWAY_SECONDS

__all__ = ["Outage"]

_SAY_AGAIN_S = 60.0
_log = logging.getLogger(__name__)


class Outage:
    """One thread's view of brokers that do not answer: says so, waits, and at last gives up.

    What waiting cannot mend (authorisation, a topic that is not there) is not for this: raise it.

    :arg doing: what waits meanwhile; label of the metric ``sediment_log_away_seconds``.
    :arg patience_s: seconds without an answer after which :meth:`goes_on` raises.
    """

    def __init__(
        self,
        doing: Literal["reading", "writing"],
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is wrong yet."""
        self._gauge = LOG_AWAY_SECONDS.labels(doing)
        self._doing = doing
        self._patience_s = patience_s
        self._clock = clock
        self._since: float | None = None
        self._said_at = 0.0

    def goes_on(self, why: str, since: float | None = None) -> None:
        """Note that there is still no answer. Call it again and again for as long as that is so.

        Raises :class:`~stores.errors.LogAway` when patience is over.

        :arg since: when it began, on the clock; by default with the first call.
        """
        now = self._clock()
        if self._since is None:
            self._since = now if since is None else since
            self._said_at = now
            _log.warning(
                "kafka: %s; %s waits for it, for %.0f s at most", why, self._doing, self._patience_s
            )
        lasted = now - self._since
        self._gauge.set(lasted)
        if lasted > self._patience_s:
            raise unavailable(given_up(why, self._doing, lasted))
        if now - self._said_at > _SAY_AGAIN_S:
            self._said_at = now
            _log.warning("kafka: %s; %s has waited for %.0f s", why, self._doing, lasted)

    def over(self) -> None:
        """Note that there is an answer again."""
        if self._since is not None:
            lasted = self._clock() - self._since
            _log.warning("kafka: answers again, after %.0f s; %s goes on", lasted, self._doing)
            self._gauge.set(0)
            self._since = None

"""When a call is sent again, and how long after. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.client.errors import ClientError, ServiceError, TooManyCalls, Unreachable

__all__ = ["Retries"]

_UNAVAILABLE = (503, 504)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a call that failed is sent again.

    :arg attempts: calls altogether.
    :arg first_wait_s: before the second; doubled each time, unless the service says how long.
    :arg longest_wait_s: a service that asks for more is given up on at once.
    """

    attempts: int = 4
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def wait(self, attempt: int, error: ClientError) -> float | None:
        """Give the seconds to wait before the next call; ``None`` to give up.

        :arg attempt: calls made so far, from 1.
        """
        again = isinstance(error, (TooManyCalls, Unreachable)) or (
            isinstance(error, ServiceError) and error.status in _UNAVAILABLE
        )
        if not again or attempt >= self.attempts:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.longest_wait_s else None
        return float(min(self.first_wait_s * 2 ** (attempt - 1), self.longest_wait_s))

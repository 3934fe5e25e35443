"""HTTP/1.1 whose request headers arrive in time.

uvicorn waits for the rest of a header as long as its sender likes, so a few thousand senders that
never finish one would take every connection there is.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HeadersInTime"]


class HeadersInTime(H11Protocol):
    """uvicorn's own protocol, that hangs up on a header which is not whole in time.

    :cvar header_timeout_s: from the connection, or the first byte of a later request.
    """

    header_timeout_s: ClassVar[float] = 30.0
    _header_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first header."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came; wait on where that was not the end of a header."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._wait_no_more()
        elif self._header_due is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._header_due = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._header_due is not None:
            self._header_due.cancel()
            self._header_due = None

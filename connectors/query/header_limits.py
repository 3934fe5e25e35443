"""HTTP/1.1 whose request headers arrive in time, and have an end.

uvicorn waits for the rest of a header as long as its sender likes, so a few thousand senders that
never finish one would take every connection there is; and it keeps whatever comes of it.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["MAX_HEADER_BYTES", "HeadersInTime"]

MAX_HEADER_BYTES = 16 * 1024


class HeadersInTime(HttpToolsProtocol):
    """uvicorn's own protocol, that hangs up on a header which is not whole in time, or too large.

    A header that arrives whole at once is passed on, however large: the app answers it as it
    answers everything.

    :cvar header_timeout_s: from the connection, or the first byte of a later request.
    """

    header_timeout_s: ClassVar[float] = 30.0
    _header_due: asyncio.TimerHandle | None = None
    _in_header = True  # or in front of the first one
    _begun_now = False  # in the piece that is looked at
    _heard = 0  # bytes of a header, without the piece it began in

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first header."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came; wait on where that was not the end of a header."""
        self._begun_now = False
        super().data_received(data)
        if not self._in_header:
            self._wait_no_more()
            return
        if not self._begun_now:  # else the end of another request may be in front of it
            self._heard += len(data)
        if self._heard > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response(f"A header has at most {MAX_HEADER_BYTES} bytes.")
        if self._header_due is None:
            self._wait()

    def on_message_begin(self) -> None:
        """Begin a header."""
        super().on_message_begin()
        self._in_header, self._begun_now, self._heard = True, True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the header; one that comes behind the body is nobody's."""
        if self._in_header:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End a header."""
        self._in_header = False
        super().on_headers_complete()

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

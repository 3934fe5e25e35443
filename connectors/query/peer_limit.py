"""How often an address may call without a valid key.

Every call counts where there are no keys, else the calls that end as 401. A call with a valid key
is never held up here: callers behind one proxy share its address and must not lock each other out.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectors.metrics import RATE_LIMITED
from connectors.query.audit_log import CallNote
from connectors.query.failures import error_response
from connectors.query.rate_limit import peer_limit, peer_name
from connectors.query.traced import PROBES
from connectors.settings import Settings

__all__ = ["PeerLimited"]


class PeerLimited:
    """ASGI middleware: answers 429 instead, once an address has called too often.

    Has to be inside the audit log. What is refused here has no line there: a flood would only
    fill the disk; the metric counts it.

    :arg keyed: there are keys, so only a call that was refused for want of one counts.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, keyed: bool) -> None:
        self._app = app
        self._limit = peer_limit(settings)
        self._keyed = keyed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or self._limit is None or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        if not self._keyed:
            if not await self._refused(scope, receive, send):
                await self._app(scope, receive, send)
            return
        refused = False

        async def sending(message: Message) -> None:
            nonlocal refused
            if (
                message["type"] == "http.response.start"
                and message["status"] == HTTPStatus.UNAUTHORIZED
            ):
                refused = await self._refused(scope, receive, send)
            if not refused:
                await send(message)

        await self._app(scope, receive, sending)

    async def _refused(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Count a call of an address; answer it, and say so, when it is one too many."""
        assert self._limit is not None
        client = scope.get("client")
        wait = await self._limit.take(peer_name(client[0] if client else ""))
        if not wait:
            return False
        RATE_LIMITED.inc()
        CallNote.of(scope).logged = False
        message = f"this address makes too many calls without a key; try again in {wait:.1f} s"
        seconds = str(max(1, -int(-wait // 1)))
        refusal = error_response(429, "rate_limited", message, headers={"retry-after": seconds})
        await refusal(scope, receive, send)
        return True

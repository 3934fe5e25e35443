"""One service whose insides can be exchanged while it serves, each request whole on one side."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

__all__ = ["SwitchedApp"]


class _Inside:
    """One app, its lifespan in a task of its own: two lifespans may end in either order."""

    def __init__(self, app: Starlette) -> None:
        self.app = app
        self.requests = 0
        self.idle = asyncio.Event()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._life = asyncio.create_task(self._live())

    async def start(self) -> None:
        await asyncio.wait([self._started, self._life], return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            await self._life  # raises what went wrong

    async def end(self) -> None:
        self._over.set()
        await self._life

    async def _live(self) -> None:
        async with self.app.router.lifespan_context(self.app):
            self._started.set_result(None)
            await self._over.wait()


class SwitchedApp:
    """An ASGI app that hands each request to the app that is current when the request begins.

    So no request sees two of them, and none fails because of a switch. Every app's lifespan is
    run here; tell the server not to. For one event loop.
    """

    def __init__(self) -> None:
        """Nothing is served before the first :meth:`switch`."""
        self._current: _Inside | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        inside = self._current
        if inside is None:
            message = "a request came before there was anything to serve it"
            raise RuntimeError(message)
        inside.requests += 1
        try:
            await inside.app(scope, receive, send)
        finally:
            inside.requests -= 1
            if not inside.requests and inside is not self._current:
                inside.idle.set()

    async def switch(self, app: Starlette) -> None:
        """Serve the requests that begin from now on with ``app``.

        Returns once the requests of the app before have ended and its lifespan is over: then
        what it used may be closed. Raises what ``app``'s start raises, and changes nothing then.
        """
        inside = _Inside(app)
        await inside.start()
        before, self._current = self._current, inside
        if before is not None:
            if before.requests:
                await before.idle.wait()
            await before.end()

    async def aclose(self) -> None:
        """End the current app's lifespan, once the server has ended."""
        if self._current is not None:
            await self._current.end()
            self._current = None

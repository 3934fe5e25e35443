"""The service that tools call, exchanged while they are called, each call whole on one side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from connectors.query.service import Service

__all__ = ["ServiceInUse"]


class _Inside:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.calls = 0
        self.idle = asyncio.Event()


class ServiceInUse:
    """Hands each call the service that is current when the call begins. For one event loop."""

    def __init__(self, service: Service) -> None:
        self._current = _Inside(service)

    @property
    def current(self) -> Service:
        """Give the service for calls that begin now; a call itself takes :meth:`using`."""
        return self._current.service

    @asynccontextmanager
    async def using(self) -> AsyncIterator[Service]:
        """Use the current service for one call: it stays open until the block is left."""
        inside = self._current
        inside.calls += 1
        try:
            yield inside.service
        finally:
            inside.calls -= 1
            if not inside.calls and inside is not self._current:
                inside.idle.set()

    async def switch(self, service: Service) -> None:
        """Give calls that begin from now on another service.

        Returns once the calls of the one before have ended: then it may be closed.
        """
        before, self._current = self._current, _Inside(service)
        if before.calls:
            await before.idle.wait()

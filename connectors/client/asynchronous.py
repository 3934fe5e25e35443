"""The async client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import httpx

from connectors.client import calls
from connectors.client.calls import A, Call
from connectors.client.errors import ClientError, Unreachable
from connectors.client.retries import Retries
from connectors.query.memory_models import (
    EditAnswer,
    EventsPage,
    ForgetAnswer,
    MemoriesAnswer,
    MemoryAnswer,
    ScenesAnswer,
    StatusAnswer,
)
from connectors.query.models import EventsAnswer, Layer, RecallAnswer, SearchAnswer
from stores.records import AtomType, ForgetTarget, L0Event, Profile

__all__ = ["AsyncClient"]


class AsyncClient:
    """Calls the query service from an event loop. Use it as an async context manager.

    Every method raises :class:`~connectors.client.errors.ClientError`. ``**scope`` of a method
    are ``tenant``, ``agent``, ``user`` and ``team``; they can only narrow what the key allows.

    :arg url: of the service, without a path.
    :arg key: an API key; none for a service without keys on this machine.
    :arg scope: parts of the scope that every call names, unless it names its own.
    :arg timeout_s: of one try.
    :arg retries: when a call is sent again.
    :arg transport: of httpx, for tests.
    :arg sleep: waits between tries.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        scope: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._scope = dict(scope or {})
        self._retries = retries or Retries()
        self._sleep = sleep
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout_s, transport=transport
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def recall(
        self,
        query: str,
        *,
        limit: int | None = None,
        budget_tokens: int | None = None,
        layers: Sequence[Layer] | None = None,
        types: Sequence[AtomType] = (),
        session_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        as_of: datetime | None = None,
        only_active: bool = True,
        explain: bool = False,
        **scope: str,
    ) -> RecallAnswer:
        """Recall what bears on a question: best first, within every budget."""
        fields = {
            "query": query,
            "limit": limit,
            "budget_tokens": budget_tokens,
            "types": tuple(types),
            "session_id": session_id,
            "since": since,
            "until": until,
            "as_of": as_of,
            "only_active": only_active,
            "explain": explain,
            **({} if layers is None else {"layers": tuple(layers)}),
        }
        return await self._send(calls.recall(self._with(scope, fields)))

    async def search_memories(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        types: Sequence[AtomType] = (),
        session_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        as_of: datetime | None = None,
        only_active: bool = True,
        explain: bool = False,
        **scope: str,
    ) -> SearchAnswer:
        """Search single facts; pages of one ranking of the first hundred."""
        fields = {
            "query": query,
            "limit": limit,
            "offset": offset,
            "types": tuple(types),
            "session_id": session_id,
            "since": since,
            "until": until,
            "as_of": as_of,
            "only_active": only_active,
            "explain": explain,
        }
        return await self._send(calls.search("memories", self._with(scope, fields)))

    async def search_events(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        session_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        explain: bool = False,
        **scope: str,
    ) -> SearchAnswer:
        """Search what was said; pages of one ranking of the first hundred."""
        fields = {
            "query": query,
            "limit": limit,
            "offset": offset,
            "session_id": session_id,
            "since": since,
            "until": until,
            "explain": explain,
        }
        return await self._send(calls.search("events", self._with(scope, fields)))

    async def add_events(self, events: Iterable[L0Event | Mapping[str, Any]]) -> EventsAnswer:
        """Write up to 500 events. The answer says of each that was rejected why, also of all.

        An event id counts once, so sending the same events again is harmless.
        """
        return await self._send(calls.add_events(events))

    async def events(
        self,
        *,
        session_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        **scope: str,
    ) -> EventsPage:
        """List what was said, by event time; go on with ``next_cursor`` of the page before."""
        fields = {
            "session_id": session_id,
            "since": since,
            "until": until,
            "newest_first": newest_first,
            "limit": limit,
            "cursor": cursor,
        }
        return await self._send(calls.events(self._with(scope, fields)))

    async def memories(
        self,
        *,
        only_active: bool = False,
        session_id: str | None = None,
        newest_first: bool = False,
        limit: int = 1000,
        offset: int = 0,
        cursor: str | None = None,
        **scope: str,
    ) -> MemoriesAnswer:
        """List the atoms of a scope, by event time; go on as with :meth:`events`."""
        fields = {
            "only_active": only_active,
            "session_id": session_id,
            "newest_first": newest_first,
            "limit": limit,
            "offset": offset,
            "cursor": cursor,
        }
        return await self._send(calls.memories(self._with(scope, fields)))

    async def memory(self, memory_id: str, **scope: str) -> MemoryAnswer:
        """Show one atom, its events, what it superseded and what superseded it."""
        return await self._send(calls.memory(memory_id, self._with(scope)))

    async def edit(self, memory_id: str, text: str, **scope: str) -> EditAnswer:
        """Ask that a memory gets another text, which takes its place; the old one is history."""
        return await self._send(calls.edit(memory_id, self._with(scope, {"text": text})))

    async def reject(
        self, memory_id: str, *, reason: str | None = None, **scope: str
    ) -> ForgetAnswer:
        """Ask that the value of a memory is told no more, and never extracted again."""
        return await self._send(calls.reject(memory_id, self._with(scope, {"reason": reason})))

    async def forget_memory(self, memory_id: str, **scope: str) -> ForgetAnswer:
        """Ask that a memory and the events it stands on are forgotten, for good."""
        return await self._send(calls.forget_memory(memory_id, self._with(scope)))

    async def forget(
        self,
        target: ForgetTarget,
        *,
        session_id: str | None = None,
        event_ids: Sequence[str] = (),
        atom_ids: Sequence[str] = (),
        reason: str | None = None,
        dry_run: bool = False,
        **scope: str,
    ) -> ForgetAnswer:
        """Ask that a user, a session, events or memories are forgotten, for good."""
        fields = {
            "target": target,
            "session_id": session_id,
            "event_ids": tuple(event_ids),
            "atom_ids": tuple(atom_ids),
            "reason": reason,
            "dry_run": dry_run,
        }
        return await self._send(calls.forget(self._with(scope, fields)))

    async def persona(self, **scope: str) -> Profile:
        """Show who the scope is about. ``NotFound`` as long as there is no persona."""
        return await self._send(calls.persona(self._with(scope)))

    async def scenes(self, **scope: str) -> ScenesAnswer:
        """List the scenes of a scope, without their texts."""
        return await self._send(calls.scenes(self._with(scope)))

    async def scene(self, name: str, **scope: str) -> Profile:
        """Show one scene."""
        return await self._send(calls.scene(name, self._with(scope)))

    async def status(self, **scope: str) -> StatusAnswer:
        """Say how fresh a scope is, and what answers. Reads the whole scope."""
        return await self._send(calls.status(self._with(scope)))

    def _with(
        self, scope: Mapping[str, str], fields: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        return {**self._scope, **scope, **(fields or {})}

    async def _send(self, call: Call[A]) -> A:
        attempt = 1
        while True:
            try:
                return await self._once(call)
            except ClientError as error:
                wait = self._retries.wait(attempt, error)
                if wait is None:
                    raise
            await self._sleep(wait)
            attempt += 1

    async def _once(self, call: Call[A]) -> A:
        try:
            response = await self._http.request(
                call.method, call.path, json=call.json, params=call.params
            )
        except httpx.TransportError as error:
            message = f"no answer ({type(error).__name__})"
            raise Unreachable(message, code="unreachable") from error
        return calls.answer_of(call, response)

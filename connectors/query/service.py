"""What the query service can do, whoever asks and over whichever protocol.

Every call names its caller. Its scope comes from the caller's credential, narrowed by what was
asked for; nothing is read or written before that is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import anyio
from anyio.to_thread import run_sync

from connectors import tracing
from connectors.metrics import RATE_LIMITED
from connectors.query.accept import Accepted, accept_events
from connectors.query.audit_log import AuditLog, CallNote, open_audit_log
from connectors.query.auth import Credential, Keys
from connectors.query.failures import ApiError
from connectors.query.keys_file import load_keys
from connectors.query.models import (
    MAX_LIMIT,
    RecallAnswer,
    RecallRequest,
    ScopeParts,
    SearchAnswer,
    SearchLayer,
    SearchRequest,
)
from connectors.query.question import RecallQuery
from connectors.query.rate_limit import RateLimit
from connectors.query.recall import Recall, RecallPolicy, RecallStore
from connectors.settings import ScopeField, Settings
from stores.errors import SedimentError
from stores.paging import Page, PageRequest
from stores.protocols import AtomReader, Clock, Embedder, Filter
from stores.records import Atom, IndexedEvent, OutRecord, Profile, ProfileKind
from stores.requests import Owner
from stores.scenes import HeatCounters

__all__ = ["Append", "Caller", "Check", "MemoryStore", "Service", "asked_of", "open_service"]

T = TypeVar("T")

Append = Callable[[list[OutRecord]], None]
"""Writes records to the log and returns when they are safe there. Blocking; called from
several threads at once. Raises ``ServiceUnavailable`` when the log is down; the caller then
sends all of them again, which the flow makes harmless."""

Check = Callable[[], None]
"""Looks whether a dependency answers. Blocking; raises what is wrong."""

_BLOCKING_CALLS = 16  # threads that wait for the log, the stores or a check
_CHECK_TIMEOUT_S = 2.0
_NO_BUDGET = 10**9  # a search gives whole texts; it is bounded by the number of hits


class MemoryStore(AtomReader, Protocol):
    """What the service reads beside recall. Blocking."""

    def get_events(self, scope: str, event_ids: Sequence[str]) -> list[IndexedEvent]:
        """Read events of a scope by id; those that are not there are left out."""
        ...

    def events_of(self, scope: str, session_id: str | None = None) -> Iterator[IndexedEvent]:
        """Read all events of a scope or session, in no particular order."""
        ...

    def events_page(self, scope: str, where: Filter, asked: PageRequest) -> Page[IndexedEvent]:
        """Read one page of the events of a scope or session, by event time."""
        ...

    def atoms_page(self, scope: str, where: Filter, asked: PageRequest) -> Page[Atom]:
        """Read one page of the atoms of a scope, by event time."""
        ...

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        """Read the scenes and the persona of a scope, by kind and path."""
        ...

    def get_profile(self, scope: str, kind: ProfileKind, path: str) -> Profile | None:
        """Read one scene or the persona, or ``None`` when there is none."""
        ...


class _WholeStore(MemoryStore, RecallStore, Protocol):
    @property
    def full_text(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the note of the call for the audit log."""

    credential: Credential
    note: CallNote = field(default_factory=CallNote)


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of the service. For one event loop.

    :arg search: a recall without budgets, for searching one layer.
    :arg keys: ``None`` serves this machine only.
    :arg checks: what readiness asks, by the name of the dependency.
    :arg pipeline: version of Sediment.
    """

    recall: Recall
    search: Recall
    append: Append
    settings: Settings
    keys: Keys | None
    checks: Mapping[str, Check]
    store: MemoryStore
    clock: Clock
    audit: AuditLog
    pipeline: str = ""
    threads: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(_BLOCKING_CALLS)
    )

    async def blocking(self, call: Callable[[], T]) -> T:
        """Run a blocking call in a thread. A request that is given up leaves it running."""
        return await run_sync(call, limiter=self.threads, abandon_on_cancel=True)

    # --- whose memory -----------------------------------------------------------------------

    def scope_of(self, caller: Caller, asked: ScopeParts) -> str:
        """Give the scope of a call: the credential's, narrowed by what was asked for.

        Raises as :meth:`~connectors.query.auth.Credential.narrow`.
        """
        parts = caller.credential.narrow(asked_of(asked), self.settings.scope_fields)
        scope = self.settings.scope_of(**parts)
        caller.note.scopes = (scope,)
        return scope

    def owner_of(self, caller: Caller, asked: ScopeParts) -> Owner:
        """Give the scope with the ids that an event of it is written with. Raises as above."""
        fields: tuple[ScopeField, ...] = (*self.settings.scope_fields, "tenant", "agent", "user")
        parts = caller.credential.narrow(asked_of(asked), fields)
        scope = self.settings.scope_of(**parts)
        caller.note.scopes = (scope,)
        return Owner(scope, parts["tenant"], parts["agent"], parts["user"], parts.get("team", ""))

    # --- what is remembered -----------------------------------------------------------------

    async def answer(self, caller: Caller, asked: RecallRequest) -> RecallAnswer:
        """Recall what bears on a question. Raises as :meth:`Recall.recall`."""
        answer = await self.recall.recall(
            RecallQuery(
                scope=self.scope_of(caller, asked),
                text=asked.query,
                limit=asked.limit or self.settings.recall_limit,
                budget_tokens=asked.budget_tokens or self.settings.budget_tokens,
                layers=asked.layers,
                types=asked.types,
                session_id=asked.session_id,
                since=asked.since,
                until=asked.until,
                as_of=asked.as_of,
                only_active=asked.only_active,
                explain=asked.explain,
            )
        )
        tracing.note(
            {
                "sediment.atom_ids": [one.id for one in answer.items if one.layer == "atom"],
                "sediment.items": len(answer.items),
                "sediment.degraded": len(answer.degraded),
            }
        )
        return answer

    async def find(self, caller: Caller, layer: SearchLayer, asked: SearchRequest) -> SearchAnswer:
        """Search one layer; every page is cut from the same ranking."""
        found = await self.search.recall(
            RecallQuery(
                scope=self.scope_of(caller, asked),
                text=asked.query,
                limit=MAX_LIMIT,
                budget_tokens=_NO_BUDGET,
                layers=(layer,),
                types=asked.types,
                session_id=asked.session_id,
                since=asked.since,
                until=asked.until,
                as_of=asked.as_of,
                only_active=asked.only_active,
                explain=asked.explain,
            )
        )
        return SearchAnswer(
            items=found.items[asked.offset : asked.offset + asked.limit],
            total=len(found.items),
            degraded=found.degraded,
            notes=found.notes,
            timings_ms=found.timings_ms,
        )

    # --- what comes in ----------------------------------------------------------------------

    async def add_events(self, caller: Caller, bodies: Sequence[object]) -> Accepted:
        """Write the good ones of some events to the log; the answer says which those are."""
        accepted = accept_events(bodies, caller.credential, self.settings)
        caller.note.scopes = accepted.scopes
        await self.write(accepted.records)
        return accepted

    async def write(self, records: Sequence[OutRecord]) -> None:
        """Write records to the log; returns when they are safe there."""
        if records:
            await self.blocking(partial(self.append, tracing.carried(records)))

    # --- who may ----------------------------------------------------------------------------

    async def check_rate(self, credential: Credential, limit: RateLimit | None) -> None:
        """Count a call of a key. Raises :class:`~connectors.query.failures.ApiError` 429."""
        if limit is None or self.keys is None:
            return
        wait = await limit.take(credential.id)
        if wait:
            RATE_LIMITED.inc()
            message = f"this key makes too many calls; try again in {wait:.1f} s"
            seconds = max(1, -int(-wait // 1))
            raise ApiError(429, "rate_limited", message, {"retry-after": str(seconds)})

    async def look(self) -> dict[str, str]:
        """Say of each dependency ``ok``, or the reason why it is not, within two seconds."""

        async def one(check: Check) -> str:
            try:
                await asyncio.wait_for(self.blocking(check), _CHECK_TIMEOUT_S)
            except asyncio.TimeoutError:
                return "timeout"
            except SedimentError as error:
                return error.reason
            except Exception as error:
                return type(error).__name__
            return "ok"

        results = await asyncio.gather(*(one(check) for check in self.checks.values()))
        return dict(zip(self.checks, results, strict=True))


def asked_of(parts: ScopeParts) -> dict[ScopeField, str | None]:
    """Give the scope parts that a request names."""
    return {
        "tenant": parts.tenant, "team": parts.team, "agent": parts.agent, "user": parts.user,
    }  # fmt: skip


@contextmanager
def open_service(
    settings: Settings,
    *,
    store: _WholeStore,
    embedder: Embedder,
    append: Append,
    checks: Mapping[str, Check],
    clock: Clock,
    pipeline: str,
    heat: HeatCounters | None = None,
) -> Iterator[Service]:
    """Build the service as the settings say, over what the caller opened and will close.

    :arg heat: counts the scenes that recall tells of.

    Raises :class:`~stores.errors.SettingsError` for a wrong keys or audit file.
    """
    keys = load_keys(settings)
    policy = RecallPolicy.of(settings)
    whole = replace(policy, max_chars_per_memory=_NO_BUDGET, max_total_recall_chars=_NO_BUDGET)
    recall = Recall.of(settings, store, embedder, clock, full_text=store.full_text, heat=heat)
    search = Recall(store, embedder, clock, whole, full_text=store.full_text)
    try:
        with open_audit_log(settings, clock) as audit:
            yield Service(
                recall=recall,
                search=search,
                append=append,
                settings=settings,
                keys=keys,
                checks={**checks, "keys": keys.check} if keys is not None else checks,
                store=store,
                clock=clock,
                audit=audit,
                pipeline=pipeline,
            )
    finally:
        recall.close()
        search.close()

"""The query service over HTTP: recall, events in, memories out, health.

| route | for | credential |
|---|---|---|
| ``POST /v1/recall`` | one question | yes |
| ``POST /v1/events`` | one event, or up to 500 | yes |
| ``GET /v1/memories``, ``/v1/memories/{id}`` | atoms of a scope, one with its events | yes |
| ``GET /healthz``, ``/readyz``, ``/metrics`` | probes and Prometheus | no |
| ``GET /docs``, ``/openapi.json`` | the contract; the page loads its scripts from a CDN | no |

Routes translate and nothing else: scope from the credential, then one call inward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Protocol, TypeVar

import anyio
import uvicorn
from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Depends, FastAPI, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import SkipValidation

from connectors.query.accept import accept_events
from connectors.query.auth import (
    LOOPBACK,
    Credential,
    KeyRing,
    ScopeRefused,
    is_loopback,
)
from connectors.query.failures import ApiError, add_error_answers
from connectors.query.limits import RequestLimits
from connectors.query.models import (
    MAX_EVENTS,
    ErrorAnswer,
    ErrorBody,
    EventBatch,
    EventsAnswer,
    MemoriesAnswer,
    MemoryAnswer,
    ReadyAnswer,
    RecallAnswer,
    RecallRequest,
    SourceEvent,
)
from connectors.query.question import RecallQuery
from connectors.query.recall import Recall
from connectors.settings import ScopeField, Settings
from stores.errors import SedimentError
from stores.protocols import AtomReader
from stores.records import Atom, IndexedEvent, L0Event, OutRecord

__all__ = ["Append", "Check", "SourceEvents", "create_app", "server_config"]

T = TypeVar("T")

Append = Callable[[list[OutRecord]], None]
"""Writes records to the log and returns when they are safe there. Blocking; called from
several threads at once. Raises ``ServiceUnavailable`` when the log is down; the caller then
sends all of them again, which the flow makes harmless."""

Check = Callable[[], None]
"""Looks whether a dependency answers. Blocking; raises what is wrong."""

_CHECK_TIMEOUT_S = 2.0
_BLOCKING_CALLS = 16  # threads that wait for the log, the stores or a check
_HEADER_BYTES = 16 * 1024


class SourceEvents(Protocol):
    """Finds the events that memories came from. Blocking."""

    def get_events(self, scope: str, event_ids: Sequence[str]) -> list[IndexedEvent]:
        """Read events of a scope by id; those that are not there are left out."""
        ...


@dataclass(frozen=True, slots=True)
class _Service:
    recall: Recall
    append: Append
    settings: Settings
    keys: KeyRing | None
    checks: Mapping[str, Check]
    atoms: AtomReader
    events: SourceEvents | None
    threads: anyio.CapacityLimiter

    async def blocking(self, call: Callable[[], T]) -> T:
        """Run a blocking call in a thread. A request that is given up leaves it running."""
        return await run_sync(call, limiter=self.threads, abandon_on_cancel=True)

    def scope(self, caller: Credential, asked: Mapping[ScopeField, str | None]) -> str:
        parts = caller.narrow(asked, self.settings.scope_fields)
        return self.settings.scope_of(**parts)


def create_app(
    *,
    recall: Recall,
    append: Append,
    settings: Settings,
    keys: KeyRing | None,
    checks: Mapping[str, Check],
    atoms: AtomReader,
    events: SourceEvents | None = None,
    request_timeout_s: float = 30.0,
) -> FastAPI:
    """Build the service from its parts; the caller opens and closes them.

    :arg keys: from :func:`~connectors.query.auth.load_keys`; ``None`` serves this machine only.
    :arg checks: what ``/readyz`` asks, by the name of the dependency.
    :arg events: without it ``/v1/memories/{id}`` gives no source events.
    """
    app = FastAPI(
        title="Sediment",
        summary="Layered long-term memory for agents: recall, and events in.",
        version="1",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    app.state.service = _Service(
        recall=recall,
        append=append,
        settings=settings,
        keys=keys,
        checks=checks,
        atoms=atoms,
        events=events,
        threads=anyio.CapacityLimiter(_BLOCKING_CALLS),
    )
    app.include_router(_router)
    app.add_middleware(RequestLimits, timeout_s=request_timeout_s)
    add_error_answers(app)
    return app


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Give the server's settings: small headers, no content in logs, no server name out.

    Call :func:`~connectors.query.auth.check_bind` first.
    """
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,  # ours names the route and not the ids in its query
        server_header=False,
        proxy_headers=False,  # who calls is decided by the connection, not by a header
        ws="none",
        h11_max_incomplete_event_size=_HEADER_BYTES,
        log_level="warning",
    )


# --- who calls -------------------------------------------------------------------------------

_bearer = HTTPBearer(auto_error=False, description="An API key of the keys file.")


def _service(request: Request) -> _Service:
    service: _Service = request.app.state.service
    return service


def _caller(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Credential:
    keys = _service(request).keys
    if keys is None:
        # The Host too: a web page can have its own name resolved to 127.0.0.1.
        hosts = [request.url.hostname or "", request.client.host if request.client else ""]
        if not all(is_loopback(host) for host in hosts):
            raise ApiError(403, "loopback_only", "without keys only this machine is served")
        return LOOPBACK
    credential = keys.find(bearer.credentials) if bearer is not None else None
    if credential is None:
        message = "send a valid key as `Authorization: Bearer KEY`"
        raise ApiError(401, "unauthorized", message, {"www-authenticate": "Bearer"})
    return credential


Caller = Annotated[Credential, Depends(_caller)]
Service = Annotated[_Service, Depends(_service)]
ScopePart = Annotated[
    str | None, Query(description="Part of the scope; can only narrow what the key allows.")
]


def _scope(
    caller: Caller,
    service: Service,
    *,
    tenant: ScopePart = None,
    agent: ScopePart = None,
    user: ScopePart = None,
    team: ScopePart = None,
) -> str:
    return service.scope(caller, {"tenant": tenant, "team": team, "agent": agent, "user": user})


OneScope = Annotated[str, Depends(_scope)]

# --- routes ----------------------------------------------------------------------------------

_router = APIRouter()
_ERRORS: dict[int | str, dict[str, object]] = {
    401: {"model": ErrorAnswer, "description": "No valid key."},
    403: {"model": ErrorAnswer, "description": "The scope is not the key's; `field` names it."},
    422: {"model": ErrorAnswer, "description": "The request is wrong; `field` names where."},
    503: {"model": ErrorAnswer, "description": "A dependency is down; see `Retry-After`."},
}


@_router.post("/v1/recall", responses=_ERRORS, tags=["memory"])
async def recall(body: RecallRequest, caller: Caller, service: Service) -> RecallAnswer:
    """Recall what bears on a question: best first, within every budget, this scope only."""
    settings = service.settings
    return await service.recall.recall(
        RecallQuery(
            scope=service.scope(
                caller,
                {
                    "tenant": body.tenant,
                    "team": body.team,
                    "agent": body.agent,
                    "user": body.user,
                },
            ),
            text=body.query,
            limit=body.limit or settings.recall_limit,
            budget_tokens=body.budget_tokens or settings.budget_tokens,
            layers=body.layers,
            types=body.types,
            session_id=body.session_id,
            since=body.since,
            until=body.until,
            as_of=body.as_of,
            only_active=body.only_active,
            explain=body.explain,
        )
    )


@_router.post(
    "/v1/events",
    responses={
        **_ERRORS,
        207: {"model": EventsAnswer, "description": "Some events were rejected."},
        422: {"model": EventsAnswer, "description": "Every event was rejected."},
    },
    tags=["events"],
)
async def add_events(
    body: Annotated[SkipValidation[L0Event | EventBatch], Body()],
    caller: Caller,
    service: Service,
    response: Response,
) -> EventsAnswer:
    """Write events to the log. Send an event again as often as you like: its id counts once.

    Ids that the key decides may be left out. One bad event costs none of the others.
    """
    bodies = _bodies(body)
    accepted = accept_events(bodies, caller, service.settings)
    if accepted.records:
        await service.blocking(partial(service.append, list(accepted.records)))
    error: ErrorBody | None = None
    if len(accepted.errors) == len(bodies):
        first = accepted.errors[0]
        response.status_code = 403 if first.code == ScopeRefused.reason else 422
        error = ErrorBody(code=first.code, message=first.message, field=first.field)
    elif accepted.errors:
        response.status_code = 207
    return EventsAnswer(
        accepted=len(accepted.records),
        duplicates=accepted.duplicates,
        rejected=len(accepted.errors),
        errors=accepted.errors,
        error=error,
    )


def _bodies(body: object) -> list[object]:
    if not (isinstance(body, dict) and "events" in body):
        return [body]
    events = body["events"]
    if not isinstance(events, list) or not 1 <= len(events) <= MAX_EVENTS:
        message = f"events: a list of 1 to {MAX_EVENTS} events"
        raise ApiError(422, "invalid_request", message)
    return events


@_router.get("/v1/memories", responses=_ERRORS, tags=["memory"])
async def list_memories(
    scope: OneScope,
    service: Service,
    *,
    only_active: Annotated[bool, Query(description="Leave out superseded atoms.")] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    offset: Annotated[int, Query(ge=0, le=1_000_000_000)] = 0,
) -> MemoriesAnswer:
    """List the atoms of a scope, by event time and then id."""
    found = await service.blocking(partial(service.atoms.atoms_of, scope, only_active=only_active))
    return MemoriesAnswer(items=tuple(found[offset : offset + limit]), total=len(found))


@_router.get(
    "/v1/memories/{memory_id}",
    responses={**_ERRORS, 404: {"model": ErrorAnswer, "description": "Not in this scope."}},
    tags=["memory"],
)
async def show_memory(
    scope: OneScope,
    service: Service,
    memory_id: Annotated[str, Path(min_length=1, max_length=256)],
) -> MemoryAnswer:
    """Show one atom and the events it came from."""
    return await service.blocking(partial(_show, service, scope, memory_id))


def _show(service: _Service, scope: str, memory_id: str) -> MemoryAnswer:
    atom: Atom | None = service.atoms.get_atom(scope, memory_id)
    if atom is None or atom.scope != scope:
        raise ApiError(404, "not_found", "this scope has no memory with this id")
    if service.events is None:
        return MemoryAnswer(memory=atom, events=None)
    found = service.events.get_events(scope, atom.source_event_ids)
    return MemoryAnswer(
        memory=atom,
        events=tuple(
            SourceEvent(
                event_id=event.event_id,
                session_id=event.session_id,
                role=event.role,
                text=event.text,
                occurred_at=event.occurred_at,
            )
            for event in sorted(found, key=lambda event: (event.occurred_at, event.position))
            if event.scope == scope
        ),
    )


@_router.get("/healthz", tags=["health"])
async def healthz() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@_router.get(
    "/readyz",
    responses={503: {"model": ReadyAnswer, "description": "A dependency does not answer."}},
    tags=["health"],
)
async def readyz(service: Service, response: Response) -> ReadyAnswer:
    """Say of each dependency whether it answers."""

    async def look(check: Check) -> str:
        try:
            await asyncio.wait_for(service.blocking(check), _CHECK_TIMEOUT_S)
        except asyncio.TimeoutError:
            return "timeout"
        except SedimentError as error:
            return error.reason
        except Exception as error:
            return type(error).__name__
        return "ok"

    results = await asyncio.gather(*(look(check) for check in service.checks.values()))
    answer = ReadyAnswer(
        ready=all(result == "ok" for result in results),
        checks=dict(zip(service.checks, results, strict=True)),
    )
    if not answer.ready:
        response.status_code = 503
    return answer


@_router.get("/metrics", include_in_schema=False)
async def metrics() -> Response:
    """Give the metrics in Prometheus' text format."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

"""``/ui``: how the pipeline stands; ``/ui/dead-letters``; ``/ui/scopes``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import Response

from connectors.query.ui.access import Looker, Looking, covers, scope_parts_of
from connectors.query.ui.chart import RESULTS, chart_of
from connectors.query.ui.pages import Pages
from connectors.query.ui.stages import look_at_processes, model_calls
from connectors.query.ui.standing import Ended, Letter, Standing, StandingCache
from connectors.settings import ScopeField

__all__ = ["router"]

router = APIRouter()

_SHOWN_OUTCOMES = 20
_SHOWN_LETTERS = 100
_SHOWN_SCOPES = 200


@dataclass(frozen=True, slots=True)
class KnownScope:
    """A scope that something ended for lately."""

    parts: dict[ScopeField, str]
    newest_ms: int
    outcomes: int


@router.get("/ui")
async def overview(looker: Looking, page: Pages) -> Response:
    """Show what answers, lag, stages, model calls, dead letters and outcomes. Right: read.

    Counts are the whole pipeline's, as those of ``/metrics``; single outcomes are those of
    scopes that the credential covers.
    """
    service = looker.service
    standing = await _standing(looker, page)
    cache: StandingCache | None = page.request.app.state.ui_standing
    own = cache.own_flows if cache is not None else ()
    processes = await look_at_processes(service.settings.flow_metrics, own)
    checks = await service.look()
    ended = [(one, parts) for one, parts in _seen(looker, standing.ended) if parts]
    return page.show(
        "overview.html",
        looker,
        standing=standing,
        looks=cache is not None,
        processes=processes,
        stages=[stage for one in processes for stage in one.stages],
        calls=model_calls(processes),
        checks=checks,
        last_of=_last_of(standing.ended),
        ended=ended[:_SHOWN_OUTCOMES],
        chart=chart_of([(one.at_ms, one.result) for one in standing.ended if one.outcome]),
        results=RESULTS,
    )


@router.get("/ui/dead-letters")
async def dead_letters(looker: Looking, page: Pages) -> Response:
    """List dead letters of scopes that the credential covers, without what was said."""
    standing = await _standing(looker, page)
    stage, reason = looker.one("stage"), looker.one("reason")
    matching = [
        one for one in standing.letters if stage in ("", one.stage) and reason in ("", one.reason)
    ]
    seen = [(one, parts) for one in matching if (parts := _of_letter(looker, one)) is not None]
    return page.show(
        "letters.html",
        looker,
        standing=standing,
        stage=stage,
        reason=reason,
        letters=seen[:_SHOWN_LETTERS],
        seen=len(seen),
        others=len(matching) - len(seen),
    )


@router.get("/ui/scopes")
async def scopes(looker: Looking, page: Pages) -> Response:
    """List the scopes that the credential covers and something ended for lately."""
    standing = await _standing(looker, page)
    known = _known(looker, standing.ended)
    return page.show(
        "scopes.html",
        looker,
        scopes=known[:_SHOWN_SCOPES],
        count=len(known),
        looked_at=len(standing.ended),
        total=standing.ended_total,
        fields=looker.service.settings.scope_fields,
        own=looker.credential,
        problems=standing.problems,
    )


async def _standing(looker: Looker, page: Pages) -> Standing:
    cache: StandingCache | None = page.request.app.state.ui_standing
    return await looker.service.blocking(cache.latest) if cache is not None else Standing()


def _seen(
    looker: Looker, ended: Iterable[Ended]
) -> Iterable[tuple[Ended, dict[ScopeField, str] | None]]:
    """Give each outcome with its scope, ``None`` for one that the looker may not see."""
    for one in ended:
        scope = one.outcome.scope if one.outcome else None
        parts = scope_parts_of(scope, looker.service) if scope else None
        yield one, parts if parts and covers(looker.credential, parts) else None


def _of_letter(looker: Looker, letter: Letter) -> dict[ScopeField, str] | None:
    """Give the scope of a letter; empty for one without, which only this machine may see."""
    parts = scope_parts_of(letter.scope, looker.service) or {}
    if looker.credential.tenant is None:
        return parts
    return parts if parts and covers(looker.credential, parts) else None


def _known(looker: Looker, ended: Iterable[Ended]) -> list[KnownScope]:
    found: dict[str, KnownScope] = {}
    for one, parts in _seen(looker, ended):
        if parts and one.outcome and one.outcome.scope:
            before = found.get(one.outcome.scope)
            found[one.outcome.scope] = KnownScope(
                parts,
                max(one.at_ms, before.newest_ms if before else 0),
                (before.outcomes if before else 0) + 1,
            )
    return list(found.values())


def _last_of(ended: Iterable[Ended]) -> dict[str, int]:
    """Give the log's time of the newest outcome of each stage."""
    last: dict[str, int] = {}
    for one in ended:
        if one.outcome:
            last.setdefault(one.outcome.stage, one.at_ms)
    return last

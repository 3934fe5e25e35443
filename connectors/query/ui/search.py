"""``/ui/search``: a recall as an agent gets it, with what every score is made of."""

from __future__ import annotations

import re

from fastapi import APIRouter
from fastapi.responses import Response

from connectors.query.models import RecallRequest
from connectors.query.question import LAYERS
from connectors.query.ui.access import Form, parsed
from connectors.query.ui.memory import Here
from connectors.query.ui.pages import Pages
from stores.records import ATOM_TYPES

__all__ = ["router"]

router = APIRouter()

_TIMES = ("since", "until", "as_of")
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$", re.IGNORECASE)


@router.get("/ui/search")
async def search_form(at: Here, page: Pages) -> Response:
    """Show the form."""
    settings = at.looker.service.settings
    return page.show(
        "search.html",
        at.looker,
        at=at,
        asked=None,
        answer=None,
        all_layers=LAYERS,
        all_types=ATOM_TYPES,
        default_limit=settings.recall_limit,
        default_budget=settings.budget_tokens,
        shown={},
        narrowed=False,
    )


@router.post("/ui/search")
async def search(at: Here, page: Pages) -> Response:
    """Recall. A form that is sent and no address that is kept: questions stay out of logs."""
    looker = at.looker
    settings = looker.service.settings
    asked = parsed(
        RecallRequest,
        _with_zones(looker.asked),
        **at.parts,
        explain=True,
        only_active="all" not in looker.asked,
    )
    answer = await looker.service.answer(looker.caller, asked)
    return page.show(
        "search.html",
        looker,
        at=at,
        asked=asked,
        answer=answer,
        all_layers=LAYERS,
        all_types=ATOM_TYPES,
        default_limit=settings.recall_limit,
        default_budget=settings.budget_tokens,
        shown=(shown := {name: looker.one(name) for name in (*_TIMES, "session_id")}),
        narrowed=any(shown.values()) or bool(asked.types) or asked.layers != LAYERS,
    )


def _with_zones(form: Form) -> Form:
    """Take the times of a form, which a browser sends without a zone, as UTC."""
    return {
        name: [one if name not in _TIMES or _ZONE.search(one) else f"{one}Z" for one in values]
        for name, values in form.items()
    }

"""Reject, edit and forget one atom: asked for on one page, done by the form of another.

What is done is what the API does: a request in the log, which the flow carries out in its turn.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from connectors.query.editing import edit_memory
from connectors.query.failures import ApiError
from connectors.query.forgetting import forget, forget_memory, reject_memory
from connectors.query.memory_models import ForgetRequest, RejectRequest
from connectors.query.models import ScopeParts
from connectors.query.routes.memories import show_memory
from connectors.query.ui.access import Changer, parsed
from connectors.query.ui.memory import Here, here
from connectors.query.ui.pages import Pages

__all__ = ["router"]

router = APIRouter()

_KINDS = ("reject", "edit", "forget")
_OWNER = ("tenant", "agent", "user")


@router.get("/ui/change")
async def confirm(at: Here, page: Pages) -> Response:
    """Say what a change would do, and ask whether to. Rights: write, admin."""
    looker = at.looker
    looker.credential.require("write")
    looker.credential.require("admin")
    kind, name = looker.need("do"), looker.need("id")
    if kind not in _KINDS:
        message = f"do: is one of {', '.join(_KINDS)}"
        raise ApiError(422, "invalid_request", message, field="do")
    answer = await show_memory(name, at.asked, looker.caller, looker.service)
    missing = [field for field in _OWNER if field not in at.parts]
    preview = None
    if kind == "forget" and not missing:
        wanted = ForgetRequest(**at.parts, target="atom", atom_ids=(name,), dry_run=True)
        preview = (await forget(looker.service, looker.caller, wanted)).preview
    return page.show(
        "change.html",
        looker,
        at=at,
        kind=kind,
        atom=answer.memory,
        preview=preview,
        missing=missing,
    )


@router.post("/ui/reject")
async def reject(looker: Changer, page: Pages) -> Response:
    """Mark an atom's value as wrong."""
    asked = parsed(RejectRequest, looker.asked)
    done = await reject_memory(looker.service, looker.caller, looker.need("id"), asked)
    return page.show("done.html", looker, at=here(looker), kind="reject", done=done, new_id=None)


@router.post("/ui/edit")
async def edit(looker: Changer, page: Pages) -> Response:
    """Give an atom another text."""
    owner = looker.service.owner_of(looker.caller, parsed(ScopeParts, looker.asked))
    name, text = looker.need("id"), looker.need("text").strip()
    done = await edit_memory(looker.service, owner, name, text)
    at = here(looker)
    return page.show("done.html", looker, at=at, kind="edit", done=done, new_id=done.memory_id)


@router.post("/ui/forget")
async def forget_one(looker: Changer, page: Pages) -> Response:
    """Forget an atom and the events it stands on, for good."""
    asked = parsed(ScopeParts, looker.asked)
    done = await forget_memory(looker.service, looker.caller, looker.need("id"), asked)
    return page.show("done.html", looker, at=here(looker), kind="forget", done=done, new_id=None)

"""``/ui/sign-in``, ``/ui/sign-out``, and the two files that pages need."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from connectors.query.audit_log import CallNote
from connectors.query.failures import ApiError
from connectors.query.routes.access import TheService, credential_of
from connectors.query.ui.access import check_form, form_of, sessions_of
from connectors.query.ui.pages import COOKIE_PATH, Pages, set_cookie
from connectors.query.ui.session import SESSION_COOKIE, SESSION_S

__all__ = ["router"]

router = APIRouter()

_STATIC = Path(__file__).with_name("static")
_MAX_KEY_CHARS = 512
_FILES = {"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}


@router.get("/ui/sign-in")
async def sign_in_form(request: Request, page: Pages) -> Response:
    """Ask for an API key, where there are any."""
    back = (await form_of(request)).get("to", [""])[-1]
    if not page.keyed:
        return RedirectResponse(COOKIE_PATH, 303)
    return page.show("sign_in.html", to=_inside(back), minutes=SESSION_S // 60, problem="")


@router.post("/ui/sign-in")
async def sign_in(request: Request, page: Pages, service: TheService) -> Response:
    """Take a key and begin a session. Every try is in the audit log."""
    note = CallNote.of(request.scope)
    note.changes = True
    form = await form_of(request)
    check_form(request, form)
    key = form.get("key", [""])[-1].strip()[:_MAX_KEY_CHARS]
    back = _inside(form.get("to", [""])[-1])
    hosts = (request.url.hostname or "", request.client.host if request.client else "")
    try:
        credential = credential_of(service.keys, key, hosts)
    except ApiError as error:
        if error.code != "unauthorized":
            raise
        note.code = error.code
        problem = "This key is not valid. It may have been revoked, or not copied whole."
        minutes = SESSION_S // 60
        return page.show("sign_in.html", code=401, to=back, minutes=minutes, problem=problem)
    note.key = credential.id
    await service.check_rate(credential, request.app.state.rate_limit)
    credential.require("read")
    answer = RedirectResponse(back, 303)
    set_cookie(request, answer, SESSION_COOKIE, sessions_of(request).seal(key))
    return answer


@router.post("/ui/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session in this browser."""
    check_form(request, await form_of(request))
    answer = RedirectResponse("/ui/sign-in", 303)
    answer.delete_cookie(SESSION_COOKIE, path=COOKIE_PATH)
    return answer


@router.get("/ui/static/{name}")
async def static(name: str) -> Response:
    """Give the style sheet or the icon."""
    if name not in _FILES:
        raise ApiError(404, "not_found", "there is no such file")
    headers = {"cache-control": "max-age=300"}
    return Response(_content(name), media_type=_FILES[name], headers=headers)


@cache
def _content(name: str) -> bytes:
    return (_STATIC / name).read_bytes()


def _inside(address: str) -> str:
    r"""Give an address to go back to: a page of ours, whatever was asked for.

    >>> [_inside(one) for one in ("/ui/scope?user=a", "//evil.example/ui/", "/ui\\evil", "")]
    ['/ui/scope?user=a', '/ui', '/ui', '/ui']
    """
    parts = urlsplit(address) if address.isascii() and address.isprintable() else urlsplit("")
    own = not parts.scheme and not parts.netloc and parts.path.startswith(f"{COOKIE_PATH}/")
    return address if own and "\\" not in address else COOKIE_PATH

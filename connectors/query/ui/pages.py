"""How a page is made: templates, what they may call, the tokens of their forms.

Every value is escaped, and what steers a reader without being seen is taken out of it first
(:func:`~connectors.query.fence.clean_text`): direction marks, invisible characters, controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from connectors.query.auth import is_loopback
from connectors.query.fence import clean_text
from connectors.query.routes.access import TheService
from connectors.query.service import Service
from connectors.query.ui.access import Looker, sessions_of
from connectors.query.ui.chart import HEIGHT, WIDTH
from connectors.query.ui.markdown import rendered
from connectors.query.ui.session import FORM_COOKIE, SESSION_COOKIE
from connectors.settings import ScopeField

__all__ = ["COOKIE_PATH", "Page", "Pages", "error_page", "link", "set_cookie"]

COOKIE_PATH = "/ui"

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def link(path: str, parts: Mapping[ScopeField, str] | None = None, **fields: object) -> str:
    """Give the address of a page; fields that are ``None`` or empty are left out.

    >>> link("/ui/memory", {"tenant": "a&b"}, id="1")
    '/ui/memory?tenant=a%26b&id=1'
    """
    named = {**{str(name): value for name, value in (parts or {}).items()}, **fields}
    asked = urlencode(
        {name: str(value) for name, value in named.items() if value not in (None, "")}
    )
    return f"{path}?{asked}" if asked else path


def _shown(value: object) -> object:
    """Take what is invisible and steers out of every text that a template writes."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean_text(value)
    return "" if value is None else value


def _when(moment: datetime | int | None) -> Markup:
    """Show a moment, or the log's milliseconds, in UTC to the second."""
    if not moment:
        return Markup("–")
    at = (
        datetime.fromtimestamp(moment / 1000, timezone.utc)
        if isinstance(moment, int)
        else moment.astimezone(timezone.utc)
    )
    return Markup('<time datetime="{}">{}</time>').format(
        f"{at:%Y-%m-%dT%H:%M:%SZ}", f"{at:%Y-%m-%d %H:%M:%S}"
    )


def _span(seconds: float) -> str:
    """Say a stretch of time in words, in its largest unit.

    >>> [_span(one) for one in (0.25, 59, 150, 7300, 200_000)]
    ['0.2 s', '59 s', '2 min', '2 h', '2 d']
    """
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(when=_when, span=_span, markdown=rendered)
    made.globals.update(link=link, chart_width=WIDTH, chart_height=HEIGHT)
    return made


_ENVIRONMENT = _environment()


@dataclass(frozen=True, slots=True)
class Page:
    """Makes the answer to one request.

    :arg form_cookie: what the browser sent; where it is ``fresh``, what it is sent with the page.
    :arg keyed: whether people sign in here.
    """

    request: Request
    service: Service
    form_cookie: str
    fresh: bool
    keyed: bool

    def show(
        self, template: str, looker: Looker | None = None, code: int = 200, **values: Any
    ) -> HTMLResponse:
        """Render a template with what every page has."""
        session = self.request.cookies.get(SESSION_COOKIE, "")
        body = _ENVIRONMENT.get_template(template).render(
            looker=looker,
            keyed=self.keyed,
            form_token=sessions_of(self.request).form_token(self.form_cookie, session),
            pipeline=self.service.pipeline,
            generation=self.service.settings.generation_name,
            path=self.request.url.path,
            now=self.service.clock.now(),
            **values,
        )
        answer = HTMLResponse(body, code)
        if self.fresh:
            set_cookie(self.request, answer, FORM_COOKIE, self.form_cookie)
        return answer


def error_page(status: int, code: str, message: str, field: str | None) -> HTMLResponse:
    """Make the page of an error; it needs neither a looker nor a service."""
    body = _ENVIRONMENT.get_template("error.html").render(
        status=status, code=code, message=message, field=field, looker=None, keyed=False
    )
    return HTMLResponse(body, status)


def set_cookie(request: Request, answer: Response, name: str, value: str) -> None:
    """Give the browser a cookie for these pages alone; it ends with the browser.

    Off this machine only over HTTPS: whoever hears it has the session.
    """
    answer.set_cookie(
        name,
        value,
        path=COOKIE_PATH,
        httponly=True,
        samesite="strict",
        secure=not is_loopback(request.url.hostname or ""),
    )


def _page(request: Request, service: TheService) -> Page:
    sessions = sessions_of(request)
    sent = request.cookies.get(FORM_COOKIE, "")
    return Page(request, service, sent or sessions.new_form_cookie(), not sent, sessions.keyed)


Pages = Annotated[Page, Depends(_page)]

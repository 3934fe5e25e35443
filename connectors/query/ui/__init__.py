"""``/ui``: the status page, for people. Server-rendered, no script, nothing from elsewhere.

- ``session``: the cookie a person signs in with, and the token in every form;
- ``access``: who looks, who may change, what a form said;
- ``standing``, ``stages``: how the pipeline stands, from the log and from metrics; ``chart``;
- ``pages``, ``markdown``: how a page is made, and how memory text is shown in it;
- ``overview``, ``memory``, ``events``, ``search``, ``changes``, ``signing``: the routes;
- ``errors``: error pages, and the headers of every page.
"""

from __future__ import annotations

from fastapi import FastAPI

from connectors.query.service import Service
from connectors.query.ui import changes, events, memory, overview, search, signing
from connectors.query.ui.access import SignInNeeded
from connectors.query.ui.errors import Paged, to_sign_in
from connectors.query.ui.session import Sessions
from connectors.query.ui.standing import LogView, StandingCache

__all__ = ["add_ui"]


def add_ui(app: FastAPI, service: Service, log: LogView | None) -> None:
    """Add the pages to the query service. After all other middleware: it shows their errors.

    :arg log: how to look at the pipeline; without it the overview says nothing of flows.
    """
    app.state.ui_sessions = Sessions(
        service.settings.ui_secret.get_secret_value(), service.clock, keyed=service.keys is not None
    )
    app.state.ui_standing = StandingCache(log, service.settings) if log is not None else None
    for part in (signing, overview, memory, events, search, changes):
        app.include_router(part.router, include_in_schema=False)
    app.add_exception_handler(SignInNeeded, to_sign_in)
    app.add_middleware(Paged)

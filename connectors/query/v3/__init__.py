"""The ``/v3`` data routes of TencentDB Agent Memory, answered from Sediment's own layers.

Clients of that system send what they always sent and get its envelope back. What is the same,
what differs and why is in ``docs/v3-compatibility.md``.

- ``models``: what comes in and what goes out; ``envelope``: how an answer or error is wrapped;
- ``calls``: whose memory a call is about, by headers and body, within the credential;
- ``conversation``, ``atomic``, ``scenario``, ``core``: the routes, one file per resource.
"""

from __future__ import annotations

from fastapi import FastAPI

from connectors.query.v3 import atomic, conversation, core, scenario
from connectors.query.v3.envelope import Enveloped

__all__ = ["add_v3"]


def add_v3(app: FastAPI) -> None:
    """Add the routes to the query service. After all other middleware: it wraps their errors."""
    for resource in (conversation, atomic, scenario, core):
        app.include_router(resource.router)
    app.add_middleware(Enveloped)

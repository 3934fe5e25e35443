"""The audit log: who wrote, who forgot, who was turned away. Never what was said or asked.

One line of JSON for each such call: ``at``, ``key`` (the id of the API key, or null), ``method``,
``route`` (its template, without ids), ``scopes`` (hashes), ``status``, ``outcome`` (``done``,
``denied``, ``failed``) and, of a call that was not done, ``code``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from logging.handlers import WatchedFileHandler
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectors.settings import Settings
from stores.errors import SettingsError
from stores.ids import scope_hash
from stores.protocols import Clock

__all__ = ["AuditLog", "Audited", "CallNote", "open_audit_log", "scope_hash"]

_DENIED = (401, 403, 429)
_FAILED = 400


@dataclass(slots=True)
class CallNote:
    """What becomes known of a call while it is answered; a route and its parts fill it in.

    :arg logged: false for one of a flood of calls, which only the metrics count.
    """

    key: str | None = None
    changes: bool = False
    scopes: Sequence[str] = ()
    code: str | None = None
    logged: bool = True

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> CallNote:
        """Find the note of a request by its ASGI scope; a fresh one where nobody audits."""
        note: CallNote = (
            scope["state"].setdefault("call_note", cls()) if "state" in scope else cls()
        )
        return note


class AuditLog:
    """Writes the lines. Lines of one process come whole and in the order of their ends."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock

    def write(self, method: str, route: str, status: int, note: CallNote) -> None:
        """Write one call."""
        outcome = "denied" if status in _DENIED else "failed" if status >= _FAILED else "done"
        line = {
            "at": self._clock.now().isoformat(),
            "key": note.key,
            "method": method,
            "route": route,
            "scopes": [scope_hash(one) for one in note.scopes],
            "status": status,
            "outcome": outcome,
            "code": note.code,
        }
        level = logging.INFO if outcome == "done" else logging.WARNING
        self._logger.log(level, "%s", json.dumps(line, ensure_ascii=False))


class Audited:
    """ASGI middleware: writes what changes memory and what is denied to the audit log."""

    def __init__(self, app: ASGIApp, *, audit: AuditLog) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; its line is written before its answer begins, or when it fails."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        note = CallNote.of(scope)
        ended = False

        def end(status: int) -> None:
            nonlocal ended
            if not ended and note.logged and (note.changes or status in _DENIED):
                route = getattr(scope.get("route"), "path", "-")
                self._audit.write(scope["method"], route, status, note)
            ended = True

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                end(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            end(HTTPStatus.GATEWAY_TIMEOUT)
            raise
        except Exception:
            end(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise


@contextmanager
def open_audit_log(settings: Settings, clock: Clock) -> Iterator[AuditLog]:
    """Open the log that the settings name; without one, lines go to the log of the process.

    A file that another program moves away is opened anew. Raises
    :class:`~stores.errors.SettingsError` when it cannot be written.
    """
    path = settings.audit_file
    if path is None:
        yield AuditLog(logging.getLogger("sediment.audit"), clock)
        return
    try:
        handler = WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        message = f"audit_file: cannot write {path}: {error.strerror}"
        raise SettingsError(message) from None
    # Not a logger by name: two services of one process write to two files.
    logger = logging.Logger("sediment.audit", logging.INFO)
    logger.addHandler(handler)
    try:
        yield AuditLog(logger, clock)
    finally:
        handler.close()

"""Persona requests that are not answered yet, kept on disk until a persona is committed.

A request lives in its job; this is what keeps it alive when the run fails for good and the job
goes to the dead letters: the next persona of the scope answers it.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from stores.errors import ServiceUnavailable
from stores.ids import content_id

__all__ = ["PersonaRequests"]

_MOST = 5
_REASON_CHARS = 300


class PersonaRequests:
    """Reasons by scope and job. Blocking; one caller for a scope at a time: hold its lock.

    Raises ``ServiceUnavailable`` when the disk fails. A power cut may lose the newest.

    :arg root: a folder; made when first needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, scope: str) -> dict[str, str]:
        """Give the open requests: reason by job id, oldest first."""
        try:
            found = orjson.loads(self._path(scope).read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        except OSError as error:
            raise _down(error) from error
        return {str(job): str(reason) for job, reason in found.items()}

    def add(self, scope: str, job_id: str, reason: str) -> None:
        """Keep a request; the newest five of a scope are kept."""
        kept = {**self.of(scope), job_id: " ".join(reason.split())[:_REASON_CHARS]}
        path = self._path(scope)
        new = path.with_suffix(".tmp")
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            new.write_bytes(orjson.dumps(dict(list(kept.items())[-_MOST:])))
            os.replace(new, path)
        except OSError as error:
            raise _down(error) from error

    def clear(self, scope: str) -> None:
        """Drop all requests of a scope: they are answered, or forgotten. Idempotent."""
        try:
            self._path(scope).unlink(missing_ok=True)
        except OSError as error:
            raise _down(error) from error

    def _path(self, scope: str) -> Path:
        return self._root / f"{content_id('persona-requests', scope)}.json"


def _down(error: OSError) -> ServiceUnavailable:
    return ServiceUnavailable("persona requests", error.strerror or type(error).__name__)

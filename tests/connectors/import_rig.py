"""Writes import files for tests and reads them as events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from connectors.importers import (
    ImportDefaults,
    ImportedEvent,
    ImportFormat,
    ImportProblem,
    read_events,
)
from stores.records import L0Event

__all__ = ["ANA", "T0", "Files", "native", "said", "split"]

ANA = ImportDefaults(tenant="acme", agent="helper", user="ana", session="s1")
T0 = datetime(2024, 5, 1, 9, 0, tzinfo=timezone.utc)


def native(event_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "event_id": event_id,
        "tenant_id": "acme",
        "agent_id": "helper",
        "user_id": "ana",
        "session_id": "s1",
        "role": "user",
        "content": f"text of {event_id}",
        "occurred_at": "2024-05-01T09:00:00+02:00",
        **fields,
    }


def said(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


class Files:
    """Writes files into the test's folder and reads them as events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, content: Any, *, lines: bool = False, indent: int | None = None) -> Path:
        if isinstance(content, bytes):
            data = content
        elif lines:
            data = b"".join(json.dumps(value).encode() + b"\n" for value in content)
        else:
            data = json.dumps(content, indent=indent).encode()
        path = self.folder / "file"  # no extension: the content tells
        path.write_bytes(data)
        return path

    def read(
        self,
        content: Any,
        *,
        lines: bool = False,
        indent: int | None = None,
        defaults: ImportDefaults = ANA,
        format: ImportFormat = "auto",
        start_time: datetime | None = None,
    ) -> tuple[list[L0Event], list[ImportProblem]]:
        path = self.write(content, lines=lines, indent=indent)
        items = read_events(path, defaults=defaults, format=format, start_time=start_time)
        return split(items)


def split(
    items: Iterator[ImportedEvent | ImportProblem],
) -> tuple[list[L0Event], list[ImportProblem]]:
    events, problems = [], []
    for item in items:
        if isinstance(item, ImportedEvent):
            events.append(item.event)
        else:
            problems.append(item)
    return events, problems

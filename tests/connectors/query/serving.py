"""The service over real HTTP on a free port, and everything around it for a test to turn."""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from connectors.query.app import create_app, server_config
from connectors.query.audit_log import AuditLog
from connectors.query.auth import Keys, new_key
from connectors.query.recall import Recall
from connectors.query.service import Service
from connectors.settings import Settings
from stores.records import OutRecord
from tests.connectors.query.fakes import (
    FakeClock,
    FakeEmbedder,
    FakeSearcher,
    FakeStore,
    atom,
    event,
    profile,
)

ANA = {"tenant": "acme", "agent": "helper", "user": "ana"}
SECRET_TEXT = "the vault code is swordfish"

SECRET, ENTRY = new_key("ana-only", "acme", agent=["helper"], user=["ana"])
TENANT_SECRET, TENANT_ENTRY = new_key("all-of-acme", "acme")


@dataclass
class World:
    """Everything around the service, for a test to turn."""

    searcher: FakeSearcher = field(default_factory=FakeSearcher)
    store: FakeStore = field(default_factory=FakeStore)
    log: list[OutRecord] = field(default_factory=list)
    log_error: Exception | None = None
    hang: threading.Event | None = None
    checks: dict[str, Exception | None] = field(default_factory=dict)
    audited: io.StringIO = field(default_factory=io.StringIO)
    url: str = ""

    def reset(self) -> None:
        """Turn the world back to its beginning; a service that runs stays up."""
        self.log, self.log_error, self.hang, self.checks = [], None, None, {}
        self.audited.seek(0)
        self.audited.truncate()
        self.store.atoms = {
            one.atom_id: one
            for one in (
                atom("new", "lives in Berlin", sources=("e1",), day=1).model_copy(
                    update={"supersedes": ("old",)}
                ),
                atom("old", "lives in Lyon", status="superseded").model_copy(
                    update={"superseded_by": "new", "supersedes": ("oldest", "forgotten")}
                ),
                atom("oldest", "lives in Turin", status="superseded", day=-1).model_copy(
                    update={"superseded_by": "old"}
                ),
                atom("theirs", scope="acme/helper/bob"),
            )
        }
        self.store.events = [event("e1", "I moved to Berlin"), event("e2")]
        self.store.asked = []
        self.store.profiles = [
            profile("persona", "persona.md", "# Ana"),
            profile("scene", "moving.md", "boxes", "She moves", heat=3),
        ]
        self.searcher.asked.clear()
        self.searcher.answers = {}

    def append(self, records: list[OutRecord]) -> None:
        if self.hang is not None:
            self.hang.wait(timeout=60)
        if self.log_error is not None:
            raise self.log_error
        self.log += records

    def check(self, name: str) -> None:
        error = self.checks.get(name)
        if error is not None:
            raise error

    def service(self, keys: Keys | None, **settings: Any) -> Service:
        """Make a service over this world."""
        audit = logging.Logger("audit", logging.INFO)
        audit.addHandler(logging.StreamHandler(self.audited))
        made = Settings(host="127.0.0.1", port=0, **settings)
        recall = Recall.of(made, self.searcher, FakeEmbedder(), FakeClock())
        return Service(
            recall=recall,
            search=recall,
            append=self.append,
            settings=made,
            keys=keys,
            checks={name: lambda name=name: self.check(name) for name in ("milvus", "log")},  # type: ignore[misc]
            store=self.store,
            clock=FakeClock(),
            audit=AuditLog(audit, FakeClock()),
            pipeline="sediment/test",
        )


def serve(
    world: World, keys: Keys | None, *, request_timeout_s: float = 30.0, **settings: Any
) -> Iterator[httpx.Client]:
    """Serve a world until the caller is done with it."""
    service = world.service(keys, **settings)
    app = create_app(service, request_timeout_s=request_timeout_s)
    try:
        with running(server_config(app, service.settings)) as world.url:
            with httpx.Client(base_url=world.url, timeout=20) as client:
                yield client
    finally:
        service.recall.close()


@contextmanager
def running(config: uvicorn.Config) -> Iterator[str]:
    """Run a server on a free port of this machine; gives its URL."""
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def message(name: str = "m1", **fields: Any) -> dict[str, Any]:
    """Make the JSON of an event."""
    return {
        "v": 1,
        "event_id": name,
        "tenant_id": "acme",
        "agent_id": "helper",
        "user_id": "ana",
        "session_id": "s1",
        "role": "user",
        "content": "I moved to Berlin",
        "occurred_at": "2024-05-01T09:00:00+02:00",
        **fields,
    }


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Read an error; every one has the same shape."""
    body = response.json()
    assert "Traceback" not in response.text
    error: dict[str, Any] = body["error"]
    assert set(error) == {"code", "message", "field"}
    return error

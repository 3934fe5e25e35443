"""``sediment up`` and ``sediment serve`` as their users have them: another process, real HTTP."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.cli import Sediment
from tests.rig.events import at, body
from tests.rig.waiting import PATIENCE_S, until

SCOPE = ("--tenant", "acme", "--agent", "helper", "--user", "ana")
ANA = {"tenant": "acme", "agent": "helper", "user": "ana"}


@dataclass(frozen=True)
class Service:
    """A service in another process."""

    process: subprocess.Popen[str]
    http: httpx.Client

    def recall(self, query: str) -> dict[str, Any]:
        answer = self.http.post("/v1/recall", json={"query": query, **ANA})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def stop(self) -> None:
        """Ask it to stop, as a supervisor does, and see that it does so without complaint."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, err
        assert "Traceback" not in err


@contextmanager
def running(sediment: Sediment, *arguments: str, key: str = "") -> Iterator[Service]:
    """Start a service on a free port; ends with the block at the latest."""
    process = sediment.start(*arguments, "--port", "0")
    assert process.stderr is not None
    try:
        said = ""
        while (address := re.search(r"serving on (http://\S+)", said)) is None:
            line = process.stderr.readline()
            assert line, f"ended before it served:\n{said}"
            said += line
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(base_url=address[1], headers=headers, timeout=30) as http:
            yield Service(process, http)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_from_an_event_over_http_to_a_memory_and_its_end(tmp_path: Path) -> None:
    """One life of ``up``: events in, recallable, extracted at the session's end, a clean stop."""
    sediment = Sediment(tmp_path / "data")
    said = body("e1", content="I live in Lisbon and I keep two donkeys.")
    with running(sediment, "up") as service:
        for _ in range(2):  # sent again, as a client does that got no answer
            answer = service.http.post("/v1/events", json=said)
            assert (answer.status_code, answer.json()["accepted"]) == (200, 1)

        def as_event() -> dict[str, Any] | None:
            items = service.recall("donkeys")["items"]
            return next((item for item in items if item["layer"] == "event"), None)

        found = until(as_event)
        assert (found["source_event_ids"], found["text"]) == (["e1"], said["content"])

        end = body("e2", type="session_end", role=None, content=None, occurred_at=at(9).isoformat())
        assert service.http.post("/v1/events", json=end).status_code == 200

        def memories() -> list[dict[str, Any]] | None:
            answer = service.http.get("/v1/memories", params=ANA)
            assert answer.status_code == 200
            items: list[dict[str, Any]] = answer.json()["items"]
            return items or None

        items = until(memories)
        assert any("Lisbon" in item["text"] for item in items)
        assert {source for item in items for source in item["source_event_ids"]} == {"e1"}

        # Another process on the same folder is a guest; it sees the same and says the same.
        beside = sediment.here.json("recall", "where does she live?", *SCOPE)
        over_http = service.recall("where does she live?")
        for answered in (beside, over_http):
            del answered["timings_ms"]
            for item in answered["items"]:
                del item["score"]  # a moment later it is a little less recent
        assert beside == over_http
        assert "Lisbon" in beside["items"][0]["text"]
        assert sediment.here.json("memories", "list", *SCOPE)["items"] == items
        refused = sediment.start("run", "--embedded")
        _, err = refused.communicate(timeout=PATIENCE_S)
        assert refused.returncode == 2, err
        assert str(service.process.pid) in err

        assert service.http.get("/readyz").json()["ready"]
        assert "sediment_events_decoded_total" in service.http.get("/metrics").text
        service.stop()
    printed = sediment.run("run", "--embedded")
    assert "0 windows ended" in printed, "what was done is not done again"
    assert sediment.here.json("memories", "list", *SCOPE)["items"] == items


def test_a_network_is_served_only_to_keys_and_each_sees_its_tenant(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    open_to_all = Sediment(tmp_path / "data")
    open_to_all.here.run("serve", "--host", "0.0.0.0", code=2)
    keyed = Sediment(tmp_path / "data", {"SEDIMENT_API_KEYS_FILE": str(keys)})
    key = keyed.run("keys", "create", "app", "--tenant", "acme").strip()
    with running(keyed, "serve", "--host", "127.0.0.1", key=key) as service:
        assert service.http.post("/v1/events", json=body("e1")).status_code == 200
        assert service.recall("text")["items"] == []
        foreign = service.http.post("/v1/recall", json={"query": "q", **ANA, "tenant": "umbrella"})
        assert foreign.status_code == 403
        assert foreign.json()["error"]["field"] == "tenant"
        event = service.http.post("/v1/events", json=body("e1", tenant_id="umbrella"))
        assert event.status_code == 403
        memories = service.http.get("/v1/memories", params={**ANA, "tenant": "umbrella"})
        assert memories.status_code == 403
        service.http.headers["authorization"] = "Bearer sed_wrong"
        assert service.http.post("/v1/recall", json={"query": "q"}).status_code == 401
        del service.http.headers["authorization"]
        assert service.http.post("/v1/recall", json={"query": "q"}).status_code == 401
        assert service.http.get("/healthz").status_code == 200
        service.stop()


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = Sediment(tmp_path / "data").start("up", "--port", port)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert port in err
    assert "Traceback" not in err

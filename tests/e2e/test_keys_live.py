"""Keys of a service that runs, as its users have it: made, used, revoked, all without a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectors.client import Client, Denied, Unauthorized
from tests.e2e.cli import Sediment
from tests.e2e.test_up import running
from tests.rig.events import body


def test_keys_come_and_go_and_the_audit_file_tells(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    sediment = Sediment(
        tmp_path / "data",
        {
            "SEDIMENT_API_KEYS_FILE": str(tmp_path / "keys.json"),
            "SEDIMENT_AUDIT_FILE": str(audit),
        },
    )
    here = sediment.here
    first = here.run("keys", "create", "first", "--tenant", "acme").out
    scope = {"tenant": "acme", "agent": "helper", "user": "ana"}
    with running(sediment, "serve") as service:
        url = str(service.http.base_url)
        with Client(url, first, scope=scope) as client:
            assert client.add_events([body("e1")]).accepted == 1
            second = here.run("keys", "create", "second", "--tenant", "acme", "--right", "read").out
            with Client(url, second, scope=scope) as reader:
                assert reader.status().checks == {"log": "ok", "milvus": "ok", "keys": "ok"}
                with pytest.raises(Denied, match="no right to write"):
                    reader.add_events([])
            here.run("keys", "revoke", "first")
            with pytest.raises(Unauthorized):
                client.recall("anything")
        service.stop()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(one["key"], one["route"], one["outcome"]) for one in lines] == [
        ("first", "/v1/events", "done"),
        ("second", "/v1/events", "denied"),
        (None, "/v1/recall", "denied"),
    ]

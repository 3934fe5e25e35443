"""Data folders for the tests of the verbs: an empty one, and one in which memories have settled."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from connectors.kafka.connection import KafkaConnection
from tests.cli.in_process import InProcess, write_lines
from tests.rig.events import at, body

DEAD_BROKER = "127.0.0.1:9"
"""Nothing listens on the discard port."""


@pytest.fixture
def cli(tmp_path: Path) -> InProcess:
    """A data folder that does not exist yet."""
    return InProcess(tmp_path / "data")


@pytest.fixture(scope="session")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    """Two users' memories, one of them corrected. Tests of this package only read it."""
    folder = tmp_path_factory.mktemp("remembered")
    said = [
        ("e1", "ana", "I live in Lisbon."),
        ("e2", "ana", "I work as a nurse."),
        ("e3", "bob", "I live in Nairobi."),
        ("e4", "ana", "I moved to Porto last week."),
    ]
    events = [
        body(name, user_id=user, content=text, occurred_at=at(60 * number).isoformat())
        for number, (name, user, text) in enumerate(said)
    ]
    prepared = InProcess(folder / "data")
    prepared.run("ingest", str(write_lines(folder / "events.jsonl", *events)))
    prepared.run("run", "--embedded")
    return prepared


@pytest.fixture
def dead_broker(monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of a broker that is not there, and no patience with it."""
    impatient = partial(KafkaConnection, request_timeout_s=0.5)
    for module in ("flows.opening", "connectors.kafka.connection"):
        monkeypatch.setattr(f"{module}.KafkaConnection", impatient)
    return DEAD_BROKER

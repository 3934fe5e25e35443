"""The running service goes over to the generation that is promoted, and no request fails."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from connectors.filelog import FileLog
from flows.runner import SystemClock
from stores.generations import Generation, Pointer, generation_record, pointer_record
from tests.cli.in_process import InProcess, write_lines
from tests.e2e.cli import Sediment
from tests.e2e.test_up import ANA, PATIENCE_S, running, until
from tests.rig.events import at, body


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where v2 knows of a dog, and the first generation has not read that far."""
    folder = tmp_path_factory.mktemp("made")
    cli = InProcess(folder / "data")
    home = body("e1", content="I live in Lisbon.")
    cli.run("ingest", str(write_lines(folder / "one.jsonl", home)))
    cli.run("run", "--embedded")
    dog = body("e2", content="I have a dog.", occurred_at=at(4000).isoformat())
    cli.run("ingest", str(write_lines(folder / "two.jsonl", dog)))
    cli.run("replay", "--into", "v2")
    return folder / "data"


@pytest.fixture
def sediment(made: Path, tmp_path: Path) -> Sediment:
    shutil.copytree(made, tmp_path / "data")
    return Sediment(tmp_path / "data")


@dataclass
class Asking:
    """Asks again and again, and keeps every answer."""

    http: httpx.Client
    statuses: list[int] = field(default_factory=list)

    def ask(self) -> set[str]:
        answer = self.http.post("/v1/recall", json={"query": "a dog in Lisbon", **ANA})
        self.statuses.append(answer.status_code)
        return {item["id"] for item in answer.json()["items"]}


@contextmanager
def asked_all_the_time(http: httpx.Client) -> Iterator[Asking]:
    asking, over = Asking(http), threading.Event()

    def ask() -> None:
        while not over.is_set():
            asking.ask()

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield asking
    finally:
        over.set()
        for thread in threads:
            thread.join()


def knows_the_dog(asking: Asking, wanted: bool) -> bool | None:
    return True if ("e2" in asking.ask()) == wanted else None


@pytest.mark.slow
def test_a_promotion_and_its_undoing_reach_the_service_without_a_failed_request(
    sediment: Sediment,
) -> None:
    with running(sediment, "serve") as service, asked_all_the_time(service.http) as asking:
        until(lambda: knows_the_dog(asking, False))
        sediment.here.run("generations", "promote", "v2")
        until(lambda: knows_the_dog(asking, True))
        sediment.here.run("generations", "promote", "--undo")
        until(lambda: knows_the_dog(asking, False))
        assert len(asking.statuses) > 20
        assert set(asking.statuses) == {200}


@pytest.mark.slow
def test_up_fills_and_serves_the_one_that_is_promoted(sediment: Sediment) -> None:
    with running(sediment, "up") as service:
        asking = Asking(service.http)
        until(lambda: knows_the_dog(asking, True))  # its flow reads what the first one lacked
        sediment.here.run("generations", "promote", "v2")
        assert service.process.stderr is not None
        until(lambda: "serving generation v2" in service.process.stderr.readline() or None)
        cat = body("e3", content="I have a cat.", occurred_at=at(9000).isoformat())
        assert service.http.post("/v1/events", json=cat).status_code == 200
        until(lambda: "e3" in asking.ask() or None)
        service.stop()
    v2 = InProcess(sediment.data_dir, {"SEDIMENT_GENERATION": "v2"})
    assert {item["id"] for item in v2.json("recall", "cat", *_SCOPE)["items"]} >= {"e3"}
    assert {one["generation"]: one["lag"] for one in v2.json("generations", "list")} == {
        "main": 1,
        "v2": 0,
    }


_SCOPE = ("--tenant", "acme", "--agent", "helper", "--user", "ana")


@pytest.mark.slow
def test_a_generation_that_cannot_be_opened_leaves_the_service_where_it_is(
    sediment: Sediment,
) -> None:
    """A pointer to collections that were made with another embedding model, or are not there."""
    with running(sediment, "serve") as service:
        asking = Asking(service.http)
        log = FileLog(sediment.data_dir / "log", SystemClock())
        log.append([generation_record("sediment.generations", Generation(name="bare"))])
        log.append([pointer_record("sediment.generations", Pointer().to("bare"))])
        assert service.process.stderr is not None
        said = ""
        deadline = time.monotonic() + PATIENCE_S
        while "cannot serve generation bare" not in said:
            assert time.monotonic() < deadline
            said += service.process.stderr.readline()
        assert "e1" in asking.ask()
        log.append([pointer_record("sediment.generations", Pointer().to("v2"))])
        until(lambda: knows_the_dog(asking, True))


@pytest.mark.slow
def test_a_followed_replay_leaves_open_sessions_open(sediment: Sediment) -> None:
    """Silence at the end of history is no end of a conversation, when the flow goes on."""
    following = sediment.start("replay", "--into", "live", "--follow")
    try:
        until(lambda: _ready(sediment))
    finally:
        following.send_signal(signal.SIGTERM)
        _, err = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0, err
    here = sediment.here
    # e1's window was closed by e2, 4,000 s later; e2's stands open.
    assert len(here.logged("sediment.live.outcomes")) == 1
    later = body("e3", content="I have a cat.", occurred_at=at(4060).isoformat())
    here.run("ingest", str(write_lines(sediment.data_dir.parent / "three.jsonl", later)))
    here.run("replay", "--into", "live")
    windows = [record.value or b"" for record in here.logged("sediment.live.outcomes")]
    assert len(windows) == 2
    assert b'"event_ids":["e2","e3"]' in windows[1]


def _ready(sediment: Sediment) -> bool | None:
    found = sediment.here.json("generations", "list")
    return any(one["generation"] == "live" and one["state"] == "ready" for one in found) or None

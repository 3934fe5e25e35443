"""The running service goes over to the generation that is promoted, and no request fails."""

from __future__ import annotations

import json
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
from tests.e2e.test_up import ANA, running
from tests.rig.events import at, body
from tests.rig.waiting import PATIENCE_S, until

REGISTER = "sediment.generations"


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

    def ask(self, query: str = "a dog in Lisbon") -> set[str]:
        answer = self.http.post("/v1/recall", json={"query": query, **ANA})
        self.statuses.append(answer.status_code)
        return {said for item in answer.json()["items"] for said in item["source_event_ids"]}


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
        noted = sediment.data_dir / "log" / "sediment.l0.events" / "group-sediment-v2-all.json"
        before = noted.stat().st_mtime_ns
        sediment.here.run("generations", "promote", "v2")
        until(lambda: noted.stat().st_mtime_ns != before or None)  # the flow of v2 is at work
        cat = body("e3", content="I have a cat.", occurred_at=at(9000).isoformat())
        assert service.http.post("/v1/events", json=cat).status_code == 200
        until(lambda: "e3" in asking.ask("who has a cat?") or None)
        service.stop()
    v2 = InProcess(sediment.data_dir, {"SEDIMENT_GENERATION": "v2"})
    found = v2.json("recall", "who has a cat?", *_SCOPE)["items"]
    assert "e3" in {said for item in found for said in item["source_event_ids"]}
    assert {one["generation"]: one["lag"] for one in v2.json("generations", "list")} == {
        "main": 1,
        "v2": 0,
    }


_SCOPE = ("--tenant", "acme", "--agent", "helper", "--user", "ana")


@pytest.mark.slow
def test_a_generation_that_cannot_be_opened_leaves_the_service_where_it_is(
    sediment: Sediment,
) -> None:
    """The collections of ``odd`` were made with another analyzer than the service has."""
    log = FileLog(sediment.data_dir / "log", SystemClock())
    log.append([generation_record(REGISTER, Generation(name="odd", state="ready"))])
    odd = {"SEDIMENT_GENERATION": "odd", "SEDIMENT_ANALYZER": "standard"}
    InProcess(sediment.data_dir, odd).run("rebuild")
    with running(sediment, "serve") as service:
        asking = Asking(service.http)
        log.append([pointer_record(REGISTER, Pointer().to("odd"))])
        for _ in range(3):  # looks at the pointer; it must not matter whether there were more
            time.sleep(1)
            assert "e1" in asking.ask()
        log.append([pointer_record(REGISTER, Pointer().to("v2"))])
        until(lambda: knows_the_dog(asking, True))
        service.process.send_signal(signal.SIGTERM)
        _, err = service.process.communicate(timeout=PATIENCE_S)
    assert err.count("cannot serve generation odd, still serving main") == 1
    assert "serving generation v2" in err
    assert set(asking.statuses) == {200}


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
    ended = [json.loads(one.value or b"") for one in here.logged("sediment.live.outcomes")]
    assert [one["kind"] for one in ended].count("window") == 1
    later = body("e3", content="I have a cat.", occurred_at=at(4060).isoformat())
    here.run("ingest", str(write_lines(sediment.data_dir.parent / "three.jsonl", later)))
    here.run("replay", "--into", "live")
    windows = [
        record.value or b""
        for record in here.logged("sediment.live.outcomes")
        if b'"kind":"window"' in (record.value or b"")
    ]
    assert len(windows) == 2
    assert b'"event_ids":["e2","e3"]' in windows[1]


def _ready(sediment: Sediment) -> bool | None:
    found = sediment.here.json("generations", "list")
    return any(one["generation"] == "live" and one["state"] == "ready" for one in found) or None

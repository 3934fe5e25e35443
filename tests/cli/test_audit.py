"""``sediment audit``: on real logs, after a kill, with an outcome taken away."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from flows.demo import CONVERSATION
from tests.cli.in_process import ANA, InProcess, write_lines
from tests.e2e.cli import Sediment
from tests.e2e.on_kafka import OnKafka
from tests.rig.events import at, body
from tests.rig.kafka import KafkaBroker

OUTCOMES = Path("log/sediment.outcomes/partition-0.jsonl")


def test_every_event_of_a_finished_run_is_explained(remembered: InProcess) -> None:
    found = remembered.json("audit")
    assert found["clean"]
    assert found["ends"] == {"extracted": 4}
    assert found["problems"] == found["open_windows"] == []
    assert "every record is explained" in remembered.run("audit").out


def test_what_was_not_read_is_explained_too(cli: InProcess, tmp_path: Path) -> None:
    cli.run("ingest", str(write_lines(tmp_path / "e.jsonl", body("e1"), body("e1"))))
    assert cli.json("audit")["ends"] == {"not_read": 1, "duplicate": 1}


def test_each_event_is_told_with_its_outcome(remembered: InProcess) -> None:
    events = remembered.json("audit", "--events")["events"]
    assert [event["event_id"] for event in events] == ["e1", "e2", "e3", "e4"]
    first = events[0]
    assert (first["result"], first["stage"], first["attempts"]) == ("extracted", "reconcile", 1)
    assert first["outcome_id"] == events[1]["outcome_id"] != events[2]["outcome_id"]
    assert first["pipeline"]
    remembered.run("audit", "--events", code=2)


def test_a_part_of_the_log(remembered: InProcess) -> None:
    assert remembered.json("audit", *ANA)["records"] == 3
    assert remembered.json("audit", "--tenant", "nobody")["records"] == 0
    assert remembered.json("audit", "--from", "1", "--to", "3")["records"] == 2
    assert remembered.json("audit", "--from", "2000-01-01T00:00:00Z")["records"] == 4
    assert remembered.json("audit", "--to", "2000-01-01T00:00:00+01:00")["records"] == 0


@pytest.mark.parametrize("place", ["yesterday", "2026-03-01T00:00:00", "-1"])
def test_a_place_that_is_none(place: str, remembered: InProcess) -> None:
    assert "--from" in remembered.run("audit", f"--from={place}", code=2).err


def test_a_scope_id_that_the_scope_does_not_have(remembered: InProcess) -> None:
    assert "--team" in remembered.run("audit", "--team", "red", code=2).err


def test_an_open_window_is_shown(cli: InProcess, tmp_path: Path) -> None:
    """A flow that was stopped has read the event and left its window open."""
    cli.run("ingest", str(write_lines(tmp_path / "e.jsonl", body("e1"))))
    group = cli.data_dir / "log" / "sediment.l0.events" / "group-sediment-all.json"
    group.write_text('{"0":1}')
    found = cli.json("audit")
    assert found["ends"] == {"open": 1}
    (window,) = found["open_windows"]
    assert (window["session_id"], window["event_id"], window["events"]) == ("s1", "e1", 1)
    assert window["since"] == at(0).isoformat()
    assert "Open windows" in cli.run("audit").out


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Sediment:
    """The demo, killed on its way, audited at once, and run to its end."""
    sediment = Sediment(tmp_path_factory.mktemp("killed"), {"SEDIMENT_SNAPSHOT_INTERVAL_S": "0.5"})
    sediment.run("ingest", str(CONVERSATION))
    moments = random.Random(7)
    finished = 0
    for _ in range(2):
        process = sediment.start("run", "--embedded")
        time.sleep(moments.uniform(3.0, 5.0))
        finished += process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert sediment.here.json("audit")["clean"], "after the kill"
    assert finished < 2, "the run was always over before it could be killed"
    sediment.run("run", "--embedded")
    return sediment


@pytest.mark.slow
def test_a_killed_run_is_explained_once_it_has_gone_on(killed: Sediment) -> None:
    found = killed.here.json("audit")
    assert found["clean"]
    count = len(CONVERSATION.read_bytes().splitlines())
    assert found["records"] == count
    assert sum(_all(found["ends"])) == count
    assert found["ends"].keys() <= {"extracted", "empty", "skipped"}


@pytest.mark.slow
def test_an_outcome_that_is_taken_away_is_noticed(killed: Sediment, tmp_path: Path) -> None:
    """All outcomes of the first window that has a later one of its own session."""
    robbed = Sediment(tmp_path / "data", killed.env)
    shutil.copytree(killed.data_dir / "log", robbed.data_dir / "log")
    path = robbed.data_dir / OUTCOMES
    lines = path.read_bytes().splitlines()
    outcomes = [orjson.loads(orjson.loads(line)["value"]) for line in lines]
    done = [one for one in outcomes if one["stage"] == "reconcile"]
    lost = next(
        one
        for one in done
        if any(
            other["session_id"] == one["session_id"] and other["offsets"][0] > one["offsets"][-1]
            for other in done
        )
    )
    kept = [
        orjson.loads(line)
        for line, one in zip(lines, outcomes, strict=True)
        if one["outcome_id"] != lost["outcome_id"]
    ]
    path.write_bytes(
        b"".join(
            # Old enough to be proof: what is a few seconds old may still be in flight.
            orjson.dumps({**row, "offset": offset, "timestamp_ms": 0}) + b"\n"
            for offset, row in enumerate(kept)
        )
    )
    found = robbed.here.json("audit", code=1)
    assert [one["offset"] for one in found["problems"]] == lost["offsets"]
    assert {one["result"] for one in found["problems"]} == {"unexplained"}
    assert {one["event_id"] for one in found["problems"]} == set(lost["event_ids"])
    assert "not explained" in robbed.here.run("audit", code=1).out


def _all(ends: dict[str, Any]) -> list[int]:
    return [
        count
        for value in ends.values()
        for count in (value.values() if isinstance(value, dict) else [value])
    ]


@pytest.mark.kafka
def test_on_kafka(cli: InProcess, tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    kafka = InProcess(cli.data_dir, OnKafka(kafka_broker, partitions=3).env)
    events = [
        body(f"e{n}", user_id=f"user-{n % 4}", occurred_at=at(n).isoformat()) for n in range(12)
    ]
    kafka.run("ingest", str(write_lines(tmp_path / "e.jsonl", *events)))
    assert kafka.json("audit")["ends"] == {"not_read": 12}
    kafka.run("run", "l1", "--to-end")
    found = kafka.json("audit")
    assert found["clean"]
    assert sum(_all(found["ends"])) == 12
    assert found["ends"].keys() <= {"extracted", "empty"}

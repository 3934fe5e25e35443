"""``sediment forget``: what it shows, asks for, waits for and refuses."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig.events import body


@pytest.fixture
def cli(remembered: InProcess, tmp_path: Path) -> InProcess:
    """A copy of two users' memories, to be forgotten."""
    shutil.copytree(remembered.data_dir, tmp_path / "copy")
    return InProcess(tmp_path / "copy")


def requests(cli: InProcess) -> list[dict[str, Any]]:
    events = [orjson.loads(one.value or b"") for one in cli.logged()]
    return [one for one in events if one.get("type") == "forget"]


def atom_id(cli: InProcess, word: str) -> str:
    items = cli.json("memories", "list", *ANA)["items"]
    return str(next(one["atom_id"] for one in items if word in one["text"]))


def test_without_yes_it_is_only_shown(cli: InProcess) -> None:
    shown = cli.run("forget", *ANA)
    assert "messages: 3, memories removed: 3" in shown.out
    assert "nothing is done without --yes" in shown.out
    assert cli.json("forget", *ANA, "--yes", "--dry-run")["asked"] is False
    assert requests(cli) == []


def test_each_target_is_counted(cli: InProcess) -> None:
    def counted(*about: str) -> tuple[int, int, int]:
        shown = cli.json("forget", *ANA, *about)
        return shown["events"], shown["atoms_removed"], shown["atoms_changed"]

    assert counted("--session", "s1") == (3, 3, 0)
    assert counted("--session", "s9") == (0, 0, 0)
    assert counted("--event", "e1", "--event", "e2") == (2, 2, 0)
    assert counted("--atom", atom_id(cli, "nurse")) == (1, 1, 0)


def test_a_request_has_its_place_in_the_scope(cli: InProcess) -> None:
    asked = cli.json("forget", *ANA, "--event", "e1", "--reason", "asked for it", "--yes")
    assert asked["requests"][0]["scope"] == "acme/helper/ana"
    record = cli.logged()[-1]
    assert record.key == b"acme/helper/ana"
    (event,) = requests(cli)
    assert event["event_id"] == asked["requests"][0]["event_id"]
    assert event["request"] == {
        "target": "event", "event_ids": ["e1"], "atom_ids": [], "reason": "asked for it",
    }  # fmt: skip
    again = cli.json("forget", *ANA, "--event", "e1", "--yes")
    assert again["requests"][0]["event_id"] != event["event_id"], "later, so another request"


def test_without_an_agent_every_scope_of_the_user_is_found(cli: InProcess, tmp_path: Path) -> None:
    other = [body("o1", agent_id="coach"), body("o2", tenant_id="other", agent_id="coach")]
    cli.run("ingest", str(write_lines(tmp_path / "more.jsonl", *other)))
    asked = cli.json("forget", "--tenant", "acme", "--user", "ana", "--yes")
    assert [one["scope"] for one in asked["requests"]] == ["acme/helper/ana", "acme/coach/ana"]
    assert asked["events"] == 4
    assert len({one["event_id"] for one in asked["requests"]}) == 2
    nobody = cli.run("forget", "--tenant", "acme", "--user", "eve", code=2)
    assert "holds nothing of user eve" in nobody.err


def test_it_waits_until_a_flow_has_carried_it_out(cli: InProcess) -> None:
    """The flow begins when the request is in the log; both in one process, so it runs beside."""

    def flow() -> None:
        until = time.monotonic() + 120
        while not requests(cli) and time.monotonic() < until:
            time.sleep(0.05)
        import subprocess
        import sys

        subprocess.run(
            [sys.executable, "-m", "flows.cli.main", "run", "--embedded",
             "--data-dir", str(cli.data_dir)],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip

    beside = threading.Thread(target=flow)
    beside.start()
    done = cli.json("forget", *ANA, "--yes", "--wait")
    beside.join()
    assert done["requests"][0]["result"] == "applied"
    assert cli.json("memories", "list", *ANA)["items"] == []
    again = cli.json("forget", *ANA)
    assert (again["events"], again["atoms_removed"]) == (0, 0), "nothing is left to forget"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("forget", "--user", "ana"), "--tenant: say whose memory"),
        (("forget", "--tenant", "acme"), "--user: say whose memory"),
        (("forget", *ANA, "--session", "s1", "--event", "e1"), "--session and --event"),
        (("forget", "--tenant", "acme", "--user", "ana", "--session", "s1"), "--agent: say whose"),
        (("forget", *ANA, "--event", ""), "--event"),
        (("forget", *ANA, "--session", "*"), "session_id: must name one"),
        (("forget", *ANA[:-1], "*"), "user_id: must name one"),
        (("forget", *ANA, "--reason", "x" * 201), "--reason"),
    ],
)
def test_what_cannot_be_asked_for_is_told(
    remembered: InProcess, arguments: tuple[str, ...], says: str
) -> None:
    before = len(remembered.logged())
    assert says in remembered.run(*arguments, "--yes", code=2).err
    assert len(remembered.logged()) == before

"""Snapshots of this format are read by this version, and those of another are refused.

``snapshot-format-N.json`` holds pickles of one state of each kind, as a version with that format
wrote them. When a change makes them unreadable, raise ``SNAPSHOT_FORMAT``, say so in the
changelog, and write the file of the new format: ``python -m tests.flows.test_snapshot_format``.
"""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from bytewax.recovery import init_db_dir

from flows.async_stage.lane import PendingItem
from flows.async_stage.retry import Failures
from flows.dedup import RecentIds
from flows.recovery import SNAPSHOT_FORMAT, check_format
from flows.runner import recovery_store
from flows.scenes.debounce import Waiting
from flows.scenes.job import QueuedJob
from flows.window import ScopeWindows, WindowPolicy
from stores.errors import SettingsError
from stores.records import SceneJob
from tests.flows.test_recovery import counted
from tests.rig.events import at, record, sourced

GOLDEN = Path(__file__).with_name(f"snapshot-format-{SNAPSHOT_FORMAT}.json")


def states() -> dict[str, Any]:
    """Give a state of each kind that a flow has."""
    windows = ScopeWindows(WindowPolicy(user_turns=2, warmup=False))
    closed = [
        ended
        for n in range(5)
        for ended in windows.on_event(sourced(f"e{n}", seconds=10 * n, offset=n, role="user"))
    ]
    ids = RecentIds(10)
    ids.add("e0")
    job = SceneJob(job_id="j1", scope="acme/helper/ana", window_id="w1", atom_ids=("a1",),
                   occurred_at=at(5))  # fmt: skip
    queued = QueuedJob(job, record(job.model_dump_json().encode(), 7, timestamp=at(6)))
    failed = Failures(calls=2, transient=2, first_at=at(1), last_at=at(2))
    return {
        "windows": windows.snapshot(),
        "pending": (PendingItem(closed[0], at(9)), PendingItem(closed[1], at(9), failed, at(30))),
        "ids": ids.snapshot(),
        "jobs": Waiting(jobs=(queued,), first=at(5), last=at(6), ran=at(1), seen=("j1",)),
    }


@pytest.mark.parametrize("kind", sorted(states()))
def test_what_this_format_wrote_is_read(kind: str) -> None:
    written = json.loads(GOLDEN.read_text())[kind]
    assert pickle.loads(base64.b64decode(written)) == states()[kind]


def test_a_new_store_is_marked_and_opened_again(tmp_path: Path) -> None:
    recovery_store(tmp_path / "recovery")
    recovery_store(tmp_path / "recovery")
    assert (tmp_path / "recovery" / "format").read_text() == f"{SNAPSHOT_FORMAT}\n"


def test_a_store_that_bytewax_made_is_marked_before_its_first_run(tmp_path: Path) -> None:
    init_db_dir(tmp_path, 1)
    check_format(tmp_path)
    assert (tmp_path / "format").exists()


def test_snapshots_of_another_version_are_refused_before_they_are_touched(tmp_path: Path) -> None:
    init_db_dir(tmp_path, 1)
    counted(tmp_path, [("a", 0)])
    with pytest.raises(SettingsError, match="have format 0, and this version reads"):
        recovery_store(tmp_path)
    (tmp_path / "format").write_text("999\n")
    with pytest.raises(SettingsError, match="have format 999"):
        recovery_store(tmp_path)
    (tmp_path / "format").write_text(f"{SNAPSHOT_FORMAT}\n")
    assert counted(tmp_path, [("a", 0), ("a", 1)]) == [("a", 2)]


def test_snapshots_of_another_log_are_refused(tmp_path: Path) -> None:
    """Its offsets would be gone on from, and what stands before them be skipped, unnoticed."""
    folder = tmp_path / "recovery"
    recovery_store(folder, "Kafka cluster a")
    recovery_store(folder, "Kafka cluster a")
    for other in ("Kafka cluster b", "the log in files"):
        with pytest.raises(SettingsError, match=f"of Kafka cluster a, and this run reads {other}"):
            recovery_store(folder, other)
    (folder / "log").unlink()
    recovery_store(folder, "Kafka cluster b")  # a person says that they hold the same


if __name__ == "__main__":
    pickled = {kind: pickle.dumps(state) for kind, state in states().items()}
    lines = {kind: base64.b64encode(one).decode() for kind, one in pickled.items()}
    GOLDEN.write_text(json.dumps(lines, indent=1, sort_keys=True) + "\n")

"""Rows of an epoch that never closed do not come back as state."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pytest
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, run_main

from flows.recovery import (
    check_format,
    drop_unfinished,
    guard_plain_run,
    resume_epoch,
    sole_user,
)
from stores.errors import ServiceUnavailable, SettingsError

ZERO = timedelta(seconds=0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A recovery store in two files."""
    init_db_dir(tmp_path, 2)
    check_format(tmp_path)
    return tmp_path


def three_runs() -> list[object]:
    """Three runs: "a" alone; then "b", until the process breaks off; then "a" again."""
    others = [("b", number) for number in range(5)]
    return [("a", 0), TestingSource.EOF(), *others, TestingSource.ABORT(), ("a", 1)]


def counted(store: Path, elements: list[object]) -> list[tuple[str, int]]:
    """Run once more and count items by key; the counts are the state. Each item is an epoch."""
    flow, out = Dataflow("f"), list[tuple[str, int]]()
    items: Any = op.input("in", flow, TestingSource(elements, batch_size=1))
    counts = op.stateful_map("count", items, lambda count, _: ((count or 0) + 1, (count or 0) + 1))
    op.output("out", counts, TestingSink(out))
    run_main(flow, epoch_interval=ZERO, recovery_config=RecoveryConfig(store))
    return out


def rows(store: Path, sql: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for part in sorted(store.glob("part-*.sqlite3")):
        with closing(sqlite3.connect(part)) as connection, connection:
            found += connection.execute(sql).fetchall()
    return found


def as_left_by_a_kill(store: Path) -> None:
    """Write what a run leaves that is killed while epoch 'resume' closes: "a" counted up to 99."""
    epoch = resume_epoch(store)
    pickled = b"\x80\x04Kc."
    (name,) = {step for (step,) in rows(store, "SELECT step_id FROM snaps") if "count" in str(step)}
    for part in sorted(store.glob("part-*.sqlite3")):
        with closing(sqlite3.connect(part)) as connection, connection:
            mine = "SELECT 1 FROM snaps WHERE step_id = ? AND state_key = 'a'"
            if connection.execute(mine, (name,)).fetchone():
                connection.execute(
                    "INSERT INTO snaps (step_id, state_key, snap_epoch, ser_change) "
                    "VALUES (?, 'a', ?, ?)",
                    (name, epoch, pickled),
                )


def test_a_dead_row_comes_back_as_state_without_it(store: Path) -> None:
    """The fault itself, in Bytewax: should this fail one day, :mod:`flows.recovery` can go."""
    elements = three_runs()
    assert counted(store, elements) == [("a", 1)]
    as_left_by_a_kill(store)
    counted(store, elements)
    assert counted(store, elements)[-1] == ("a", 100)


def test_a_row_of_an_epoch_that_never_closed_is_dropped(store: Path) -> None:
    elements = three_runs()
    assert counted(store, elements) == [("a", 1)]
    as_left_by_a_kill(store)
    assert drop_unfinished(store) == 1
    assert drop_unfinished(store) == 0
    counted(store, elements)
    assert counted(store, elements)[-1] == ("a", 2)


def test_what_was_finished_stays(store: Path) -> None:
    assert resume_epoch(store) is None
    assert drop_unfinished(store) == 0
    elements = three_runs()
    counted(store, elements)
    before = rows(store, "SELECT * FROM snaps")
    assert before
    assert drop_unfinished(store) == 0
    assert rows(store, "SELECT * FROM snaps") == before
    counted(store, elements)
    assert counted(store, elements)[-1] == ("a", 2)


def test_the_next_run_begins_where_its_slowest_worker_had_come(store: Path) -> None:
    def begun(run: int, workers: int, epoch: int, **fronts: int) -> None:
        with closing(sqlite3.connect(store / "part-0.sqlite3")) as connection, connection:
            sql = "INSERT INTO exs (ex_num, worker_count, resume_epoch) VALUES (?, ?, ?)"
            connection.execute(sql, (run, workers, epoch))
            sql = "INSERT INTO fronts (ex_num, worker_index, worker_frontier) VALUES (?, ?, ?)"
            for worker, front in fronts.items():
                connection.execute(sql, (run, int(worker.removeprefix("of_")), front))

    begun(0, 2, 1, of_0=9, of_1=7)
    assert resume_epoch(store) == 7
    begun(1, 2, 7, of_0=8)  # the other one has not closed an epoch yet
    assert resume_epoch(store) == 7
    begun(2, 1, 7, of_0=12)
    assert resume_epoch(store) == 12


def test_a_store_that_is_none_is_said(store: Path) -> None:
    (store / "part-1.sqlite3").write_bytes(b"not a database, and long enough to be read as one" * 9)
    with pytest.raises(ServiceUnavailable, match="part-1"):
        drop_unfinished(store)


# --- one user at a time, and Bytewax's own command ---------------------------------------------


def test_two_runs_on_one_store_are_refused(store: Path) -> None:
    with sole_user(store), pytest.raises(SettingsError, match="in use"), sole_user(store):
        pass
    with sole_user(store):
        pass


@pytest.mark.parametrize("named", ["option", "environment"])
def test_a_run_by_bytewax_itself_takes_dead_rows_out_as_well(store: Path, named: str) -> None:
    elements = three_runs()
    counted(store, elements)
    as_left_by_a_kill(store)
    arguments = ["flows.l1:flow", "-w", "4"]
    environment = {}
    if named == "option":
        arguments += ["-r", str(store)]
    else:
        environment["BYTEWAX_RECOVERY_DIRECTORY"] = str(store)
    held = guard_plain_run(arguments, environment)
    assert held is not None
    with held:
        as_left_by_a_kill(store)  # what a process of the cluster that runs already is writing
        peer = guard_plain_run(arguments, environment)
        assert peer is not None
        peer.close()
        assert drop_unfinished(store) == 1, "a second process took out what the first one writes"
        with pytest.raises(SettingsError, match="in use"), sole_user(store):
            pass
    counted(store, elements)
    assert counted(store, elements)[-1] == ("a", 2)


def test_a_run_by_bytewax_itself_keeps_off_what_sediment_runs(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.recovery._SHARE_S", 0.02)
    with sole_user(store), pytest.raises(SettingsError, match="in use"):
        guard_plain_run(["flows.l1:flow", "-r", str(store)], {})
    assert guard_plain_run(["flows.l1:flow"], {}) is None, "without a store there is nothing to do"


def test_a_part_of_a_store_is_refused_and_left_alone(store: Path, tmp_path: Path) -> None:
    elements = three_runs()
    counted(store, elements)
    as_left_by_a_kill(store)
    other = tmp_path / "other"
    other.mkdir()
    (store / "part-1.sqlite3").rename(other / "part-1.sqlite3")
    before = rows(store, "SELECT * FROM snaps")
    with pytest.raises(SettingsError, match="only some files"):
        guard_plain_run(["flows.l1:flow", "-r", str(store)], {})
    assert rows(store, "SELECT * FROM snaps") == before


def test_a_process_whose_cluster_has_its_store_elsewhere_begins(tmp_path: Path) -> None:
    held = guard_plain_run(["flows.l1:flow", "-r", str(tmp_path)], {})
    assert held is not None
    held.close()

"""When scene jobs become runs: pure, and as a step of a dataflow through stops and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, cluster_main
from hypothesis import given
from hypothesis import strategies as st

from flows.scenes import JoinedJob, Pace, QueuedJob, join_jobs
from flows.scenes.debounce import ScopeJobs
from stores.records import SceneJob
from tests.rig.events import at
from tests.rig.layers import queued
from tests.rig.still import StillClock

PACE = Pace()


def job(name: str, seconds: float, *, repair: bool = False, removed: Sequence[str] = (),
        scope: str = "acme/helper/ana") -> QueuedJob:  # fmt: skip
    return queued(
        SceneJob(
            job_id=name,
            scope=scope,
            window_id="w",
            atom_ids=(f"atom-{name}",),
            removed_atom_ids=tuple(removed),
            repair=repair,
            occurred_at=at(seconds),
        )
    )


def run_all(*jobs: QueuedJob, pace: Pace = PACE) -> list[tuple[str, ...]]:
    waiting = ScopeJobs(pace)
    runs = [run for one in jobs for run in waiting.add(one, one.job.occurred_at)]
    due = waiting.due_at()
    return [run.job_ids for run in [*runs, *(waiting.flush(due) if due else [])]]


def test_jobs_that_come_close_together_are_one_run() -> None:
    assert run_all(job("a", 0), job("b", 5), job("c", 14)) == [("a", "b", "c")]


def test_a_quiet_scope_runs_and_its_next_run_waits_until_900_s_later() -> None:
    runs = run_all(job("a", 0), job("b", 11), job("c", 700), job("d", 911), job("e", 930))
    assert runs == [("a",), ("b", "c"), ("d", "e")]


def test_jobs_that_never_pause_wait_an_hour_at_most() -> None:
    jobs = [job(str(number), number * 9) for number in range(500)]
    runs = run_all(*jobs)
    assert runs[0] == tuple(str(number) for number in range(400))


def test_a_repair_waits_for_quiet_but_not_for_its_turn() -> None:
    runs = run_all(job("a", 0), job("b", 20, repair=True), job("c", 31))
    assert runs == [("a",), ("b",), ("c",)]


def test_what_was_removed_does_not_wait_at_all() -> None:
    waiting = ScopeJobs(PACE)
    assert waiting.add(job("a", 0), at(0)) == []
    (run,) = waiting.add(job("b", 1, removed=["x"]), at(1))
    assert run.job_ids == ("a", "b")
    assert run.removed == {"x"}


def test_a_job_that_comes_twice_is_dropped() -> None:
    assert run_all(job("a", 0), job("a", 1)) == [("a",)]
    waiting = ScopeJobs(PACE)
    waiting.add(job("a", 0), at(0))
    waiting.flush(at(10))
    again = ScopeJobs(PACE, waiting.snapshot())
    assert again.add(job("a", 0), at(20)) == []
    assert again.due_at() is None


def test_the_same_jobs_make_the_same_id_in_any_order() -> None:
    one, other = job("a", 0), job("b", 1)
    assert JoinedJob((one, other)).job_id == JoinedJob((other, one)).job_id
    assert JoinedJob((one,)).job_id != JoinedJob((one, other)).job_id


@given(st.lists(st.tuples(st.integers(0, 9000), st.booleans()), max_size=40))
def test_every_job_is_in_exactly_one_run(found: list[tuple[int, bool]]) -> None:
    jobs = [job(str(n), seconds, repair=repair) for n, (seconds, repair) in enumerate(found)]
    runs = run_all(*jobs)
    assert sorted(name for run in runs for name in run) == sorted(one.job.job_id for one in jobs)


@given(st.lists(st.integers(0, 9000), max_size=30), st.integers(0, 29))
def test_a_snapshot_in_between_changes_no_run(seconds: list[int], cut: int) -> None:
    jobs = [job(str(n), when) for n, when in enumerate(seconds)]
    waiting = ScopeJobs(PACE)
    runs: list[tuple[str, ...]] = []
    for number, one in enumerate(jobs):
        if number == cut:
            waiting = ScopeJobs(PACE, waiting.snapshot())
        runs += [run.job_ids for run in waiting.add(one, one.job.occurred_at)]
    due = waiting.due_at()
    runs += [run.job_ids for run in (waiting.flush(due) if due else [])]
    assert runs == run_all(*jobs)


# --- as a step -------------------------------------------------------------------------------


def flow_of(
    jobs: list[QueuedJob], out: list[tuple[str, JoinedJob]], *, stopping: bool = False
) -> Dataflow:
    flow = Dataflow("join")
    read = op.input("in", flow, TestingSource(jobs))
    keyed = op.key_on("key", read, lambda one: one.job.scope)
    runs = join_jobs("join", keyed, PACE, StillClock(), live=False, stopping=lambda: stopping)
    op.output("out", runs, TestingSink(out))
    return flow


def recovery(folder: Path) -> RecoveryConfig:
    folder.mkdir()
    init_db_dir(folder, 1)
    return RecoveryConfig(str(folder))


def test_the_end_of_the_input_flushes_what_waits() -> None:
    out: list[tuple[str, JoinedJob]] = []
    cluster_main(flow_of([job("a", 0), job("b", 20)], out), [], 0)
    assert [run.job_ids for _, run in out] == [("a",), ("b",)]


def test_a_graceful_stop_keeps_what_waits_for_the_next_run(tmp_path: Path) -> None:
    store = recovery(tmp_path / "recovery")
    jobs: list[QueuedJob] = [job("a", 0), job("b", 5)]
    out: list[tuple[str, JoinedJob]] = []
    cluster_main(flow_of(jobs, out, stopping=True), [], 0, recovery_config=store,
                 epoch_interval=timedelta(0))  # fmt: skip
    assert out == []
    jobs.append(job("c", 8))
    cluster_main(flow_of(jobs, out), [], 0, recovery_config=store, epoch_interval=timedelta(0))
    assert [run.job_ids for _, run in out] == [("a", "b", "c")]

"""A short sample of the seeded fault runs. ``make soak`` runs many of them."""

from __future__ import annotations

import multiprocessing as mp
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from stores.errors import ServiceUnavailable
from tests.faults.conversation import conversation
from tests.faults.drive import Driver, stacks_of
from tests.faults.flow_process import PATIENT, stacks_file, write_stacks_when_asked
from tests.faults.points import Injection, Points, open_gate, read_trace
from tests.faults.scenario import FAULTS, VARIANTS, Run, Scenario
from tests.faults.servers import running_servers
from tests.faults.unreliable_llm import FAILURES
from tests.rig.kafka import KafkaBroker
from tests.rig.needs import missing

SAMPLE = (
    "killed with an answer half recorded",
    "killed with half of the atoms stored",
    "killed after a scene is current",
    "killed with half of the index written",
    "killed with a snapshot half made",
    "broker frozen for a while",
    "redis flushed",
    "store stopped",
    "recovery store older",
    "partition added",
    "rescaled from 1 to 4 to 2",
    "stopped during retries",
)
"""Faults of the sample: all that take seconds, one of each kind."""


@pytest.fixture(scope="module")
def driver(kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One set of servers for all of the sample."""
    if shutil.which("redis-server") is None:
        missing("redis-server (Debian package redis-server)")
    folder = tmp_path_factory.mktemp("faults")
    with running_servers(kafka_broker, folder) as servers:
        yield Driver(servers, folder)


def seed_about(fault: str) -> int:
    """Give the first seed about a fault that needs one conversation only: it is run undisturbed
    once, and then compared with by all of the sample."""
    names = list(FAULTS)
    seeds = range(names.index(fault), 100_000, len(names))
    return next(
        seed
        for seed in seeds
        if (one := Scenario.of(seed)).variant == 18 and one.store == "stand-in"
    )


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.parametrize("fault", SAMPLE)
def test_after_a_fault_everything_is_as_if_it_had_not_been(driver: Driver, fault: str) -> None:
    seed = seed_about(fault)
    verdict = driver.run(Scenario.of(seed))
    again = f"python -m tests.faults --runs 1 --seed {seed}"
    assert not verdict.wrong, "\n".join([f"seed {seed}; again: {again}", *verdict.wrong])


# --- the rig itself ----------------------------------------------------------------------------


def test_a_scenario_follows_from_its_seed_alone() -> None:
    assert [Scenario.of(seed) for seed in range(100)] == [Scenario.of(seed) for seed in range(100)]
    assert len({Scenario.of(seed).steps for seed in range(100)}) > 60


def test_as_many_seeds_as_there_are_faults_cover_them_all() -> None:
    seeds = range(500, 500 + len(FAULTS))
    assert {Scenario.of(seed).fault for seed in seeds} == set(FAULTS)


def test_the_last_process_of_every_scenario_is_left_alone_or_rides_a_fault_out() -> None:
    for seed in range(300):
        last = Scenario.of(seed).steps[-1]
        assert isinstance(last, Run)
        assert (last.ends, last.follow) == ("done", False)


def test_a_kill_at_a_snapshot_needs_records_and_no_number_of_snapshots(tmp_path: Path) -> None:
    """How many there are depends on the machine; seed 9016 waited for one that never came."""
    points = Points((Injection("fail", "snapshot.before", records=2),), tmp_path, 1)
    for point in ("snapshot.before", "produce.before", "snapshot.before", "produce.before"):
        points.passed(point)
    with pytest.raises(ServiceUnavailable):
        points.passed("snapshot.before")


def test_a_process_that_does_not_end_says_where_it_stands(tmp_path: Path) -> None:
    process = mp.get_context("forkserver").Process(target=_stands_at_a_gate, args=(tmp_path,))
    process.start()
    while not read_trace(tmp_path):
        assert process.is_alive()
    said = stacks_of(process, stacks_file(tmp_path, 1))
    open_gate(tmp_path, 1)
    process.join()
    assert "_wait_at_gate" in said
    assert "_stands_at_a_gate" in said


def _stands_at_a_gate(folder: Path) -> None:
    write_stacks_when_asked(folder, 1)
    Points((Injection("gate", "retry"),), folder, 1).passed("retry")


def test_patience_outlasts_whatever_the_model_does() -> None:
    """Else a disturbed run could give up what an undisturbed one does not."""
    assert sum(PATIENT.backoff_s) > 6
    assert len(FAILURES) >= 14


def test_conversations_are_worth_disturbing() -> None:
    for variant in Random(3).sample(range(VARIANTS), 10):
        talk = conversation(variant)
        assert talk.healthy >= 9
        assert len({(window.scope, window.session_id) for window in talk.windows}) > 4
    assert any(len(talk.windows) > talk.healthy for talk in map(conversation, range(10)))

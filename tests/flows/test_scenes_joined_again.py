"""After a crash scene jobs may be joined otherwise; their persona jobs stay the ones they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.scenes.job import JoinedJob
from stores.records import PersonaJob
from tests.rig.layers import LayerWorld, fact, joined

NAME = fact(1, "User's name is Ana.", slot="name")
CITY = fact(2, "User lives in Porto.", slot="home.city")
TITLE = fact(3, "User works as a baker.", slot="job.title")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LayerWorld]:
    made = LayerWorld(tmp_path)
    made.atoms.put(NAME, CITY, TITLE)
    yield made
    made.close()


def together(*parts: JoinedJob) -> JoinedJob:
    return JoinedJob(tuple(one for part in parts for one in part.jobs))


def ids(personas: tuple[PersonaJob, ...]) -> list[str]:
    return [one.job_id for one in personas]


def test_a_larger_company_asks_for_what_was_asked_before_and_for_what_is_new(
    world: LayerWorld,
) -> None:
    before = world.run(joined(NAME))
    after = world.run(together(joined(NAME), joined(CITY)))
    assert ids(after.personas)[:-1] == ids(before.personas)
    assert len(set(ids(after.personas))) == 2
    # And once more, when nothing is left to do.
    assert ids(world.run(together(joined(NAME), joined(CITY))).personas) == ids(after.personas)


def test_a_smaller_company_asks_for_what_the_larger_one_did(world: LayerWorld) -> None:
    before = world.run(together(joined(NAME), joined(CITY)))
    assert ids(world.run(joined(NAME)).personas) == ids(before.personas)
    assert ids(world.run(joined(CITY)).personas) == ids(before.personas)


def test_runs_that_meet_each_ask_with_what_is_theirs(world: LayerWorld) -> None:
    first, second = world.run(joined(NAME)), world.run(joined(CITY, removed=["gone"]))
    both = world.run(together(joined(NAME), joined(CITY, removed=["gone"]), joined(TITLE)))
    assert ids(both.personas)[:2] == ids(first.personas) + ids(second.personas)
    assert [one.removed_atom_ids for one in both.personas] == [(), ("gone",), ()]

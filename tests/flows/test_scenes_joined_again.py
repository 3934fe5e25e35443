"""After a crash scene jobs may be joined otherwise; their persona jobs stay the ones they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.scenes import SceneLimits
from flows.scenes.job import JoinedJob
from stores.errors import ServiceUnavailable
from stores.protocols import ChatRequest
from stores.records import PersonaJob
from tests.rig.layers import SCOPE, LayerWorld, fact, joined, scene_text, shown, step, steps

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


def test_runs_that_changed_nothing_and_share_a_generation_ask_each_with_its_own_id(
    world: LayerWorld,
) -> None:
    parts = [joined(NAME), joined(NAME, job="again"), joined(NAME, CITY, job="and again")]
    first, second = (world.run(one) for one in parts[:2])
    assert world.folder.current(SCOPE).number == 1
    assert ids(world.run(parts[1]).personas) == ids(second.personas)
    all_of_them = world.run(together(*parts))
    assert ids(all_of_them.personas)[:2] == ids(first.personas) + ids(second.personas)
    assert len(set(ids(all_of_them.personas))) == 3


def test_what_a_part_of_a_long_run_asked_for_is_asked_also_where_the_rest_comes_after_a_crash(
    tmp_path: Path,
) -> None:
    asks = "All set. [PERSONA_UPDATE_REQUEST]reason: moved to Porto[/PERSONA_UPDATE_REQUEST]"
    down = True

    def script(number: int, request: ChatRequest) -> Any:
        ids = [line[0] for line in shown(request, "atoms")]
        if len(shown(request, "scenes")) == 1 and down:
            return ServiceUnavailable("llm", "down")
        text = scene_text("Said so.", *ids)
        words = asks if not shown(request, "scenes") else "done"
        return steps(step("write", f"{ids[0]}.md", text=text), step("done", text=words))

    world = LayerWorld(tmp_path, script, limits=SceneLimits(atoms=1))
    try:
        with pytest.raises(ServiceUnavailable):
            world.run_with(NAME, CITY)
        assert len(world.files()) == 1
        down = False
        for _ in range(2):
            personas = world.run(joined(NAME, CITY)).personas
            assert [one.reason for one in personas] == ["moved to Porto"]
    finally:
        world.close()

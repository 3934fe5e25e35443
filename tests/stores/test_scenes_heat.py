"""Counters of recall hits: none lost, none counted twice, whatever dies in between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stores.scenes import (
    Change,
    HeatCounters,
    LocalHeat,
    ProfileFile,
    RedisHeat,
    SceneFolder,
    fold_heat,
)
from tests.rig.redis import RedisServer

SCOPE, OTHER = "acme/helper/ana", "acme/helper/bob"
AT = datetime(2026, 3, 1, tzinfo=timezone.utc)


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.redis)])
def heat(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HeatCounters]:
    if request.param == "local":
        yield LocalHeat()
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        counters = RedisHeat(server.url, tmp_path.name)
        yield counters
        counters.close()


def never(job: str) -> bool:
    del job
    return False


def test_the_same_job_gets_the_same_hits_again(heat: HeatCounters) -> None:
    heat.add(SCOPE, "a.md")
    heat.add(SCOPE, "搬家.md", 2)
    heat.add(OTHER, "a.md", 9)
    assert heat.take(SCOPE, "j1", never) == {"a.md": 1, "搬家.md": 2}
    heat.add(SCOPE, "a.md")
    assert heat.take(SCOPE, "j1", never) == {"a.md": 1, "搬家.md": 2}
    assert heat.take(OTHER, "j1", never) == {"a.md": 9}
    assert heat.take("nobody", "j1", never) == {}


def test_hits_of_a_job_that_failed_go_to_the_next(heat: HeatCounters) -> None:
    heat.add(SCOPE, "a.md", 2)
    heat.take(SCOPE, "j1", never)
    heat.add(SCOPE, "a.md")
    assert heat.take(SCOPE, "j2", never) == {"a.md": 3}
    assert heat.take(SCOPE, "j3", lambda job: job == "j2") == {}


def test_hits_of_a_job_that_committed_are_gone(heat: HeatCounters) -> None:
    asked: list[str] = []

    def committed(job: str) -> bool:
        asked.append(job)
        return True

    heat.add(SCOPE, "a.md", 2)
    heat.take(SCOPE, "j1", committed)
    heat.add(SCOPE, "b.md")
    assert heat.take(SCOPE, "j2", committed) == {"b.md": 1}
    assert asked == ["j1"]


def test_counting_goes_on_while_hits_are_taken(heat: HeatCounters) -> None:
    def count(_: int) -> None:
        for _ in range(50):
            heat.add(SCOPE, "a.md")

    taken = 0
    with ThreadPoolExecutor(4) as pool:
        counting = pool.map(count, range(4))
        for number in range(20):
            taken += heat.take(SCOPE, f"j{number}", lambda _: True).get("a.md", 0)
        list(counting)
    taken += heat.take(SCOPE, "last", lambda _: True).get("a.md", 0)
    assert taken == 200


def test_forgotten_counts_are_gone(heat: HeatCounters) -> None:
    heat.add(SCOPE, "a.md")
    heat.take(SCOPE, "j1", never)
    heat.add(SCOPE, "a.md")
    heat.forget(SCOPE)
    heat.forget(SCOPE)
    assert heat.take(SCOPE, "j2", never) == {}


@pytest.mark.parametrize("dies", ["before the commit", "after the commit", "nowhere"])
def test_heat_is_folded_in_once_wherever_a_run_dies(
    heat: HeatCounters, tmp_path: Path, dies: str
) -> None:
    folder = SceneFolder(tmp_path)
    with folder.checkout(SCOPE, 1, AT) as copy:
        first = {"a.md": ProfileFile("scene", "A", "About A.", AT, AT, heat=10)}
        folder.commit(copy, first, Change(AT, "m/1", "job", ("j0",)))

    def run(job: str, *, until: str = "nowhere") -> None:
        if folder.applied(SCOPE, job) is not None:
            return
        with folder.checkout(SCOPE, 1, AT) as copy:
            hits = heat.take(SCOPE, job, lambda one: folder.applied(SCOPE, one) is not None)
            files = fold_heat(copy.files, hits, folder.moved(SCOPE))
            if until == "before the commit":
                return
            folder.commit(copy, files, Change(AT, "m/1", "job", (job,)))

    heat.add(SCOPE, "a.md", 3)
    run("j1", until=dies)
    heat.add(SCOPE, "a.md", 5)
    for job in ("j1", "j1", "j2", "j2", "j1"):
        run(job)
    assert folder.files(SCOPE)["a.md"].heat == 18
    folder.close()

"""What a process wrote to the search index it need not read again, as long as it alone writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.scenes.profiles import ProfileSync
from stores.records import Profile, ProfileKind, Tombstone
from stores.scenes import ProfileFile
from stores.tombstones import Tombstones
from tests.rig.events import at
from tests.rig.layers import SCOPE, LayerWorld, fact
from tests.rig.still import OnesEmbedder

TEA, BAKER = fact(1, "User drinks tea.", slot="x.drink"), fact(2, "User works as a baker.")


class World(LayerWorld):
    """Counts how often the index is read, and sets its clock."""

    def __init__(self, root: Path) -> None:
        self.kept_out = Tombstones()
        super().__init__(root, kept_out=self.kept_out)
        self.hours, self.reads = 0.0, 0
        read = self.profiles.profiles_of

        def counted(scope: str, kind: ProfileKind | None = None) -> list[Profile]:
            self.reads += 1
            return read(scope, kind)

        self.read, self.profiles.profiles_of = read, counted  # type: ignore[method-assign]
        self.sync._monotonic = lambda: self.hours * 3600

    def bring(self, sync: ProfileSync | None = None, **files: ProfileFile | None) -> int:
        """Bring files in line, some of them changed or left out; say how often it was read."""
        now = {name: one for name, one in (self.files() | files).items() if one is not None}
        before = self.reads
        asyncio.run((sync or self.sync).bring(SCOPE, "scene", now, self.folder.current(SCOPE)))
        return self.reads - before

    def told(self) -> dict[str, str]:
        return {one.path: one.summary for one in self.read(SCOPE, "scene")}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.run_with(TEA)
    made.run_with(BAKER, seconds=2000)
    yield made
    made.close()


def changed(world: World, words: str) -> dict[str, Any]:
    name, file = sorted(world.files().items())[0]
    return {name: replace(file, summary=words)}


def test_what_was_written_here_is_not_read_again(world: World) -> None:
    assert world.bring() == 0
    assert world.bring(**changed(world, "New words.")) == 0
    assert "New words." in world.told().values()
    newest = max(one.version for one in world.read(SCOPE, "scene"))
    world.bring(**changed(world, "Newer words."))
    assert max(one.version for one in world.read(SCOPE, "scene")) == newest + 1


def test_an_index_that_was_lost_is_filled_again_after_an_hour(world: World) -> None:
    told = world.told()
    world.profiles.rows.clear()
    world.hours = 0.99
    assert world.bring() == 0
    world.hours = 1.0
    assert world.bring() == 1
    assert world.told() == told
    assert world.bring() == 0


def test_another_process_reads_it(world: World) -> None:
    told = world.told()
    world.profiles.rows.clear()
    other = ProfileSync(world.profiles, OnesEmbedder(), world.topic.extend, "sediment.profiles")
    assert world.bring(other) == 1
    assert world.told() == told


def test_what_leaves_it_is_read_and_taken_out(world: World) -> None:
    name = sorted(world.files())[0]
    assert world.bring(**{name: None}) == 1
    assert name not in world.told()
    assert world.bring(**{name: None}) == 0


def test_after_a_write_that_failed_it_is_read(world: World) -> None:
    world.profiles.fail_next = RuntimeError()
    with pytest.raises(RuntimeError):
        world.bring(**changed(world, "New words."))
    assert world.bring(**changed(world, "New words.")) == 1
    assert "New words." in world.told().values()


def test_where_anything_is_kept_out_it_is_always_read(world: World) -> None:
    """Others take out of the index of such a scope, and what was rewritten must come back."""
    world.kept_out.add(
        Tombstone(
            tombstone_id="t",
            kind="forget",
            target="atom",
            scope=SCOPE,
            atom_ids=("gone",),
            request_id="f",
            requested_at=at(0),
            topic="t",
            partition=0,
            offset=9,
        )
    )
    told = world.told()
    world.profiles.rows.clear()
    assert world.bring() == 1
    assert world.told() == told
    assert world.bring() == 1

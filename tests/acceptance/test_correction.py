"""A correction holds: through an index made anew, through history fed again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.acceptance.world import Doors, Owner, World
from tests.rig.events import at

_DAY = 86400.0


@dataclass(frozen=True)
class Shape:
    """One shape of a correction, said by somebody of their own, so that none helps another.

    :arg first: what is said.
    :arg then: the correction, said in another session; ``days`` later.
    :arg old: words of the value that no longer holds.
    :arg now: words of the one that does; where nothing took its place, of what else was said.
    :arg holds: words that the correction does not touch.
    """

    name: str
    ask: str
    first: tuple[str, ...]
    then: tuple[str, ...]
    old: str
    now: str
    holds: str
    old_status: str = "superseded"
    days: float = 1

    @property
    def who(self) -> Owner:
        return Owner(user=self.name)


REMAINS = "I play the cello."  # said by everybody: the control that the store is not empty
SHAPES = [
    Shape(
        "replacement", "where does she live?", ("I live in Oslo.",), ("I moved to Bergen.",),
        old="Oslo", now="Bergen", holds="cello",
    ),
    Shape(
        "polarity", "is she allergic to peanuts?", ("I'm allergic to peanuts.",),
        ("I'm not allergic to peanuts after all.",),
        old="is allergic", now="is not allergic", holds="cello",
    ),
    Shape(
        "retraction", "what is the sister called?", ("My sister's name is Zanzibarine.",),
        ("I misspoke, I have no sister.",),
        old="Zanzibarine", now="no sister", holds="cello",
    ),
    Shape(
        "partial", "what work does she do, and where?", ("I'm a nurse.", "I work at Globex."),
        ("I no longer work at Globex, I'm at Initech now.",),
        old="works at Globex", now="Initech", holds="nurse",
    ),
    Shape(
        "bounded", "is she staying in Lisbon? does she love jazz?",
        ("I'm staying in Lisbon until March 5.",),
        ("I love jazz.",),
        old="Lisbon", now="jazz", holds="cello", old_status="stale", days=30,
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("correction"))
    first = [
        event
        for one in SHAPES
        for event in world.events(REMAINS, *one.first, session="first", who=one.who)
    ]
    world.ingest(*first)
    world.run()
    with world.serving() as doors:
        for shape in SHAPES:
            answer = recalled(doors, shape)
            told = answer["user_context"] + answer["system_context"]
            assert shape.old in told, "the control: it was told"
    then = [
        event
        for one in SHAPES
        for event in world.events(*one.then, session="then", who=one.who, start=one.days * _DAY)
    ]
    world.ingest(*then)
    world.run()
    return world


def recalled(doors: Doors, shape: Shape, **options: Any) -> dict[str, Any]:
    sent = {"query": shape.ask, **options, **shape.who.parts}
    answer: dict[str, Any] = doors.request("POST", "/v1/recall", json=sent).json()
    return answer


def assert_corrected(world: World, when: str) -> None:
    with world.serving() as doors:
        for shape in SHAPES:
            assert_one_corrected(doors, shape, f"{when}: {shape.name}")


def assert_one_corrected(doors: Doors, shape: Shape, when: str) -> None:
    answer = recalled(doors, shape)
    told = [item["text"] for item in answer["items"] if item["layer"] == "atom"]
    assert any(shape.now in text for text in told), when
    assert not [text for text in told if shape.old in text and shape.now not in text], when
    system: str = answer["system_context"]
    assert shape.now in system, (when, "persona and scenes agree")
    assert shape.holds in system, when
    still = [one for one in system.splitlines() if shape.old in one and shape.now not in one]
    assert not [one for one in still if ".md: Earlier: " not in one], (when, "told as the past")
    # The history is whole: what was, until when, and what took its place.
    every = doors.request("GET", "/v1/memories", params=shape.who.parts).json()["items"]
    (before,) = [one for one in every if shape.old in one["text"] and one["status"] != "active"]
    assert before["status"] == shape.old_status, when
    assert before["valid_until"] is not None
    if shape.old_status == "superseded":
        (after,) = [one for one in every if one["atom_id"] == before["superseded_by"]]
        assert before["atom_id"] in after["supersedes"]
        assert shape.now in after["text"]
    then = recalled(doors, shape, layers=["atoms"], as_of=at(60).isoformat())
    assert any(shape.old in item["text"] for item in then["items"]), (when, "as it stood then")


def test_correction_survives_reindex(world: World) -> None:
    assert_corrected(world, "at once")
    world.wipe("milvus")
    world.cli.run("rebuild")
    assert_corrected(world, "after the index was made anew")
    world.wipe()
    world.run()
    assert_corrected(world, "after history was read again")


def test_correction_retraction_without_replacement(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    world = World(tmp_path_factory.mktemp("retraction"))
    said = ("My sister's name is Zanzibarine.", "My brother's name is Quillon.")
    world.say(*said, session="first")
    assert "Zanzibarine" in world.prompt("the sister")
    world.say("I misspoke, I have no sister.", session="then", start=_DAY)

    def assert_retracted(when: str) -> None:
        active = {one["slot"]: one["text"] for one in world.memories()}
        assert active["family.sister"] == "User has no sister.", when
        assert "Quillon" in active["family.brother"], when
        answer = world.recall("what is the sister called?")
        told = [item["text"] for item in answer["items"] if item["layer"] != "event"]
        assert told
        assert not [text for text in told if "Zanzibarine" in text], when
        assert "Zanzibarine" not in answer["system_context"], when

    assert_retracted("at once")
    world.say(*said, session="first")
    assert_retracted("the same messages fed again")
    world.say(*said, session="first", ids="exported")
    assert_retracted("the same history under other ids, as another importer writes it")
    world.wipe()
    world.run()
    assert_retracted("everything read again")
    # The control: said anew, later, it is taken.
    world.say("My sister's name is Zanzibarine.", session="later", start=9 * _DAY)
    assert "Zanzibarine" in world.prompt("the sister")

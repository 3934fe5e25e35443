"""``sediment memories``: what is remembered, in a fixed order, with where it came from."""

from __future__ import annotations

import pytest

from connectors.query.memory_models import MemoriesAnswer
from tests.cli.in_process import ANA, InProcess

LIST = ("memories", "list", *ANA)
SHOW = ("memories", "show")


def test_the_listing_is_byte_equal_twice_and_the_service_s_shape(remembered: InProcess) -> None:
    first, second = (remembered.text(*LIST, "--json") for _ in range(2))
    assert first == second
    answer = MemoriesAnswer.model_validate_json(first)
    assert answer.total == len(answer.items) == 3
    times = [item.occurred_at for item in answer.items]
    assert times == sorted(times)


def test_superseded_ones_are_shown_as_such_or_left_out(remembered: InProcess) -> None:
    every = remembered.json(*LIST)["items"]
    old = [item for item in every if item["status"] == "superseded"]
    (new,) = [item for item in every if item["atom_id"] == old[0]["superseded_by"]]
    assert (old[0]["source_event_ids"], new["source_event_ids"]) == (["e1"], ["e4"])
    assert old[0]["valid_until"] == new["occurred_at"]
    active = remembered.json(*LIST, "--active")["items"]
    assert active == [item for item in every if item["status"] == "active"]
    assert remembered.run(*LIST).out.count("superseded") == 1
    assert "superseded" not in remembered.run(*LIST, "--active").out


def test_one_is_shown_with_its_events(remembered: InProcess) -> None:
    item = remembered.json(*LIST)["items"][0]
    shown = remembered.json(*SHOW, item["atom_id"], *ANA)
    assert shown["memory"] == item
    (event,) = shown["events"]
    assert (event["event_id"], event["text"]) == ("e1", "I live in Lisbon.")
    printed = remembered.run(*SHOW, item["atom_id"], *ANA).out
    assert "I live in Lisbon." in printed
    assert item["window_id"] in printed


def test_another_user_s_memory_is_not_found(remembered: InProcess) -> None:
    bob = ("--tenant", "acme", "--agent", "helper", "--user", "bob")
    (theirs,) = remembered.json("memories", "list", *bob)["items"]
    assert theirs["source_event_ids"] == ["e3"]
    for missing in (theirs["atom_id"], "no-such-memory"):
        assert f"has no memory {missing}" in remembered.run(*SHOW, missing, *ANA, code=2).err


def test_an_empty_scope_says_so(remembered: InProcess) -> None:
    nobody = ("--tenant", "acme", "--agent", "helper", "--user", "nobody")
    assert remembered.json("memories", "list", *nobody) == {"items": [], "total": 0}
    printed = remembered.run("memories", "list", *nobody).out
    assert printed == "nothing is remembered of acme / helper / nobody"


@pytest.mark.parametrize("verb", [("list",), ("show", "some-id")], ids=["list", "show"])
def test_without_a_whole_scope_nothing_is_read(verb: tuple[str, ...], cli: InProcess) -> None:
    printed = cli.run("memories", *verb, "--tenant", "acme", "--user", "ana", code=2)
    assert "the scope needs agent" in printed.err
    assert not cli.data_dir.exists()

"""The world of the ``/v3`` tests: what Ana and Bob said, and what is found for every question."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.connectors.query.fakes import atom, event, hits
from tests.connectors.query.serving import World

BOB = "acme/helper/bob"


# Somebody else's code, which is not ours to bring: run where its folder is named (see the file).
collect_ignore = [] if os.environ.get("SEDIMENT_TDAI_SDK") else ["test_sdk.py"]


def fill(world: World) -> None:
    """Put Ana's messages into two sessions, and things that must not be told beside them."""
    world.reset()
    world.store.events = [
        event("e1", "I moved to Berlin"),
        event("e2", day=1),
        replace(event("e3", "Noted.", day=2), role="assistant", session_id="s2"),
        replace(event("call", "ls -l", day=3), role="tool"),
        replace(event("silent", day=3), role="assistant", text=""),
        event("b1", "Bob's secret", scope=BOB),
    ]
    new = world.store.atoms["new"]
    world.store.atoms["new"] = new.model_copy(update={"scene": "moving"})
    ended = {"valid_until": new.valid_from}
    world.store.atoms["ended"] = atom("ended", "was on a trip").model_copy(update=ended)
    world.searcher.around = []
    world.searcher.answers = {
        ("events", "dense"): hits(event("e1", "I moved to Berlin"), event("e2", day=1)),
        ("events", "keyword"): hits(event("e1", "I moved to Berlin")),
        ("atoms", "dense"): hits(atom("new", "lives in Berlin", day=1)),
    }


@pytest.fixture
def world(shared_world: World) -> World:
    """Turn the world back to its beginning; the services of the module stay up."""
    fill(shared_world)
    return shared_world

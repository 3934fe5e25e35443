"""How fresh memory is, as measured by the product itself."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import REGISTRY

from tests.acceptance.world import World


def measured(what: str) -> float:
    name = f"sediment_recallable_seconds_{what}"
    return REGISTRY.get_sample_value(name, {"layer": "events"}) or 0.0


def test_every_event_is_measured_from_its_production(tmp_path: Path) -> None:
    world = World(tmp_path)
    said = ["I live in Oslo.", "I play the cello.", "I love jazz."]
    count, seconds = measured("count"), measured("sum")
    world.say(*said, session="s1")
    with world.store() as store:
        assert len(list(store.events_of("acme/helper/ana"))) == len(said)
    assert measured("count") - count == len(said), "each event once"
    # From the log's own time of the record, not from the date the event bears (of years ago).
    assert 0 < measured("sum") - seconds < 3600
    world.run()
    assert measured("count") - count == len(said), "nothing again when nothing is new"

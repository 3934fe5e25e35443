"""``atomic/*`` beside the examples: what is asked of the flow."""

from __future__ import annotations

import httpx

from stores.records import L0Event
from stores.requests import edited_atom_id
from tests.connectors.query.fakes import atom, hits
from tests.connectors.query.serving import World
from tests.connectors.query.v3.calling import IDS, call, logged, ok, refused


def test_an_update_asks_for_an_edit(client: httpx.Client, world: World) -> None:
    answer = ok(call(client, "atomic/update"))
    (record,) = world.log
    event = L0Event.model_validate_json(record.value or b"")
    assert record.key == b"acme/helper/ana"
    assert (event.type, event.text(), event.session_id) == ("edit", "lives in Rome", "s1")
    assert event.request is not None
    assert event.request.atom_ids == ("new",)
    made = edited_atom_id("acme/helper/ana", event.event_id)
    assert (answer["id"], answer["version"]) == (made, "v1")


def test_an_update_to_the_same_text_asks_for_nothing(client: httpx.Client, world: World) -> None:
    body = {**IDS, "id": "new", "content": "lives in Berlin", "background": "moving"}
    data = ok(call(client, "atomic/update", body))
    assert data == {"id": "new", "version": "v1", "updated_at": "2024-05-02T09:00:00.000Z"}
    assert not world.log


def test_a_background_is_not_edited(client: httpx.Client, world: World) -> None:
    body = {**IDS, "id": "new", "content": "lives in Rome", "background": "a holiday"}
    assert refused(call(client, "atomic/update", body), 422)["data"]["field"] == "background"
    assert not world.log


def test_a_delete_asks_only_for_what_is_there(client: httpx.Client, world: World) -> None:
    body = {**IDS, "ids": ["theirs", "old", "new", "new", "nowhere"]}
    assert ok(call(client, "atomic/delete", body)) == {"deleted_count": 2}
    (asked,) = logged(world)
    assert (asked["type"], asked["request"]["target"]) == ("forget", "atom")
    assert asked["request"]["atom_ids"] == ["old", "new"]
    world.log.clear()
    assert ok(call(client, "atomic/delete", {**IDS, "ids": ["theirs"]})) == {"deleted_count": 0}
    assert not world.log


def test_pages_and_filters(client: httpx.Client, world: World) -> None:
    for day in range(5):
        world.store.atoms[f"a{day}"] = atom(f"a{day}", day=day).model_copy(
            update={"session_id": "s9"}
        )
    newest = ok(call(client, "atomic/query", {**IDS, "limit": 2}))
    assert ([one["id"] for one in newest["items"]], newest["total"]) == (["a4", "a3"], 6)
    rest = ok(call(client, "atomic/query", {**IDS, "offset": 5}))
    assert ([one["id"] for one in rest["items"]], rest["total"]) == (["a0"], 6)
    beyond = ok(call(client, "atomic/query", {**IDS, "offset": 6}))
    assert (beyond["items"], beyond["total"]) == ([], 6)
    for narrow, total in (
        ({"session_id": "s9"}, 5),
        ({"time_start": "2024-05-04T09:00:00.000Z"}, 2),
        ({"time_end": "2024-05-02T09:00:00.000Z"}, 3),
        ({"type": "instruction"}, 0),
    ):
        assert ok(call(client, "atomic/count", {**IDS, **narrow})) == {"total": total}


def test_a_search_looks_into_every_session_and_only_for_the_type(
    client: httpx.Client, world: World
) -> None:
    ok(
        call(
            client, "atomic/search", {**IDS, "query": "home", "session_id": "s9", "type": "persona"}
        )
    )
    assert world.searcher.asked
    for layer, _, scope, _, where in world.searcher.asked:
        assert (layer, scope) == ("atoms", "acme/helper/ana")
        assert (where.session_id, where.types) == (None, ("persona",))


def test_a_hit_that_is_gone_by_now_is_left_out(client: httpx.Client, world: World) -> None:
    world.searcher.answers = {("atoms", "dense"): hits(atom("forgotten", "lives in Ulm"))}
    assert ok(call(client, "atomic/search")) == {"items": []}

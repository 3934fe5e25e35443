"""From a message added over ``/v3`` to an atom, a scene and their end, with the real flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.connectors.query.v3.calling import ok
from tests.e2e.cli import Sediment
from tests.e2e.test_up import Service, running
from tests.rig.events import at
from tests.rig.waiting import until

SAID = (
    "I live in Lisbon.",
    "I have a dog called Nuno.",
    "My favourite food is sardines.",
    "I work as a carpenter.",
    "I am allergic to walnuts.",
)


def post(service: Service, route: str, **body: Any) -> dict[str, Any]:
    ids = {"team_id": "blue", "agent_id": "helper", "user_id": "ana"}
    headers = {"authorization": "Bearer any", "x-tdai-service-id": "acme"}
    return ok(service.http.post(f"/v3/{route}", json={**ids, **body}, headers=headers))


@pytest.mark.slow
def test_from_a_message_to_an_atom_and_its_end(tmp_path: Path) -> None:
    turns = [
        one
        for n, text in enumerate(SAID)
        for one in (
            {"role": "user", "content": text, "timestamp": at(20 * n).isoformat()},
            {"role": "assistant", "content": "Good.", "timestamp": at(20 * n + 5).isoformat()},
        )
    ]
    with running(Sediment(tmp_path / "data", {"SEDIMENT_SCENE_QUIET_S": "0.2"}), "up") as service:
        added = [post(service, "conversation/add", session_id="s1", messages=turns)]
        added.append(post(service, "conversation/add", session_id="s1", messages=turns))
        assert added[0] == added[1]
        ids: list[str] = added[0]["accepted_ids"]

        def atoms() -> list[dict[str, Any]] | None:
            found: list[dict[str, Any]] = post(service, "atomic/query")["items"]
            return found or None

        items = until(atoms)
        until(lambda: post(service, "conversation/count")["total"] == 10 or None)
        told = post(service, "conversation/query", limit=100)
        assert (told["total"], [one["id"] for one in told["messages"]]) == (10, ids[::-1])
        assert {one["content"] for one in told["messages"]} == {*SAID, "Good."}
        assert {source for one in items for source in one["source_message_ids"]} <= set(ids)
        assert post(service, "atomic/count")["total"] == len(atoms() or [])

        (lisbon,) = [one for one in items if "Lisbon" in one["content"]]
        found = post(service, "atomic/search", query="Which city does she live in?")["items"]
        assert lisbon["id"] in [one["id"] for one in found]
        hits = post(service, "conversation/search", query="a dog", session_id="s1")["messages"]
        assert hits[0]["id"] == ids[2]

        # A person's own words: the flow that keeps the files takes them.
        path = until(lambda: post(service, "scenario/ls")["entries"] or None)[0]["path"]
        post(service, "scenario/write", path=path, content="# Mine", summary="by hand")
        until(lambda: post(service, "scenario/read", path=path)["content"] == "# Mine" or None)
        until(lambda: post(service, "core/count")["total"] or None)
        post(service, "core/write", content="# Me\n\nBy hand.")
        until(lambda: "By hand" in post(service, "core/read")["content"] or None)
        post(service, "scenario/rm", path=path)
        until(lambda: post(service, "scenario/read", path=path)["content"] is None or None)

        stranger = {"user_id": "bob"}
        assert post(service, "conversation/query", **stranger) == {"messages": [], "total": 0}
        assert post(service, "atomic/search", query="Lisbon", **stranger) == {"items": []}
        assert post(service, "atomic/delete", ids=[lisbon["id"]], **stranger)["deleted_count"] == 0

        assert post(service, "atomic/delete", ids=[lisbon["id"]]) == {"deleted_count": 1}
        until(lambda: lisbon["id"] not in [one["id"] for one in atoms() or []] or None)
        until(lambda: post(service, "conversation/count")["total"] == 9 or None)

        assert post(service, "conversation/delete", message_ids=[ids[2]]) == {"deleted_count": 1}
        until(lambda: post(service, "conversation/count")["total"] == 8 or None)
        until(lambda: not any("Nuno" in one["content"] for one in atoms() or []) or None)

        # The admin right is the loopback caller's own: a whole session may go.
        assert post(service, "conversation/delete", session_ids=["s1"]) == {"deleted_count": 8}
        until(lambda: post(service, "conversation/count")["total"] == 0 or None)
        until(lambda: atoms() is None or None)
        service.stop()

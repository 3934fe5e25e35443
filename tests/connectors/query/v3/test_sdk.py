"""The public Python SDK itself, where somebody has it: every method of its v3 memory client.

Collected only with ``SEDIMENT_TDAI_SDK`` set to the folder ``sdk/memory-core/python`` of a
checkout. What it sends is also in ``examples.json``, which needs nobody's SDK.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.connectors.query.serving import SECRET, World

WHEN = "2024-05-20T10:00:00.000Z"


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(os.environ["SEDIMENT_TDAI_SDK"])
    yield importlib.import_module("tencentdb_agent_memory.v3")
    for name in [one for one in sys.modules if one.startswith("tencentdb_agent_memory")]:
        del sys.modules[name]


def test_every_method_of_the_client(sdk: Any, keyed: httpx.Client, world: World) -> None:
    client = sdk.MemoryClient(
        endpoint=world.url, api_key=SECRET, service_id="acme", team_id="blue", agent_id="helper",
        user_id="ana", session_id="s1",
    )  # fmt: skip
    errors = importlib.import_module("tencentdb_agent_memory.errors")
    try:
        added = client.add_conversation([{"role": "user", "content": "hi", "timestamp": WHEN}])
        assert added["total_count"] == len(added["accepted_ids"]) == 1
        assert client.query_conversation(limit=1)["total"] == 2
        everywhere = client.with_isolation(session_id=None)
        assert everywhere.query_conversation()["total"] == 3
        assert everywhere.count_conversation() == {"total": 3}
        found = client.search_conversation("Where did she move?", time_end="2024-06-01T00:00:00Z")
        assert [one["id"] for one in found["messages"]] == ["e1"]
        assert client.delete_conversation(message_ids=["e1", "gone"]) == {"deleted_count": 1}

        assert [one["id"] for one in client.query_atomic(type="persona")["items"]] == ["new"]
        assert client.count_atomic() == {"total": 1}
        assert [one["id"] for one in client.search_atomic("home", limit=3)["items"]] == ["new"]
        assert client.update_atomic("new", "lives in Rome")["version"] == "v1"
        assert client.delete_atomic(["new"]) == {"deleted_count": 1}

        assert client.list_scenarios(path_prefix="")["total"] == client.count_scenario()["total"]
        assert client.read_scenario("moving.md")["content"] == "boxes"
        assert client.read_scenario("nowhere.md")["content"] is None
        assert client.read_core()["content"] == "# Ana"
        assert client.count_core() == {"total": 1}

        def refused(code: int, method: Any, *arguments: Any, **named: Any) -> Any:
            with pytest.raises(errors.TDAMError) as caught:
                method(*arguments, **named)
            assert caught.value.code == code
            assert caught.value.request_id.startswith("req-")
            return caught.value

        assert client.write_scenario("moving.md", "# Boxes")["path"] == "moving.md"
        client.rm_scenario("moving.md")
        assert client.write_core("# Ana B.")["version"] == 1
        refused(404, client.write_scenario, "boats.md", "# Boats")
        refused(404, client.update_atomic, "theirs", "x")
        refused(400, client.query_conversation, limit=101)
        denied = refused(403, client.with_isolation(user_id="bob").read_core)
        assert denied.details == {"reason": "scope_refused", "field": "user"}
        refused(403, client.delete_conversation, session_ids=["s1"])
    finally:
        client._stub.close()

"""Flow, query service, status page and MCP as processes of their own, on Kafka, Milvus and Redis.

Elsewhere they are tested on the embedded stores, where one process has everything. Here what one
of them asks for another does, and only the servers are between them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from tests.connectors.query.ui.rig import token_in
from tests.e2e.cli import Sediment
from tests.e2e.on_kafka import OnKafka
from tests.e2e.test_up import ANA, running
from tests.rig.events import at, body
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import KafkaBroker
from tests.rig.milvus_server import milvus_server, waits_its_turn
from tests.rig.redis import RedisServer
from tests.rig.scripted_llm import scripted_llm
from tests.rig.waiting import until

SAID = ("FACT[home.city]: Ana lives in Porto.", "FACT[pet]: Ana has a dog.")


@waits_its_turn
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.asyncio
async def test_what_one_process_is_asked_another_does(
    kafka_broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path
) -> None:
    topics = OnKafka(kafka_broker)
    with (
        scripted_llm(answer=answer, dimension=32) as model,
        milvus_server(tmp_path / "milvus") as milvus,
    ):
        settings = {
            **topics.env,
            "SEDIMENT_MILVUS_URI": milvus,
            "SEDIMENT_REDIS_URL": redis_server.url,
            "SEDIMENT_LLM_BASE_URL": model.url,
            "SEDIMENT_LLM_MODEL": SCRIPTED_MODEL,
            "SEDIMENT_EMBEDDINGS_BASE_URL": model.url,
            "SEDIMENT_EMBEDDINGS_DIMENSION": "32",
            "SEDIMENT_API_KEYS_FILE": str(tmp_path / "keys.json"),
            "SEDIMENT_UI_SECRET": "u" * 32,
            "SEDIMENT_SCENE_QUIET_S": "0",
            "SEDIMENT_RATE_LIMIT": "0",
        }
        flow = Sediment(tmp_path / "flow", settings).start("run", "all", "--follow")
        asked = Sediment(tmp_path / "service", settings)
        rights = ("--right", "read", "--right", "write")
        key = asked.here.run("keys", "create", "one", "--tenant", "acme", *rights).out.strip()
        try:
            with running(asked, "serve", key=key) as service:
                http = service.http

                def memories() -> dict[str, Any]:
                    items = http.get("/v1/memories", params=ANA).json()["items"]
                    return {one["text"]: one["atom_id"] for one in items}

                events = [
                    body(f"e{n}", content=text, occurred_at=at(n).isoformat())
                    for n, text in enumerate(SAID)
                ]
                end = body("end", type="session_end", role=None, content=None)
                end["occurred_at"] = at(60).isoformat()
                told = http.post("/v1/events", json={"events": [*events, end]}).json()
                assert told["accepted"] == 3, told
                there = until(lambda: len(now := memories()) == 2 and now)
                until(lambda: http.get("/v1/persona", params=ANA).status_code == 200)
                assert http.get("/v1/scenes/notes.md", params=ANA).status_code == 200
                form = http.get("/ui/sign-in")
                signed = {"key": key, "to": "/ui", "form_token": token_in(form)}
                assert http.post("/ui/sign-in", data=signed).status_code == 303
                page = until(lambda: "persona job" in (shown := http.get("/ui").text) and shown)
                assert "user=ana" in page
                assert "Ana lives in Porto." in http.get("/ui/memories", params=ANA).text

                dog = there["Ana has a dog."]
                tool = StdioServerParameters(
                    command=sys.executable,
                    args=["-m", "flows.cli.main", "mcp", "--agent", "helper", "--user", "ana"],
                    env={**asked.environment(), "SEDIMENT_MCP_KEY": key},
                )
                async with Client(stdio_client(tool)) as agent:
                    found = await agent.call_tool("recall", {"query": "where does she live?"})
                    assert "Porto" in found.content[0].text  # type: ignore[union-attr]
                    gone = await agent.call_tool("forget", {"memory_ids": [dog]})
                    assert not gone.is_error, gone
                until(lambda: dog not in memories().values())
                porto = there["Ana lives in Porto."]
                edit = {"agent": "helper", "user": "ana", "text": "Ana lives in Faro."}
                assert http.patch(f"/v1/memories/{porto}", json=edit).status_code == 202
                until(lambda: "Ana lives in Faro." in memories())
                service.stop()
        finally:
            flow.kill()
            flow.communicate()

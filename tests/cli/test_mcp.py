"""``sediment mcp`` as an agent's program has it: another process, over stdio, real memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from connectors.query.keys_file import load_keys
from connectors.settings import Settings
from tests.cli.in_process import ANA, InProcess
from tests.e2e.cli import Sediment


def server(sediment: Sediment, *arguments: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "flows.cli.main", "mcp", *arguments],
        env=sediment.environment(),
    )


@pytest.mark.asyncio
async def test_an_agent_recalls_over_stdio(remembered: InProcess) -> None:
    sediment = Sediment(remembered.data_dir)
    async with Client(stdio_client(server(sediment, *ANA))) as client:
        asked = {"query": "where does she live?"}
        found = await client.call_tool("recall", asked)
        (content,) = found.content
        assert content.type == "text"
        assert not found.is_error
        assert "Porto" in content.text
        assert "Nairobi" not in content.text
        assert content.text.startswith(("<about>", "<memories>"))
        wider = await client.call_tool("recall", {**asked, "user": "bob"})
        assert wider.is_error


@pytest.mark.asyncio
async def test_what_an_agent_remembers_is_in_the_log(cli: InProcess) -> None:
    async with Client(stdio_client(server(Sediment(cli.data_dir), *ANA))) as client:
        assert not (await client.call_tool("remember", {"text": "I moved to Porto."})).is_error
    message, end = cli.logged()
    assert b"Porto" in (message.value or b"")
    assert b"session_end" in (end.value or b"")
    assert message.key == b"acme/helper/ana"


@pytest.mark.asyncio
async def test_with_a_key_it_acts_as_the_key_says(cli: InProcess, tmp_path: Path) -> None:
    file = str(tmp_path / "keys.json")
    keyed = InProcess(cli.data_dir, {"SEDIMENT_API_KEYS_FILE": file})
    secret = keyed.run(
        "keys", "create", "reader", "--tenant", "acme", "--agent", "helper", "--right", "read"
    ).out
    env = {**keyed.env, "SEDIMENT_MCP_KEY": secret}
    assert load_keys(Settings(api_keys_file=Path(file))) is not None
    InProcess(cli.data_dir, env).run("mcp", "--tenant", "umbrella", "--user", "ana", code=2)
    sediment = Sediment(cli.data_dir, env)
    async with Client(stdio_client(server(sediment, "--user", "ana"))) as client:
        assert not (await client.call_tool("recall", {"query": "Where?"})).is_error
        assert (await client.call_tool("remember", {"text": "x"})).is_error
        keyed.run("keys", "revoke", "reader")
        assert (await client.call_tool("recall", {"query": "Where?"})).is_error


def test_a_scope_that_is_not_whole_is_exit_code_2(cli: InProcess) -> None:
    assert "user" in cli.run("mcp", "--tenant", "acme", "--agent", "helper", code=2).err


@pytest.mark.parametrize("shared", ["SEDIMENT_BROKERS", "SEDIMENT_MILVUS_URI"])
def test_on_shared_servers_it_needs_a_key(tmp_path: Path, shared: str) -> None:
    cli = InProcess(tmp_path / "data", {shared: "http://127.0.0.1:9"})
    assert "SEDIMENT_MCP_KEY" in cli.run("mcp", *ANA, code=2).err
    assert "SEDIMENT_API_KEYS_FILE" in cli.run("mcp", "--http", "--port", "0", code=2).err


def test_over_http_the_scope_is_no_option(cli: InProcess) -> None:
    assert "key" in cli.run("mcp", "--http", *ANA, code=2).err


def test_over_http_a_network_is_served_only_to_keys(cli: InProcess) -> None:
    said = cli.run("mcp", "--http", "--host", "0.0.0.0", "--port", "0", code=2).err
    assert "SEDIMENT_API_KEYS_FILE" in said

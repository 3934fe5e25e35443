"""``sediment mcp`` as an agent's program has it: another process, over stdio, real memory."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from connectors.filelog import FileLog
from connectors.query.keys_file import load_keys
from connectors.settings import Settings
from flows.runner import SystemClock
from stores.generations import Pointer, pointer_record
from tests.cli.in_process import ANA, InProcess, write_lines
from tests.e2e.cli import Sediment
from tests.rig.events import at, body


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


@pytest.fixture
def two(remembered: InProcess, tmp_path: Path) -> InProcess:
    """A settled folder, and a generation v2 that nothing was replayed into but one memory."""
    shutil.copytree(remembered.data_dir, tmp_path / "data")
    cli = InProcess(tmp_path / "data")
    dog = body("e9", content="I have a dog.", occurred_at=at(4000).isoformat())
    cli.run("ingest", str(write_lines(tmp_path / "dog.jsonl", dog)))
    cli.run("replay", "--into", "v2")
    return cli


async def told(client: Client, word: str) -> None:
    """Ask until an answer has a word in it. Raises ``TimeoutError`` when none ever has."""

    async def asking() -> None:
        while True:
            found = await client.call_tool("memory_search", {"query": "dog"})
            (content,) = found.content
            assert content.type == "text"
            assert not found.is_error, content.text
            if word in content.text:
                return
            await asyncio.sleep(0.2)

    await asyncio.wait_for(asking(), 60)


def promote(cli: InProcess, name: str) -> None:
    log = FileLog(cli.data_dir / "log", SystemClock())
    log.append([pointer_record("sediment.generations", Pointer(current=name))])


@pytest.mark.asyncio
async def test_on_stdio_it_goes_over_to_what_is_promoted(two: InProcess) -> None:
    async with Client(stdio_client(server(Sediment(two.data_dir), *ANA))) as client:
        before = await client.call_tool("memory_search", {"query": "dog"})
        assert "dog" not in str(before.content)
        promote(two, "v2")
        await told(client, "dog")
        promote(two, "nobody-made-this")  # cannot be opened: the one before goes on
        await told(client, "dog")


@pytest.mark.asyncio
async def test_over_http_it_goes_over_to_what_is_promoted(two: InProcess) -> None:
    sediment = Sediment(two.data_dir)
    process = sediment.start("mcp", "--http", "--port", "0")
    try:
        assert process.stderr is not None
        url = next(line for line in process.stderr if "serving tools on" in line).split()[-1]
        async with Client(url) as client:
            assert "recall" in {one.name for one in (await client.list_tools()).tools}
            promote(two, "v2")
            until = asyncio.get_running_loop().time() + 60
            while (line := process.stderr.readline()) and "serving generation v2" not in line:
                assert asyncio.get_running_loop().time() < until
            assert "recall" in {one.name for one in (await client.list_tools()).tools}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


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

"""``sediment serve`` and ``up``: what they refuse before anything is opened.

That they answer is tested end to end, in ``tests/e2e/test_up.py``.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from connectors.settings import Settings
from flows.cli.serving import listen
from stores.errors import SettingsError
from tests.cli.in_process import InProcess


@pytest.mark.parametrize("verb", ["serve", "up"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_network_is_not_served_without_keys(verb: str, host: str, cli: InProcess) -> None:
    printed = cli.run(verb, "--host", host, code=2)
    assert "SEDIMENT_API_KEYS_FILE" in printed.err
    assert not cli.data_dir.exists()


@pytest.mark.parametrize("shared", ["SEDIMENT_BROKERS", "SEDIMENT_MILVUS_URI"])
def test_servers_of_many_are_not_served_without_keys(shared: str, tmp_path: Path) -> None:
    cli = InProcess(tmp_path / "data", {shared: "http://127.0.0.1:9"})
    printed = cli.run("serve", "--port", "0", code=2)
    assert "SEDIMENT_API_KEYS_FILE" in printed.err
    assert shared.removeprefix("SEDIMENT_").lower() in printed.err


def test_up_says_that_it_does_not_use_the_brokers(tmp_path: Path) -> None:
    """What is sent to it would be looked for on Kafka."""
    cli = InProcess(tmp_path / "data", {"SEDIMENT_BROKERS": "127.0.0.1:9"})
    printed = cli.run("up", "--host", "192.0.2.1", code=2)
    assert "SEDIMENT_BROKERS is not used" in printed.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        ("[]", "holds no key"),
        ("{", "keys.json"),
        ('[{"id": "a"}]', "sha256"),
    ],
    ids=["missing", "empty", "broken", "wrong"],
)
def test_a_keys_file_that_is_wrong_is_named(content: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    cli = InProcess(tmp_path / "data", {"SEDIMENT_API_KEYS_FILE": str(file)})
    for verb in ("serve", "up"):
        assert said in cli.run(verb, code=2).err


def test_a_store_made_with_other_settings_is_not_served(remembered: InProcess) -> None:
    other = InProcess(remembered.data_dir, {"SEDIMENT_ANALYZER": "standard"})
    for verb in ("serve", "up"):
        printed = other.run(verb, "--port", "0", code=2)
        assert "jieba" in printed.err
        assert "standard" in printed.err


def test_who_calls_while_the_service_starts_is_refused_and_need_not_wait() -> None:
    with listen(Settings(host="127.0.0.1", port=0)) as taken:
        with (
            pytest.raises(ConnectionRefusedError),
            socket.create_connection(taken.getsockname(), 5),
        ):
            pass
        taken.listen()
        with socket.create_connection(taken.getsockname(), 5):
            pass


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(Settings(host="127.0.0.1", port=port))

"""``sediment config show``: what is in effect, where it comes from, and no secret of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.settings import Settings
from tests.cli.in_process import InProcess

SECRETS = {
    "SEDIMENT_LLM_API_KEY": "sk-one",
    "SEDIMENT_EMBEDDINGS_API_KEY": "sk-two",
    "SEDIMENT_MILVUS_TOKEN": "root:three",
    "SEDIMENT_KAFKA": '{"sasl.password": "four", "ssl.key.pem": "five", "client.id": "me"}',
}
VALUES = ("sk-one", "sk-two", "three", "four", "five")


def test_secrets_are_masked(tmp_path: Path) -> None:
    cli = InProcess(tmp_path, SECRETS)
    shown = cli.json("config", "show")
    assert {shown[name] for name in ("llm_api_key", "embeddings_api_key", "milvus_token")} == {
        "********"
    }
    assert shown["kafka"] == {
        "sasl.password": "********", "ssl.key.pem": "********", "client.id": "me",
    }  # fmt: skip
    for printed in (cli.text("config", "show", "--json"), cli.run("config", "show").out):
        assert not [secret for secret in VALUES if secret in printed]


def test_every_setting_is_shown_and_an_unset_secret_as_empty(cli: InProcess) -> None:
    shown = cli.json("config", "show")
    assert shown.keys() == Settings.model_fields.keys()
    assert shown["llm_api_key"] == ""
    assert shown["data_dir"] == str(cli.data_dir)
    narrow = InProcess(cli.data_dir, {"COLUMNS": "80"}).text("config", "show")
    for name in Settings.model_fields:  # one that is cut cannot be copied
        assert f"SEDIMENT_{name.upper()} " in narrow


def test_command_line_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = tmp_path / "sediment.toml"
    file.write_text('port = 1111\nhost = "::1"\nbrokers = "file:9092"\n')
    env = {
        "SEDIMENT_CONFIG": str(file),
        "SEDIMENT_HOST": "localhost",
        "SEDIMENT_BROKERS": "environment:9092",
    }
    shown = InProcess(tmp_path, env).json("config", "show", "--brokers", "option:9092")
    assert {name: shown[name] for name in ("brokers", "host", "port", "recall_limit")} == {
        "brokers": "option:9092",
        "host": "localhost",
        "port": 1111,
        "recall_limit": 10,
    }


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"SEDIMENT_PORT": "many"}, ["SEDIMENT_PORT"]),
        ({"SEDIMENT_PORT": "-1", "SEDIMENT_RECALL_LIMIT": "0"}, ["PORT", "RECALL_LIMIT"]),
        ({"SEDIMENT_SCOPE_FIELDS": '["agent"]'}, ["tenant"]),
        ({"SEDIMENT_CONFIG": "/no/such/file.toml"}, ["/no/such/file.toml"]),
        ({"SEDIMENT_KAFKA": "acks", "SEDIMENT_PORT": "x"}, ["SEDIMENT_KAFKA", "JSON", "_PORT"]),
        ({"SEDIMENT_LLM_PRICES": '{"m": [1]}'}, ["SEDIMENT_LLM_PRICES: m.1"]),
        ({"SEDIMENT_LLM_PRICES": '{"m": [1, -1]}'}, ["SEDIMENT_LLM_PRICES: m: a price"]),
        ({"SEDIMENT_LLM_DOLLARS_PER_DAY": "5"}, ["gpt-4o-mini has no price", "LLM_PRICES"]),
        ({"SEDIMENT_REQUIRE_BROKERS": "true"}, ["SEDIMENT_BROKERS: not set"]),
        ({"SEDIMENT_REDIS_URL": "redis.example.org:6379"}, ["SEDIMENT_REDIS_URL", "redis"]),
        (
            {"SEDIMENT_LLM_BASE_URL": "llm:80", "SEDIMENT_EMBEDDINGS_BASE_URL": "/v1"},
            ["SEDIMENT_LLM_BASE_URL", "SEDIMENT_EMBEDDINGS_BASE_URL", "https?://"],
        ),
    ],
    ids="one two scope file json price negative dollars brokers redis urls".split(),
)
def test_every_wrong_setting_is_named(
    env: dict[str, str], named: list[str], tmp_path: Path
) -> None:
    printed = InProcess(tmp_path, env).run("config", "show", code=2)
    assert all(name in printed.err for name in named)
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("text", "told"),
    [("port = = 1", "is not TOML"), ("prot = 1", "prot: there is no such setting")],
)
def test_a_wrong_file_is_named(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "sediment.toml"
    file.write_text(text)
    printed = InProcess(tmp_path, {"SEDIMENT_CONFIG": str(file)}).run("config", "show", code=2)
    assert told in printed.err


def test_a_misspelt_variable_is_warned_of_and_what_a_cluster_sets_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = {
        "SEDIMENT_LLM_MODL": "a model",
        "SEDIMENT_REDIS_PORT": "tcp://10.0.0.1:6379",
        "SEDIMENT_QUERY_SERVICE_HOST": "10.0.0.2",
    }
    for _ in range(2):
        InProcess(tmp_path, env).run("config", "show")
    told = "SEDIMENT_LLM_MODL is no setting and does nothing; did you mean SEDIMENT_LLM_MODEL?"
    assert [line for line in caplog.messages if "no setting" in line] == [told]


def test_no_process_begins_an_embedded_log_where_brokers_are_required(tmp_path: Path) -> None:
    cli = InProcess(tmp_path / "data", {"SEDIMENT_REQUIRE_BROKERS": "true"})
    for verb in (("run", "l1"), ("run", "--embedded"), ("serve",), ("mcp", "--http"), ("status",)):
        assert "SEDIMENT_BROKERS: not set" in cli.run(*verb, code=2).err
    assert not cli.data_dir.exists()

"""Commands, settings, ports and routes of the manifests and compose.yaml, held against the code."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from connectors.mcp.http import MCP_PATH
from connectors.query.keys_file import load_keys
from connectors.query.routes import health
from connectors.settings import Settings, load_settings
from flows.cli.main import app
from flows.topology import FLOWS
from stores.errors import SettingsError
from tests.deploy.manifests import (
    K8S,
    OVERLAYS,
    ROOT,
    compose,
    containers,
    env_of,
    of_kind,
    ours,
    pods,
)

OWN_WORDS = {"WORKERS", "PROCESSES", "PROCESS", "INTO", "ANSWERS"}
"""Variables that manifests put into the arguments themselves."""
IN_SECRETS = {
    "SEDIMENT_BROKERS": "kafka.example.org:9092",
    "SEDIMENT_MILVUS_URI": "https://milvus.example.org:19530",
    "SEDIMENT_REDIS_URL": "rediss://redis.example.org:6380/0",
    "SEDIMENT_UI_SECRET": "u" * 32,
}
METRICS = "/metrics"

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def expanded(args: list[str], env: dict[str, str | None]) -> list[str]:
    """Put variables into arguments, as Kubernetes does."""
    return [re.sub(r"\$\((\w+)\)", lambda found: env[found[1]] or "", one) for one in args]


def parsed(args: list[str]) -> tuple[str, dict[str, Any]]:
    """Find the command that arguments name, and its parameters. Raises click's own usage errors."""
    command: Any = typer.main.get_command(app)
    path, context = "sediment", command.make_context("sediment", list(args))
    while hasattr(command, "resolve_command"):
        rest = [*getattr(context, "_protected_args", []), *context.args]
        name, command, rest = command.resolve_command(context, rest)
        path += f" {name}"
        context = command.make_context(name, rest, parent=context)
    return path, context.params


def all_commands() -> list[tuple[str, list[str]]]:
    """Give where arguments of the image stand, and they, in both overlays and compose.yaml."""
    found = [
        (f"{overlay}:{where}", expanded(one["args"], env_of(overlay, one)))
        for overlay in OVERLAYS
        for where, one in ours(overlay)
    ]
    for name, one in compose()["services"].items():
        if one["image"].startswith("sediment:") and "command" in one:
            found.append((f"compose:{name}", one["command"]))
    return found


def test_every_command_is_one_of_the_cli() -> None:
    commands = {}
    for where, args in all_commands():
        commands[where], params = parsed(args)
        if "flow" in params:
            assert params["flow"] in FLOWS, where
            assert params["follow"] is True, where
    assert set(commands.values()) == {
        "sediment run",
        "sediment serve",
        "sediment mcp",
        "sediment topics create",
        "sediment replay",
        "sediment rebuild",
    }


def test_a_wrong_command_would_be_noticed() -> None:
    for wrong in (["run", "l1", "--worker", "2"], ["topic", "create"], ["serve", "--workers", "2"]):
        with pytest.raises(Exception, match="No such"):
            parsed(wrong)


@each_overlay
def test_all_flows_run_once(overlay: str) -> None:
    flows = [
        parsed(expanded(one["args"], env_of(overlay, one)))[1]["flow"]
        for _, one in ours(overlay)
        if one["args"][0] == "run"
    ]
    assert sorted(flows) == sorted(set(FLOWS) - {"all"})
    in_compose = [
        args[1]
        for where, args in all_commands()
        if where.startswith("compose") and args[0] == "run"
    ]
    assert sorted(in_compose) == sorted(flows)


def _known(names: set[str]) -> set[str]:
    settings = {f"SEDIMENT_{name.upper()}" for name in Settings.model_fields}
    return {name for name in names if name.startswith("SEDIMENT_")} - settings


@each_overlay
def test_variables_are_settings(overlay: str) -> None:
    for where, one in ours(overlay):
        names = set(env_of(overlay, one))
        assert _known(names) == set(), where
        others = {name for name in names if not name.startswith("SEDIMENT_")}
        assert others <= OWN_WORDS, where
        used = set(re.findall(r"\$\((\w+)\)", " ".join(one["args"])))
        assert used == others, where


def test_variables_of_other_files_are_settings() -> None:
    names = {
        name
        for one in compose()["services"].values()
        if one["image"].startswith("sediment:")
        for name in one["environment"]
    }
    for path in [*K8S.rglob("*.env"), *K8S.rglob("*.env.example"), ROOT / "Dockerfile"]:
        names |= set(re.findall(r"\b(SEDIMENT_[A-Z0-9_]+)=", path.read_text()))
    assert len(names) > 15
    assert _known(names) == set()
    assert _known({"SEDIMENT_PROT"}) == {"SEDIMENT_PROT"}


@each_overlay
def test_settings_of_every_container_are_valid(
    overlay: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for where, one in ours(overlay):
        with monkeypatch.context() as env:
            for name, value in env_of(overlay, one).items():
                env.setenv(name, IN_SECRETS[name] if value is None else value)
            settings = load_settings(data_dir=tmp_path)
            with pytest.raises(SettingsError, match="SEDIMENT_BROKERS: not set"):
                load_settings(data_dir=tmp_path, brokers="")  # as without its Secret
        assert settings.log_format == "json", where
        assert not settings.embedded and settings.milvus_uri and settings.redis_url, where
        ports = {port["containerPort"] for port in one.get("ports", [])}
        if one["args"][0] == "run":
            assert ports == {settings.metrics_port}, where
            assert settings.metrics_host == "0.0.0.0", where
        elif ports:
            assert ports == {settings.port}, where
            assert settings.host == "0.0.0.0", where
            assert settings.api_keys_file is not None
            mounted = {mount["mountPath"]: mount for mount in one["volumeMounts"]}
            assert mounted[str(settings.api_keys_file.parent)]["readOnly"] is True


@each_overlay
def test_data_is_where_the_image_says(overlay: str) -> None:
    [folder] = re.findall(r"SEDIMENT_DATA_DIR=(\S+)", (ROOT / "Dockerfile").read_text())
    for where, one in ours(overlay):
        mounts = {mount["mountPath"] for mount in one["volumeMounts"]}
        assert {folder, "/tmp"} <= mounts, where


def test_a_keys_file_is_read_from_where_a_secret_puts_it(tmp_path: Path) -> None:
    """A mounted Secret is a link to a link; a new one is another file behind the same name."""
    for folder, name in (("..1", "first"), ("..2", "second")):
        (tmp_path / folder).mkdir()
        digest = hashlib.sha256(name.encode()).hexdigest()
        entry = {"id": name, "sha256": digest, "tenant": "acme"}
        (tmp_path / folder / "keys.json").write_text(json.dumps([entry]))
    link = tmp_path / "..data"
    link.symlink_to("..1")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    keys = load_keys(load_settings(api_keys_file=tmp_path / "keys.json", data_dir=tmp_path))
    assert keys is not None and keys.find("first") and not keys.find("second")
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(link)
    assert keys.find("second") and not keys.find("first")


@each_overlay
def test_ports_are_those_of_a_container(overlay: str) -> None:
    served = {
        where: {port["name"] for one in pod["spec"]["containers"] for port in one.get("ports", [])}
        for where, pod in pods(overlay)
    }
    labels = {where: pod["metadata"]["labels"].items() for where, pod in pods(overlay)}
    for service in of_kind(overlay, "Service"):
        [where] = [
            where for where in labels if service["spec"]["selector"].items() <= labels[where]
        ]
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in served[where], service["metadata"]["name"]
    every = set().union(*served.values())
    for policy in of_kind(overlay, "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            names = {port["port"] for port in rule["ports"] if "endPort" not in port}
            assert names <= every  # a range is of processes that meet: test_cluster.py


@each_overlay
def test_the_status_page_asks_every_flow_and_is_let_through(overlay: str) -> None:
    [query] = [one for where, one in ours(overlay) if where.endswith("/query")]
    asked = json.loads(env_of(overlay, query)["SEDIMENT_FLOW_METRICS"] or "")
    served = {}
    for service in of_kind(overlay, "Service"):
        for port in service["spec"]["ports"]:
            if port["name"].endswith("-metrics"):
                host = service["metadata"]["name"]
                served[f"http://{host}:{port['port']}{METRICS}"] = port["name"]
    assert set(asked) == set(served)
    numbers = {
        port["name"]: port["containerPort"]
        for _, one in ours(overlay)
        for port in one.get("ports", [])
    }
    assert all(f":{numbers[name]}{METRICS}" in address for address, name in served.items())
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(overlay, "NetworkPolicy")}
    flows, page = policies["status-page"], policies["status-page-asks"]
    assert flows["podSelector"] == page["egress"][0]["to"][0]["podSelector"]
    assert flows["ingress"][0]["from"][0]["podSelector"] == page["podSelector"]
    for rule in (flows["ingress"][0], page["egress"][0]):
        assert {port["port"] for port in rule["ports"]} == set(served.values())


def test_the_status_page_of_compose_asks_every_flow() -> None:
    services = compose()["services"]
    asked = json.loads(services["query"]["environment"]["SEDIMENT_FLOW_METRICS"])
    flows = {
        f"http://{name}:{one['environment']['SEDIMENT_METRICS_PORT']}{METRICS}"
        for name, one in services.items()
        if one.get("command", [""])[0] == "run"
    }
    assert set(asked) == flows and len(asked) == len(flows)


@each_overlay
def test_probes_ask_for_routes_that_exist(overlay: str) -> None:
    routes = {getattr(route, "path", "") for route in health.router.routes}
    asked: dict[str, set[str]] = {}
    for where, one in containers(overlay):
        names = {port["name"] for port in one.get("ports", [])}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = one.get(kind, {})
            for way in ("httpGet", "tcpSocket"):
                if way in probe:
                    assert probe[way]["port"] in names, where
            if "httpGet" in probe and "sediment" in where:
                asked.setdefault(where, set()).add(probe["httpGet"]["path"])
    assert len(asked) == 6  # four flows, query, MCP
    assert all(paths == {"/healthz", "/readyz"} for paths in asked.values())
    for where, one in containers(overlay):
        if one.get("args", [""])[0] == "--verbose":  # query and MCP: a broker that restarts
            assert one["startupProbe"]["httpGet"]["path"] == "/readyz", where  # must not take
            assert one["readinessProbe"]["httpGet"]["path"] == "/healthz", where  # all pods out
    assert {"/healthz", "/readyz", METRICS} <= routes


@each_overlay
def test_pods_are_given_time_to_stop(overlay: str) -> None:
    """Flows take about 10 s and are to get 20; a request may take 30 s after the pause."""
    for where, pod in pods(overlay):
        if where.startswith("StatefulSet/sediment"):
            assert pod["spec"]["terminationGracePeriodSeconds"] >= 20, where
        if where.startswith("Deployment"):
            [one] = pod["spec"]["containers"]
            pause = one["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert pod["spec"]["terminationGracePeriodSeconds"] >= pause + 30, where


def test_the_page_names_the_path_of_mcp() -> None:
    assert MCP_PATH in (K8S / "base" / "mcp.yaml").read_text()

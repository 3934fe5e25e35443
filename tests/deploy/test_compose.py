"""compose.yaml keeps to the Compose specification, and its parts fit each other."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from compose_spec import PyOptions

from connectors.settings import load_settings
from tests.deploy.manifests import COMPOSE, K8S, ROOT, compose

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
MINE = {name: one for name, one in SERVICES.items() if one["image"].startswith("sediment:")}


def read_strictly(text: str) -> None:
    """Read by the specification; raises on a key or value that it does not know."""
    PyOptions(apply_merge=True).from_yaml(text).validate()


def test_it_keeps_to_the_specification() -> None:
    read_strictly(COMPOSE.read_text())


@pytest.mark.parametrize("wrong", ["restrat: always", "ports: [http]", "depends_on: [7]"])
def test_what_the_specification_does_not_know_is_noticed(wrong: str) -> None:
    document = copy.deepcopy(compose())
    key, _, value = wrong.partition(": ")
    document["services"]["redis"][key] = yaml.safe_load(value)
    with pytest.raises((ValueError, TypeError)):
        read_strictly(yaml.safe_dump(document))


def test_services_wait_for_what_there_is() -> None:
    for name, one in SERVICES.items():
        waits = one.get("depends_on", {})
        assert set(waits) <= set(SERVICES), name
        for other, how in waits.items() if isinstance(waits, dict) else []:
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for {other}"


def test_volumes_are_declared_and_files_exist() -> None:
    named = set()
    for name, one in SERVICES.items():
        for volume in one.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name}: {source}"
            else:
                named.add(source)
    assert named == set(compose()["volumes"])


def test_ports_are_open_on_this_machine_only() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", MINE)
def test_our_services_are_hardened(name: str) -> None:
    one = MINE[name]
    assert one["read_only"] is True and one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert one["user"] == "65532:65532"
    assert "/tmp" in one["tmpfs"]


@pytest.mark.parametrize("name", MINE)
def test_settings_are_valid_and_name_the_services(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in MINE[name]["environment"].items():
        default = value.partition(":-")[2].rstrip("}") if value.startswith("${") else value
        monkeypatch.setenv(variable, default)
    settings = load_settings()
    hosts = [settings.brokers, settings.milvus_uri, settings.redis_url]
    assert [host.rpartition("//")[2].partition(":")[0] for host in hosts] == [
        "kafka",
        "milvus",
        "redis",
    ]
    for port in MINE[name].get("ports", []):
        assert port.rpartition(":")[2] == str(settings.port)


def test_prometheus_asks_the_ports_that_are_served() -> None:
    config = yaml.safe_load((K8S / "compose" / "prometheus.yml").read_text())
    asked = {
        job["job_name"]: target
        for job in config["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    served = {}
    for name, one in MINE.items():
        if one.get("command", [""])[0] == "run":
            port = one["environment"]["SEDIMENT_METRICS_PORT"]
            served[f"sediment-{name}"] = f"{name}:{port}"
    for name in ("query", "mcp"):
        served[f"sediment-{name}"] = f"{name}:{MINE[name]['environment']['SEDIMENT_PORT']}"
    assert asked == served

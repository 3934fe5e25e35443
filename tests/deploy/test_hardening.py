"""What every pod keeps to: no root, nothing written, nothing granted, no secret in a file."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import urlsplit

import pytest

from connectors.settings import Settings
from flows import PIPELINE
from tests.deploy.manifests import (
    K8S,
    OVERLAYS,
    ROOT,
    compose,
    containers,
    of_kind,
    ours,
    pods,
)

USER = 65532
ROOT_ALLOWED = {"StatefulSet/milvus"}
"""Milvus' 2.6 images let root alone run the executable."""
WRITES_ALLOWED = {"StatefulSet/milvus/milvus", "StatefulSet/kafka/kafka"}
"""Their images write into themselves at start. Both are in the overlay dev only."""
TOKEN_ALLOWED = {"CronJob/sediment-rescale"}
"""What it may do with it: test_cluster.py."""
SECRET = {f"SEDIMENT_{name.upper()}" for name, field in Settings.model_fields.items()
          if "SecretStr" in str(field.annotation)} | {"SEDIMENT_KAFKA"}  # fmt: skip
PINNED = re.compile(r"^[a-z0-9./-]+:(?!latest)[A-Za-z0-9._-]*\d[A-Za-z0-9._-]*$")

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@each_overlay
def test_no_pod_runs_as_root_or_may_become_it(overlay: str) -> None:
    for where, pod in pods(overlay):
        context = pod["spec"]["securityContext"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert context["runAsNonRoot"] is (where not in ROOT_ALLOWED), where
    for where, one in containers(overlay):
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, where
        assert context["capabilities"] == {"drop": ["ALL"]}, where
        assert context["readOnlyRootFilesystem"] is (where not in WRITES_ALLOWED), where
        assert "privileged" not in context, where


def test_prod_has_no_exception() -> None:
    assert not ROOT_ALLOWED & {where for where, _ in pods("prod")}
    assert not WRITES_ALLOWED & {where for where, _ in containers("prod")}
    [namespace] = of_kind("prod", "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@each_overlay
def test_pods_run_as_the_user_of_the_image(overlay: str) -> None:
    mine = {where.rpartition("/")[0] for where, _ in ours(overlay)}
    for where, pod in pods(overlay):
        if where in mine:
            context = pod["spec"]["securityContext"]
            assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == USER
    assert f"\nUSER {USER}:{USER}\n" in (ROOT / "Dockerfile").read_text()


@each_overlay
def test_pods_get_no_token_and_no_service_links(overlay: str) -> None:
    """A service named ``sediment`` would set SEDIMENT_PORT=tcp://..., and nothing would start."""
    for where, pod in pods(overlay):
        assert pod["spec"]["automountServiceAccountToken"] is (where in TOKEN_ALLOWED), where
        assert pod["spec"]["enableServiceLinks"] is False, where
        assert "hostNetwork" not in pod["spec"] and "hostPID" not in pod["spec"], where
        assert not [one for one in pod["spec"].get("volumes", []) if "hostPath" in one], where


@each_overlay
def test_every_container_says_what_it_needs(overlay: str) -> None:
    for where, one in containers(overlay):
        for bound in ("requests", "limits"):
            assert set(one["resources"][bound]) == {"cpu", "memory"}, where
        if not where.startswith(("Job", "CronJob")):
            assert "livenessProbe" in one and "readinessProbe" in one, where


def _images() -> list[str]:
    found = [one["image"] for overlay in OVERLAYS for _, one in containers(overlay)]
    return found + [one["image"] for one in compose()["services"].values()]


def test_images_are_pinned() -> None:
    assert [image for image in _images() if not PINNED.match(image)] == []
    assert not PINNED.match("redis:latest") and not PINNED.match("redis")
    bases = re.findall(r"^ARG PYTHON_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(bases) == 1 and re.fullmatch(r"python:3\.1[0-2]\.\d+-slim-\w+", bases[0])


def test_our_image_has_the_version_of_the_project() -> None:
    version = PIPELINE.partition("/")[2]
    mine = {image for image in _images() if "sediment" in image}
    assert {image.rpartition(":")[2] for image in mine} == {version}
    assert f'image.version="{version}"' in (ROOT / "Dockerfile").read_text()


def _texts() -> dict[str, str]:
    files = [path for path in K8S.rglob("*") if path.is_file()]
    files += [ROOT / "compose.yaml", ROOT / "Dockerfile"]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


def literal_secrets(text: str) -> list[str]:
    """Find lines that give a secret setting, or a password in an address, a value."""
    names = "|".join(sorted(SECRET))
    given = re.compile(
        rf"^[ \t]*-?[ \t]*(?:{names})[ \t]*[:=][ \t]*(?!\$\{{|$)(\S.*)$", re.MULTILINE
    )
    address = re.compile(r"\w+://[^\s/@:]*:[^\s/@]+@\S+")
    return [*given.findall(text), *address.findall(text)]


def test_no_secret_is_in_a_file() -> None:
    assert {
        name: found for name, text in _texts().items() if (found := literal_secrets(text))
    } == {}


def test_a_secret_would_be_noticed() -> None:
    assert literal_secrets("SEDIMENT_MILVUS_TOKEN=root:Milvus") == ["root:Milvus"]
    assert literal_secrets("  SEDIMENT_LLM_API_KEY: sk-123") == ["sk-123"]
    assert literal_secrets("a=redis://user:word@redis:6379/0")
    assert not literal_secrets("SEDIMENT_LLM_API_KEY: ${SEDIMENT_LLM_API_KEY:-}")
    assert not literal_secrets("SEDIMENT_LLM_API_KEY=\nSEDIMENT_REDIS_URL=redis://redis:6379/0")


def test_secrets_of_dev_hold_addresses_only() -> None:
    for one in of_kind("dev", "Secret"):
        for value in one["data"].values():
            text = base64.b64decode(value).decode()
            assert urlsplit(text if "//" in text else f"//{text}").username is None
    assert of_kind("prod", "Secret") == []


def _allowed_ports(overlay: str, labels: dict[str, str], way: str) -> list[dict[str, Any]]:
    found = []
    for policy in of_kind(overlay, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]
        expressions = selector.get("matchExpressions", [])
        meant = selector.get("matchLabels", {}).items() <= labels.items() and all(
            labels.get(one["key"]) in one["values"] for one in expressions
        )
        if meant:
            found += policy["spec"].get(way, [])
    return found


@each_overlay
def test_traffic_is_denied_but_for_what_is_named(overlay: str) -> None:
    everything = [
        one["spec"]
        for one in of_kind(overlay, "NetworkPolicy")
        if one["spec"]["podSelector"] == {}
        and set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    ]
    assert everything == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]
    for where, pod in pods(overlay):
        names = {port["name"] for one in pod["spec"]["containers"] for port in one.get("ports", [])}
        labels = pod["metadata"]["labels"]
        incoming = _allowed_ports(overlay, labels, "ingress")
        assert all(rule["from"] and rule["ports"] for rule in incoming), where
        opened = {port["port"] for rule in incoming for port in rule["ports"]} & names
        assert opened == names - {"health"}, f"{where}: every port that is served, and no other"
        assert all(rule["ports"] for rule in _allowed_ports(overlay, labels, "egress")), where

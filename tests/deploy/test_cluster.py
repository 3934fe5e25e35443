"""Several processes of a flow in a cluster: where they meet, and the Job that changes how many."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from connectors.settings import load_settings
from flows.cluster import member_of
from tests.deploy.manifests import OVERLAYS, env_of, kubectl, of_kind
from tests.deploy.test_against_code import expanded, parsed

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
NUMBERS = (2, 4, 9, 10, 16)
NOBODY = "http://127.0.0.1:1"


def flows_of_several(overlay: str) -> dict[str, dict[str, Any]]:
    """Give the StatefulSets that may have several pods, by flow."""
    return {
        one["spec"]["template"]["spec"]["containers"][0]["name"]: one
        for one in of_kind(overlay, "StatefulSet")
        if "--processes" in one["spec"]["template"]["spec"]["containers"][0].get("args", [])
    }


def told(overlay: str, one: dict[str, Any], processes: int, process: int) -> dict[str, Any]:
    """Give the parameters that the command of a pod gets."""
    [container] = one["spec"]["template"]["spec"]["containers"]
    env = env_of(overlay, container) | {"PROCESSES": str(processes), "PROCESS": str(process)}
    return parsed(expanded(container["args"], env))[1]


@each_overlay
def test_pods_are_as_many_as_they_are_told(overlay: str) -> None:
    flows = flows_of_several(overlay)
    assert set(flows) == {"l0", "l1"}
    for one in flows.values():
        spec = one["spec"]
        env = env_of(overlay, spec["template"]["spec"]["containers"][0])
        assert spec["replicas"] == int(env["PROCESSES"] or 0)
        assert spec["podManagementPolicy"] == "Parallel", "one after the other they wait for ever"
        [index] = [
            one["valueFrom"]["fieldRef"]["fieldPath"]
            for one in spec["template"]["spec"]["containers"][0]["env"]
            if one["name"] == "PROCESS"
        ]
        assert index == "metadata.labels['apps.kubernetes.io/pod-index']"


@each_overlay
@pytest.mark.parametrize("processes", NUMBERS)
def test_pods_meet_where_they_are_let_through(
    overlay: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.cluster._wait_for_name", lambda host: None)
    settings = load_settings(brokers="k:9092", milvus_uri="http://m:1", redis_url="redis://r:1/0")
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(overlay, "NetworkPolicy")}
    for flow, one in flows_of_several(overlay).items():
        last = told(overlay, one, processes, processes - 1)
        assert (last["processes"], last["number"]) == (processes, processes - 1)
        member = member_of(settings, last["flow"], last["number"], processes, last["peers"])
        assert member is not None
        name, service = one["metadata"]["name"], one["spec"]["serviceName"]
        hosts = [address.rpartition(":")[0] for address in member.addresses]
        assert hosts == [f"{name}-{number}.{service}" for number in range(processes)]
        port = int(member.addresses[0].rpartition(":")[2])
        policy, mine = policies[f"peers-{flow}"], one["spec"]["template"]["metadata"]["labels"]
        for rule, side in ((policy["ingress"][0], "from"), (policy["egress"][0], "to")):
            [other] = rule[side]
            for selector in (policy["podSelector"], other["podSelector"]):
                assert selector["matchLabels"].items() <= mine.items()
                assert selector["matchLabels"]["app.kubernetes.io/component"] == flow
            assert any(let["port"] <= port <= let["endPort"] for let in rule["ports"])


def test_pods_that_were_told_different_numbers_never_meet() -> None:
    for one in flows_of_several("prod").values():
        peers = [told("prod", one, number, 0)["peers"] for number in range(1, 100)]
        assert len(set(peers)) == len(peers)


# --- the Job ---------------------------------------------------------------------------------


def rescale(overlay: str) -> dict[str, Any]:
    [job] = [
        one for one in of_kind(overlay, "CronJob") if one["metadata"]["name"] == "sediment-rescale"
    ]
    assert job["spec"]["suspend"] is True
    pod: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return pod


def steps(overlay: str, flow: str, processes: int) -> list[list[str]]:
    """Give the arguments of kubectl, one step after the other."""
    pod = rescale(overlay)
    words: dict[str, str | None] = {"FLOW": flow, "PROCESSES": str(processes)}
    every = [*pod["initContainers"], *pod["containers"]]
    assert len(pod["containers"]) == 1, "containers would run side by side"
    for one in every:
        assert set(env_of(overlay, one)) == set(words)
    return [expanded(one["args"], words) for one in every]


def test_the_job_stops_all_then_says_how_many_then_starts_them() -> None:
    for flow, one in flows_of_several("prod").items():
        of = f"statefulset/{one['metadata']['name']}"
        stop, ended, told_to, start, ready = steps("prod", flow, 4)
        assert stop == ["scale", of, "--replicas=0"]
        [selector] = [word for word in ended if word.startswith("--selector=")]
        labels = dict(pair.split("=") for pair in selector.removeprefix("--selector=").split(","))
        assert labels.items() <= one["spec"]["template"]["metadata"]["labels"].items()
        assert labels["app.kubernetes.io/component"] == flow
        assert start == ["scale", of, "--replicas=4"]
        assert ready[:3] == ["rollout", "status", of]
        assert (ended[:3], told_to[:3]) == (["wait", "pod", "--for=delete"], ["set", "env", of])
        grace = one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert f"--timeout={5}m" in ended and grace < 5 * 60


def test_the_number_that_the_job_says_is_the_one_that_pods_read() -> None:
    for flow, one in flows_of_several("prod").items():
        told_to = steps("prod", flow, 4)[2]
        command = [
            kubectl(),
            *told_to[:2],
            "--local",
            "--filename=-",
            *told_to[3:],
            "--output=yaml",
        ]
        done = subprocess.run(
            command, input=yaml.safe_dump(one), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert told("prod", yaml.safe_load(done.stdout), 4, 0) == told("prod", one, 4, 0)
        [container] = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]["containers"]
        assert env_of("prod", container)["PROCESSES"] == "4"


def test_kubectl_knows_every_word_of_the_job() -> None:
    """It gets as far as asking the cluster, which is not there."""
    for step in [*steps("prod", "l1", 4), ["scale", "statefulset/x", "--replica=0"]]:
        if step[:2] == ["set", "env"]:
            continue  # run above
        done = subprocess.run(
            [kubectl(), f"--server={NOBODY}", *step], capture_output=True, text=True, check=False
        )
        assert ("refused" in done.stderr) is (step[-1] != "--replica=0"), done.stderr


@each_overlay
def test_the_job_may_change_those_flows_and_nothing_else(overlay: str) -> None:
    [account] = [
        one for one in of_kind(overlay, "ServiceAccount") if one["metadata"]["name"] != "sediment"
    ]
    assert rescale(overlay)["serviceAccountName"] == account["metadata"]["name"]
    [role], [binding] = of_kind(overlay, "Role"), of_kind(overlay, "RoleBinding")
    assert of_kind(overlay, "ClusterRole", "ClusterRoleBinding") == []
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    assert subject["name"] == account["metadata"]["name"]
    assert subject["namespace"] == account["metadata"]["namespace"]
    changing = [rule for rule in role["rules"] if set(rule["verbs"]) - {"get", "list", "watch"}]
    [rule] = changing
    assert set(rule["resources"]) == {"statefulsets", "statefulsets/scale"}
    names = {one["metadata"]["name"] for one in flows_of_several(overlay).values()}
    assert set(rule["resourceNames"]) == names
    assert {name for rule in role["rules"] for name in rule["resources"]} == {
        *rule["resources"],
        "pods",
    }

"""Dashboards and alerts ask for metrics, labels and values that the code has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from connectors import metrics
from connectors.settings import Settings
from tests.deploy.manifests import K8S, ROOT, compose, of_kind

BUILT_IN = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total",
            "process_start_time_seconds"}  # fmt: skip
"""Prometheus' own, and what its Python client says of each process."""
OF_A_TARGET = {"job", "instance"}
RULES = yaml.safe_load((K8S / "compose" / "alerts.yml").read_text())
BOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((K8S / "components" / "monitoring" / "dashboards").glob("*.json"))
}
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
PANELS = {
    f"{name}/{panel['title']}/{target['refId']}": target
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel.get("targets", [])
}
EXPRESSIONS = {name: rule["expr"] for name, rule in ALERTS.items()} | {
    name: target["expr"] for name, target in PANELS.items()
}


@cache
def declared() -> dict[str, set[str]]:
    """Give every series of ours with its labels."""
    series: dict[str, set[str]] = {}
    for value in vars(metrics).values():
        if isinstance(value, MetricWrapperBase):
            labels, name = set(value._labelnames), value._name
            if isinstance(value, Counter):
                series[f"{name}_total"] = labels
            elif isinstance(value, Histogram):
                series[f"{name}_bucket"] = labels | {"le"}
                series |= {f"{name}_count": labels, f"{name}_sum": labels}
            else:
                series[name] = labels
    return series


def inside(expression: Any) -> Iterator[Any]:
    """Give an expression and all that it is made of."""
    yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector", "args"):
        child = getattr(expression, name, None)
        for one in child if isinstance(child, list) else [child]:
            if one is not None:
                yield from inside(one)


def series_of(text: str) -> list[Any]:
    return [one for one in inside(promql.parse(text)) if isinstance(one, promql.VectorSelector)]


def problems(text: str) -> list[str]:
    """Say which metrics and labels of an expression the code does not have."""
    found, labels = [], set(OF_A_TARGET)
    for one in series_of(text):
        if one.name in BUILT_IN:
            continue
        if one.name not in declared():
            found.append(f"no metric {one.name}")
            continue
        labels |= declared()[one.name]
        for matcher in one.matchers.matchers:
            if matcher.name not in declared()[one.name] | OF_A_TARGET:
                found.append(f"{one.name} has no label {matcher.name}")
            elif matcher.name not in OF_A_TARGET and f'"{matcher.value}"' not in source():
                found.append(f"no code sets {matcher.name} to {matcher.value}")
    for one in inside(promql.parse(text)):
        if isinstance(one, promql.AggregateExpr) and one.modifier is not None:
            found += [
                f"nothing has {label}" for label in one.modifier.labels if label not in labels
            ]
    return found


@cache
def source() -> str:
    """Give all code that may set a label."""
    folders = ("flows", "connectors", "stores")
    return "\n".join(
        path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
    )


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_ask_for_what_there_is(name: str) -> None:
    assert problems(EXPRESSIONS[name]) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sum(rate(sediment_outcome_total[5m]))", "no metric sediment_outcome_total"),
        ("sediment_outcomes", "no metric sediment_outcomes"),
        ('sediment_outcomes_total{reason="x"}', "sediment_outcomes_total has no label reason"),
        ('sediment_dead_letters_total{reason="wrng"}', "no code sets reason to wrng"),
        ("sum by (steg) (sediment_stage_pending)", "nothing has steg"),
    ],
)
def test_what_there_is_not_would_be_noticed(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_quantiles_are_taken_of_buckets() -> None:
    for name, text in EXPRESSIONS.items():
        if "histogram_quantile" in text:
            assert all(one.name.endswith("_bucket") for one in series_of(text)), name


def test_legends_name_labels_that_are_left() -> None:
    for name, target in PANELS.items():
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        parsed = promql.parse(target["expr"])
        aggregate = next(
            (one for one in inside(parsed) if isinstance(one, promql.AggregateExpr)), None
        )
        left = OF_A_TARGET if aggregate is None else set(getattr(aggregate.modifier, "labels", []))
        assert shown <= left, name


def test_every_metric_is_on_a_dashboard() -> None:
    asked = {one.name for target in PANELS.values() for one in series_of(target["expr"])}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in declared()}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked}
    assert families - shown == set(), "give each a panel in k8s/components/monitoring/dashboards"


def test_jobs_are_those_that_are_scraped() -> None:
    config = yaml.safe_load((K8S / "compose" / "prometheus.yml").read_text())
    in_compose = {job["job_name"] for job in config["scrape_configs"]}
    [monitor] = of_kind("prod", "ServiceMonitor")
    endpoints = {
        endpoint["relabelings"][0]["replacement"]: endpoint["port"]
        for endpoint in monitor["spec"]["endpoints"]
    }
    assert set(endpoints) == in_compose
    ports = {
        port["name"]
        for service in of_kind("prod", "Service")
        if monitor["spec"]["selector"]["matchLabels"].items()
        <= service["metadata"]["labels"].items()
        for port in service["spec"]["ports"]
    }
    assert set(endpoints.values()) <= ports
    for name, text in EXPRESSIONS.items():
        for one in series_of(text):
            for matcher in one.matchers.matchers:
                if matcher.name == "job":
                    assert any(re.fullmatch(matcher.value, job) for job in in_compose), name


def test_both_copies_of_the_alerts_are_the_same() -> None:
    [rule] = of_kind("prod", "PrometheusRule")
    assert rule["spec"] == RULES


def test_every_alert_says_how_bad_and_what_to_do() -> None:
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert all(rule["annotations"][part] for part in ("summary", "action")), name
        shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        names = {label for one in series_of(rule["expr"]) for label in declared().get(one.name, ())}
        assert shown <= names | OF_A_TARGET, name


def test_thresholds_are_those_of_the_settings() -> None:
    fields = Settings.model_fields
    assert f">= {fields['pending_cap'].default}" in ALERTS["SedimentReadingPaused"]["expr"]
    half = fields["recall_timeout_s"].default / 2
    assert ALERTS["SedimentRecallSlow"]["expr"].endswith(f"> {half}")


def test_thresholds_lie_inside_the_buckets() -> None:
    """A quantile is never above the last bucket, so an alert beyond it would never fire."""
    for name, rule in ALERTS.items():
        if "histogram_quantile" in rule["expr"]:
            [series] = series_of(rule["expr"])
            [metric] = [
                value
                for value in vars(metrics).values()
                if isinstance(value, Histogram) and f"{value._name}_bucket" == series.name
            ]
            limit = float(rule["expr"].rpartition(">")[2])
            assert limit < max(bound for bound in metric._upper_bounds if bound < float("inf")), (
                name
            )


@pytest.mark.parametrize("name", BOARDS)
def test_dashboards_hang_together(name: str) -> None:
    board = BOARDS[name]
    assert board["uid"] == name
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    placed = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(placed) == len(set(placed))
    [variable] = board["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")


def test_dashboards_are_where_grafana_looks() -> None:
    provider = yaml.safe_load((K8S / "compose" / "grafana" / "dashboards.yml").read_text())
    path = provider["providers"][0]["options"]["path"]
    mounts = [one.split(":")[1] for one in compose()["services"]["grafana"]["volumes"]]
    assert path in mounts
    maps = [one for one in of_kind("prod", "ConfigMap") if "grafana_dashboard" in
            one["metadata"].get("labels", {})]  # fmt: skip
    assert [sorted(one["data"]) for one in maps] == [sorted(f"{name}.json" for name in BOARDS)]

"""What the metrics of a process say of its stages and of its model: for status page and command."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import Metric

__all__ = ["ModelFigures", "StageFigures", "model_figures", "stage_figures"]

_PREFIX = "sediment_stage_"


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What a process says of one stage.

    :arg retries: calls that failed and were tried again, since the process started.
    :arg retries_waiting: items that wait to be tried again now.
    :arg oldest_pending_s: seconds for which the oldest pending item has been in the stage.
    """

    stage: str
    pending: int
    in_flight: int
    retries: int
    retries_waiting: int
    oldest_pending_s: float


def stage_figures(families: Iterable[Metric]) -> list[StageFigures]:
    """Read what metrics say of each stage, in the order they name them."""
    figures: dict[str, defaultdict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            if sample.name.startswith(_PREFIX) and "stage" in sample.labels:
                counted = figures.setdefault(sample.labels["stage"], defaultdict(float))
                counted[sample.name.removeprefix(_PREFIX)] += sample.value
    return [
        StageFigures(
            stage=stage,
            pending=int(counted["pending"]),
            in_flight=int(counted["in_flight"]),
            retries=int(counted["retries_total"]),
            retries_waiting=int(counted["retries_waiting"]),
            oldest_pending_s=counted["oldest_pending_seconds"],
        )
        for stage, counted in figures.items()
    ]


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What processes say of the calls of one model, since they started.

    :arg calls: that were sent; ``failed`` of them gave no answer.
    :arg dollars: by ``SEDIMENT_LLM_PRICES``; 0 for a model without a price.
    """

    model: str
    calls: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    dollars: float


def model_figures(families: Iterable[Metric]) -> list[ModelFigures]:
    """Add up what metrics say of each model, in the order they name them."""
    counted: dict[str, defaultdict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            name = sample.name.removeprefix("sediment_llm_")
            if name in ("calls_total", "tokens_total", "cost_dollars_total"):
                of_model = counted.setdefault(sample.labels["model"], defaultdict(float))
                of_model[name] += sample.value
                of_model[sample.labels.get("kind") or sample.labels.get("result", "")] += (
                    sample.value
                )
    return [
        ModelFigures(
            model=model,
            calls=int(of["calls_total"]),
            failed=int(of["calls_total"] - of["ok"]),
            prompt_tokens=int(of["prompt"]),
            completion_tokens=int(of["completion"]),
            dollars=of["cost_dollars_total"],
        )
        for model, of in counted.items()
    ]

"""What the metrics of a process say of its stages: for the status page and the command."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import Metric

__all__ = ["StageFigures", "stage_figures"]

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

"""What the processes of the flows say of themselves: from metrics, their own or over HTTP."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import httpx
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["FlowProcess", "StageFigures", "look_at_processes", "stage_figures"]

_PREFIX = "sediment_stage_"
_TIMEOUT_S = 2.0
THIS = "this process"


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What a process says of one stage.

    :arg retries: calls that failed and were tried again, since the process started.
    :arg retries_waiting: items that wait to be tried again now.
    :arg oldest_s: seconds for which the oldest pending item has been in the stage.
    """

    stage: str
    pending: int
    in_flight: int
    retries: int
    retries_waiting: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class FlowProcess:
    """One process that runs flows. ``problem`` says why it did not answer.

    :arg flows: which ones, where that is known.
    """

    name: str
    flows: tuple[str, ...] = ()
    stages: tuple[StageFigures, ...] = ()
    since: datetime | None = None
    problem: str = ""


async def look_at_processes(
    addresses: Sequence[str], own_flows: tuple[str, ...] = ()
) -> list[FlowProcess]:
    """Ask this process, where it runs flows, and those at some metrics addresses; in this order."""
    own = [replace(_process(THIS, REGISTRY.collect()), flows=own_flows)] if own_flows else []
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
        others = await asyncio.gather(*(_ask(client, one) for one in addresses))
    return [*own, *others]


async def _ask(client: httpx.AsyncClient, address: str) -> FlowProcess:
    try:
        answer = await client.get(address)
        answer.raise_for_status()
        return _process(address, text_string_to_metric_families(answer.text))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return FlowProcess(address, problem=type(error).__name__)
    except ValueError:
        return FlowProcess(address, problem="answers, but not with metrics")


def _process(name: str, families: Iterable[Metric]) -> FlowProcess:
    kept = list(families)
    started = next(
        (
            sample.value
            for family in kept
            for sample in family.samples
            if sample.name == "process_start_time_seconds"
        ),
        None,
    )
    since = datetime.fromtimestamp(started, timezone.utc) if started else None
    return FlowProcess(name, stages=tuple(stage_figures(kept)), since=since)


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
            oldest_s=counted["oldest_pending_seconds"],
        )
        for stage, counted in figures.items()
    ]

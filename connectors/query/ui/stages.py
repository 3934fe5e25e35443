"""What the processes of the flows say of themselves: from metrics, their own or over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import httpx
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families

from connectors.stage_figures import ModelFigures, StageFigures, model_figures, stage_figures

__all__ = ["FlowProcess", "ModelCalls", "look_at_processes", "model_calls"]

_TIMEOUT_S = 2.0
THIS = "this process"


@dataclass(frozen=True, slots=True)
class FlowProcess:
    """One process that runs flows. ``problem`` says why it did not answer.

    :arg flows: which ones, where that is known.
    :arg metrics: all that it says.
    """

    name: str
    flows: tuple[str, ...] = ()
    stages: tuple[StageFigures, ...] = ()
    metrics: tuple[Metric, ...] = ()
    since: datetime | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """The calls of the model by all processes that answer, since each was started.

    :arg recorded: calls that were answered from the journal, so that nobody was asked.
    :arg held: why no call may begin now; empty where calls go on.
    """

    models: tuple[ModelFigures, ...]
    recorded: int
    held: tuple[str, ...]


def model_calls(processes: Iterable[FlowProcess]) -> ModelCalls:
    """Add up what processes say of their model."""
    families = [family for one in processes for family in one.metrics]
    samples = [sample for family in families for sample in family.samples]
    recorded = sum(
        one.value for one in samples if one.name == "sediment_answers_recorded_hits_total"
    )
    held = {
        one.labels["reason"] for one in samples if one.name == "sediment_llm_held" and one.value
    }
    return ModelCalls(tuple(model_figures(families)), int(recorded), tuple(sorted(held)))


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
    kept = tuple(families)
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
    return FlowProcess(name, stages=tuple(stage_figures(kept)), metrics=kept, since=since)

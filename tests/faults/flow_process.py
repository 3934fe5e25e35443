"""The flow as a process of its own, built from its public parts with the wrapped ones put in.

Forked from a server that has imported everything and started nothing: a new process takes
milliseconds, where a new interpreter takes seconds.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

from connectors.kafka.connection import KafkaConnection
from connectors.settings import Settings, load_settings
from flows import opening
from flows import parts as parts_module
from flows.async_stage import AsyncStage, RetryPolicy
from flows.cli.common import errors_for_people
from flows.opening import kafka_connection
from flows.parts import flow_parts, open_log, open_store, recovery_folder
from flows.runner import FlowRun, StopSignal, stop_on_signals
from flows.topology import FlowName, Parts, build_flow
from stores.protocols import Vectors
from tests.faults.points import Injection, Points
from tests.faults.stand_in import StandInStore
from tests.faults.wrapped import (
    RecoveryWatch,
    WrappedSink,
    WrappedStore,
    wrap_journals,
    wrap_renames,
    wrapped_work,
)
from tests.rig.scripted_llm import bag_of_words

__all__ = [
    "PATIENT", "STACKS", "Embedder", "FlowProcess", "StoreKind", "opened_store", "run_flow",
    "stacks_file", "write_stacks_when_asked",
]  # fmt: skip

STACKS = signal.SIGUSR1
"""Asks a process of the flow where its threads stand."""
_ANSWER_S = 120.0
StoreKind = Literal["stand-in", "milvus-lite"]
PATIENT = RetryPolicy(backoff_s=(0.05, 0.1, 0.2, 0.4, *[0.5] * 16), conflict_s=0.1)
"""Rides out every outage of the rig, so that only what is poison is given up."""


class Embedder:
    """Embeds by words, in the process: nothing is random and nothing can fail."""

    name = "scripted"
    dimension = 16

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return np.stack([bag_of_words(text, self.dimension) for text in texts])

    async def embed_query(self, text: str) -> Vectors:
        return bag_of_words(text, self.dimension)


@dataclass(frozen=True)
class FlowProcess:
    """How one process of the flow is started.

    :arg folder: of the run; the data folder is in it.
    :arg number: of this process among those of the run.
    :arg file_limit: no file may grow over that many bytes: a disk that is full.
    """

    folder: Path
    number: int
    settings: Mapping[str, Any]
    flow: FlowName = "all"
    store: StoreKind = "stand-in"
    workers: int = 1
    follow: bool = False
    injections: tuple[Injection, ...] = ()
    retry: RetryPolicy = field(default_factory=lambda: PATIENT)
    file_limit: int = 0


def run_flow(what: FlowProcess) -> None:
    """Be the flow until it ends. Leaves with the exit codes of ``sediment run``."""
    with (what.folder / f"flow-{what.number}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    write_stacks_when_asked(what.folder, what.number)
    points = Points(what.injections, what.folder, what.number)
    settings = load_settings(**what.settings)
    if settings.broker_patience_s > _ANSWER_S:  # else it is to be given up
        _be_patient_with_the_broker(_ANSWER_S)
    stop = StopSignal()
    if what.file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (what.file_limit, what.file_limit))
    points.note("started")
    with errors_for_people(), stop_on_signals(stop):
        # Asked first, as `sediment run` does.
        open_log(settings).reader.end_offsets(settings.topic("l0.events"))
        with _parts(what, settings, points, stop) as parts:
            folder = recovery_folder(settings, what.flow)
            interval = timedelta(seconds=settings.snapshot_interval_s)
            with RecoveryWatch(folder, points):
                run = FlowRun(lambda: build_flow(what.flow, parts), folder, interval, what.workers)
                run.start()
                while run.running:
                    run.wait(0.02)
                run.wait()
    points.note("ended", count=parts.progress.ended)


def stacks_file(folder: Path, number: int) -> Path:
    """Name the file for the stacks of a process that does not end."""
    return folder / f"stacks-{number}"


def write_stacks_when_asked(folder: Path, number: int) -> None:
    """Have this process write where its threads stand whenever it is sent :data:`STACKS`."""
    faulthandler.register(STACKS, file=stacks_file(folder, number).open("ab"))


def _be_patient_with_the_broker(seconds: float) -> None:
    """Let a broker that starts beside much other work take its time to answer."""

    def patient(settings: Settings) -> KafkaConnection:
        return replace(kafka_connection(settings), request_timeout_s=seconds)

    for module in (opening, parts_module):
        setattr(module, "kafka_connection", patient)  # noqa: B010


@contextmanager
def opened_store(settings: Settings, kind: StoreKind) -> Iterator[Any]:
    """Open the store of a run, as its only user."""
    if kind == "stand-in":
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        with closing(StandInStore(settings.data_dir / "store.sqlite")) as store:
            yield store
    else:
        with open_store(settings, Embedder(), write=True) as milvus:
            yield milvus


@contextmanager
def _parts(
    what: FlowProcess, settings: Settings, points: Points, stop: StopSignal
) -> Iterator[Parts]:
    with ExitStack() as stack:
        store = WrappedStore(stack.enter_context(opened_store(settings, what.store)), points)
        opened: Any = (store, Embedder())
        wrap_journals(points)
        wrap_renames(points)
        parts = stack.enter_context(
            flow_parts(settings, what.flow, stop, follow=what.follow, opened=opened)
        )

        def stage(given: AsyncStage[Any, Any]) -> AsyncStage[Any, Any]:
            work = wrapped_work(given.spec.work, points)
            spec = replace(given.spec, work=work, retry=what.retry)
            return stack.enter_context(AsyncStage(spec))

        def stages(of: Any) -> dict[str, Any]:
            return {
                one.name: stage(value)
                for one in fields(of)
                if isinstance(value := getattr(of, one.name), AsyncStage)
            }

        layers = parts.layers and replace(parts.layers, **stages(parts.layers))
        sink = WrappedSink(parts.sink, points)
        yield replace(parts, sink=sink, layers=layers, **stages(parts))

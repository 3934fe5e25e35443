"""``sediment run``: process the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress as Bar

from connectors.settings import Settings
from flows.cli.common import (
    Brokers,
    DataDir,
    err,
    memory_settings_from,
    out,
    progress_bar,
)
from flows.progress import EVENT_FLOWS, FLOWS, FlowName, Progress, source_topic
from flows.runner import STOPPING, FlowRun, Member, StopSignal, stop_on_signals
from stores.errors import UserError
from stores.generations import MAIN

if TYPE_CHECKING:
    from flows.health import FlowHealth

__all__ = ["extractor_line", "process", "run"]

_POLL_S = 0.2


def run(
    flow: Annotated[str, typer.Argument(help=f"One of {', '.join(FLOWS)}.")] = "all",
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Use the log in the data folder, not Kafka.")
    ] = False,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--to-end",
            help="Go on with new events, or stop at the end of the log as it is now "
            "[default: follow on Kafka, to the end when embedded]",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker threads of this process.")] = 1,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that run this flow together (l0, l1).")
    ] = 1,
    number: Annotated[
        int, typer.Option("--process", min=0, help="Which of them this is, from 0 on.")
    ] = 0,
    peers: Annotated[
        str, typer.Option(help="Where process {} of them listens: host-{}:2101.")
    ] = "",
    data_dir: DataDir = None,
    brokers: Brokers = None,
) -> None:
    """Turn events into memory: FLOW is all, or one layer: l0 (index), l1 (atoms), l2, l3.

    l2 (scenes) reads the jobs that l1 writes, and l3 (personas) those of l2. In all, every layer
    follows the one before in one process.

    Ctrl-C or SIGTERM stops it cleanly; the next run goes on where it was. Killed, it repeats
    what came after the last snapshot, with the same ids. Nothing is lost either way.

    Several processes of l0 or l1 share its work when each is told how many they are. Start and
    stop them together; for another number stop all, then start so many. The snapshots are in the
    data folder of process 0.

    Example: sediment run l1 --brokers localhost:9092 --workers 2
    """
    from connectors.tracing import traced_process
    from flows.cluster import member_of
    from flows.health import FlowHealth

    name = next((known for known in FLOWS if known == flow), None)
    if name is None:
        message = f"FLOW: {flow} is not one of {', '.join(FLOWS)}"
        raise UserError(message)
    if embedded and brokers:
        message = "--embedded and --brokers exclude each other"
        raise UserError(message)
    settings = memory_settings_from(data_dir=data_dir, brokers="" if embedded else brokers)
    if settings.embedded and not embedded and brokers is None:
        err.print("no brokers are set: running on the embedded log")
    follow = (not settings.embedded) if follow is None else follow
    member = member_of(settings, name, number, processes, peers)
    stop = StopSignal()
    progress = Progress()
    if settings.generation_name != MAIN:
        err.print(f"generation: {settings.generation}")
    err.print(extractor_line(settings))
    health = FlowHealth(stop, shared=member is not None)
    with (
        stop_on_signals(stop),
        traced_process(settings, name),
        _watched(settings, name, health, lag=number == 0),
    ):
        process(
            settings,
            name,
            stop,
            progress,
            follow=follow,
            workers=workers,
            health=health,
            member=member,
        )
    how = "stopped" if stop() else "reached the end of the log"
    out.print(f"{how}: {_told(name, progress)}")


def process(
    settings: Settings,
    name: FlowName,
    stop: StopSignal,
    progress: Progress,
    *,
    follow: bool,
    workers: int = 1,
    health: FlowHealth | None = None,
    member: Member | None = None,
) -> None:
    """Run a flow until it ends, with a progress bar where the end is known.

    :arg health: told which partitions are read.
    :arg member: this process is one of several. While it waits for the others, a request to stop
        ends it at once.
    """
    from flows.cluster import check_shares
    from flows.health import watched
    from flows.opening import log_name
    from flows.parts import flow_parts, open_log, recovery_folder
    from flows.topology import build_flow

    # Asked first, also when following: a missing topic or broker is said before anything starts.
    ends = open_log(settings).reader.end_offsets(settings.topic(source_topic(name)))
    check_shares(list(ends), workers, member)
    total = None if follow or member else sum(ends.values())
    with flow_parts(settings, name, stop, follow=follow, progress=progress) as parts:
        if health is not None:
            parts = replace(parts, source=watched(parts.source, health))  # noqa: PLW2901
        flow_run = FlowRun(
            lambda: build_flow(name, parts),
            recovery_folder(settings, name),
            timedelta(seconds=settings.snapshot_interval_s),
            workers,
            member,
            log_name(settings, name),
        )
        with progress_bar() as bar:
            tasks = _tasks(bar, name, total)
            told = False
            flow_run.start()
            while flow_run.running:
                flow_run.wait(_POLL_S)
                _show(bar, tasks, progress)
                if stop() and not told:
                    told = True
                    err.print(STOPPING)
                if member and stop() and health is not None and not health.listed:
                    return
            _show(bar, tasks, progress)
            flow_run.wait()


def extractor_line(settings: Settings) -> str:
    """Say what extracts memories."""
    if settings.llm_base_url:
        return f"extraction: {settings.llm_model} at {settings.llm_base_url}"
    return "extraction: rule-based, no LLM is configured (SEDIMENT_LLM_BASE_URL sets one)"


@contextmanager
def _watched(
    settings: Settings, name: FlowName, health: FlowHealth, *, lag: bool
) -> Iterator[None]:
    """Serve metrics and health for as long as the process runs, where a port is set.

    :arg lag: measure it too; one process of a flow does so for all of them.
    """
    from flows.health import lag_measured, served
    from flows.opening import consumer_group, open_log

    if not settings.metrics_port:
        yield
        return
    host = settings.metrics_host
    topic, group = settings.topic(source_topic(name)), consumer_group(settings, name)
    with served(host, settings.metrics_port, health) as port:
        err.print(f"metrics on http://{host}:{port}/metrics, health on /healthz and /readyz")
        with lag_measured(name, open_log(settings).reader, topic, group) if lag else nullcontext():
            yield


def _tasks(bar: Bar, name: FlowName, total: int | None) -> dict[str, int]:
    read = "events read" if name in EVENT_FLOWS else "jobs read"
    tasks = {"read": bar.add_task(read, total=total)}
    if name in ("all", "l0"):
        tasks["indexed"] = bar.add_task("events indexed", total=None)
    if name in ("all", "l1"):
        tasks["ended"] = bar.add_task("windows ended", total=None)
    if name in ("all", "l2"):
        tasks["scenes"] = bar.add_task("scene jobs ended", total=None)
    return dict(tasks)


def _told(name: FlowName, progress: Progress) -> str:
    layers = progress.layers
    if name == "l2":
        return f"{progress.read} jobs read, {layers.scenes} scene jobs ended"
    if name == "l3":
        return f"{progress.read} jobs read, {layers.personas} persona jobs ended"
    told = f"{progress.read} events read, {progress.ended} windows ended"
    if progress.given_up:
        told += f" ({progress.given_up} of them given up: `sediment dlq list`)"
    told += f", {progress.indexed} events indexed" if name != "l1" else ""
    return told + (f", {layers.scenes} scene jobs ended" if name == "all" else "")


def _show(bar: Bar, tasks: dict[str, int], progress: Progress) -> None:
    counted = {
        "read": progress.read,
        "indexed": progress.indexed,
        "ended": progress.ended,
        "scenes": progress.layers.scenes,
    }
    for name, task in tasks.items():
        bar.update(task, completed=counted[name])  # type: ignore[arg-type]
    if "scenes" in tasks:
        bar.update(tasks["scenes"], total=progress.layers.jobs or None)  # type: ignore[arg-type]
    if "ended" in tasks:
        bar.update(tasks["ended"], total=progress.windows or None)  # type: ignore[arg-type]

"""``sediment replay``: history again, into a generation of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from connectors.settings import Settings
from flows.cli.common import (
    Brokers,
    DataDir,
    Json,
    err,
    out,
    print_json,
    set_up_logging,
    settings_from,
)
from flows.cli.run import extractor_line
from flows.replay.answers import AnswerTally
from flows.replay.counts import Counts
from flows.runner import STOPPING, StopSignal, stop_on_signals
from stores.errors import FlowHalted, NoRecordedAnswer, UserError

if TYPE_CHECKING:
    from flows.replay.dry_run import Estimate
    from flows.replay.job import Job
    from flows.replay.running import Opened, Share
    from flows.replay.stage_calls import StageCalls
    from stores.milvus import MilvusStore
    from stores.protocols import Embedder

__all__ = ["replay"]

_LEAST_S = 0.2
_NO_ANSWER = NoRecordedAnswer.reason


def replay(
    into: Annotated[str, typer.Option("--into", help="Generation to fill: 1 to 32 of a-z 0-9 -.")],
    start: Annotated[
        str, typer.Option("--from", help="beginning, an offset, or a log time (RFC 3339).")
    ] = "beginning",
    end: Annotated[
        str, typer.Option("--to", help="end, an offset, or a log time; exclusive.")
    ] = "end",
    tenant: Annotated[str, typer.Option("--tenant", help="Only of this tenant.")] = "",
    agent: Annotated[str, typer.Option("--agent", help="Only of this agent.")] = "",
    user: Annotated[str, typer.Option("--user", help="Only of this user.")] = "",
    team: Annotated[str, typer.Option("--team", help="Only of this team.")] = "",
    answers: Annotated[
        str,
        typer.Option(
            help="Where a model's answers come from: recorded (nobody is asked), missing "
            "(recorded, else asked), fresh (asked anew and kept apart)."
        ),
    ] = "missing",
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            help="Worker processes, with Kafka and a Milvus server; elsewhere threads of this one.",
        ),
    ] = 1,
    rate: Annotated[
        float, typer.Option(min=0, help="Events per second at most; 0 is as fast as it goes.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with live traffic after the history.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only count what would be read, kept out and asked."),
    ] = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Run the events topic's history through the stages, into a generation of its own.

    The generation has its own collections, topics and snapshots; recall does not see it before
    `sediment generations promote`. Stopped or killed, the same command goes on where it was.
    Exit code 1 when it was stopped before the end, or an answer was not recorded.

    Example: sediment replay --into v2 --answers fresh --dry-run
    """
    from flows.replay.job import Job, asked_for
    from flows.replay.made_of import with_settings

    base = settings_from(data_dir=data_dir, brokers=brokers)
    asked = asked_for(
        into, start, end, {"tenant": tenant, "team": team, "agent": agent, "user": user}, answers
    )
    if follow and asked.end != "end":
        message = "--follow goes on after the end; it does not go with --to"
        raise UserError(message)
    if follow and asked.answers == "recorded":
        message = "--follow: live traffic has no recorded answers; use --answers missing"
        raise UserError(message)
    job = Job.of(base, with_settings(asked, base))
    if dry_run:
        _estimate(job, json=json)
    else:
        _fill(job, follow=follow, workers=workers, rate=rate, json=json)


# --- only counting ---------------------------------------------------------------------------


def _estimate(job: Job, *, json: bool) -> None:
    from connectors.llm import RecordedChat
    from connectors.tokens import count_tokens
    from flows.extract.work import ExtractWork
    from flows.parts import gate_of, generation_journal, open_tombstones, window_policy
    from flows.replay.answers import CountedChat, PretendedChat
    from flows.replay.dry_run import Estimate, estimate
    from flows.replay.job import extractor_with

    job.manifest()  # what the real run refuses is refused
    settings, so_far = job.settings, Estimate()
    extracting, splitting = AnswerTally(), AnswerTally()
    with ExitStack() as stack:
        extractor, gate = extractor_with(settings), gate_of(settings, None)
        if settings.llm_base_url:
            own = job.asked.answers == "fresh"
            journal = stack.enter_context(generation_journal(settings, own=own))
            pretended = RecordedChat(PretendedChat(settings.llm_model, count_tokens), journal)
            extractor = extractor_with(settings, CountedChat(pretended, extracting))
            gate = gate_of(settings, CountedChat(pretended, splitting))
        kept_out = open_tombstones(settings).known
        bars = stack.enter_context(_bars())
        task = bars.add_task("events read", total=job.span.records, said="")
        asyncio.run(
            estimate(
                job.reader,
                settings.topic("l0.events"),
                job.span,
                wanted=job.wanted,
                scope_fields=settings.scope_fields,
                policy=window_policy(settings),
                work=ExtractWork(extractor, gate, kept_out),
                so_far=so_far,
                kept_out=kept_out,
                show=lambda: bars.update(task, completed=so_far.read),
            )
        )
    _print_estimate(job, so_far, extracting, _calls(settings, so_far, extracting, splitting), json)


def _calls(
    settings: Settings, found: Estimate, extracting: AnswerTally, splitting: AnswerTally
) -> list[StageCalls]:
    """Give what every stage would ask; nothing where there is no model."""
    from flows.layer_parts import scene_pace
    from flows.replay.stage_calls import Models, stage_calls

    if not settings.llm_base_url:
        return []
    return stage_calls(
        found,
        unrecorded=extracting.asked,
        splits_recorded=splitting.saved,
        splits_asked=splitting.asked,
        models=Models(
            writes=settings.scene_writer == "model",
            pace=scene_pace(settings),
            steps=settings.scene_steps,
            atoms=settings.scene_atoms,
            every=settings.persona_atoms,
        ),
    )


def _print_estimate(
    job: Job, found: Estimate, tally: AnswerTally, calls: list[StageCalls], json: bool
) -> None:
    from flows.replay.dry_run import tokens_to_ask

    tokens = tokens_to_ask(tally)
    if json:
        print_json(
            {
                "generation": job.asked.name,
                "extractor": job.asked.extractor,
                "events": found.events,
                "refused": found.refused,
                "events_forgotten": found.forgotten,
                "windows": found.windows,
                "windows_kept_out": found.windows_kept_out,
                "windows_changed": found.windows_changed,
                "windows_to_extract": found.asks,
                "answers": {
                    "mode": job.asked.answers,
                    "recorded": tally.saved,
                    "recorded_tokens": tally.saved_tokens,
                    "not_recorded": tally.asked,
                    "not_recorded_tokens": tokens,
                },
                "calls": [{**asdict(one), "estimated": one.estimated} for one in calls],
            }
        )
        return
    out.print(
        f"{found.events} events ({found.refused} records are none), {found.windows} windows, "
        f"{found.asks} of them with something to extract from"
    )
    if found.forgotten:
        out.print(
            f"kept out: {found.forgotten} events that were forgotten; {found.windows_kept_out} "
            f"windows with nothing left, {found.windows_changed} that lost a part"
        )
    if not job.settings.llm_base_url:
        out.print("extraction is rule-based: no model would be asked")
        return
    recorded_only = job.asked.answers == "recorded"
    what = "their windows would become dead letters" if recorded_only else "these would be asked"
    out.print(
        f"answers: {tally.saved} recorded ({tally.saved_tokens} tokens saved), {tally.asked} not: "
        f"{what} (about {tokens} tokens)"
    )
    table = Table(title="Calls of the model, by stage", title_justify="left")
    for column in ("stage", "calls", "between", "recorded", "how it was found"):
        table.add_column(column, justify="left" if " " in column else "right", overflow="fold")
    for one in calls:
        table.add_row(
            one.stage,
            f"about {one.calls}" if one.estimated else str(one.calls),
            f"{one.least} and {one.most}" if one.estimated else "",
            "?" if one.recorded is None else str(one.recorded),
            one.basis,
        )
    out.print(table)


# --- running ---------------------------------------------------------------------------------


@dataclass
class _Run:
    """How far a replay is: counts of this command, over its phases."""

    stop: StopSignal
    began: float
    counts: Counts = field(default_factory=Counts)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def _fill(job: Job, *, follow: bool, workers: int, rate: float, json: bool) -> None:
    from connectors.embeddings import make_embedder
    from flows.opening import prepare_topics
    from flows.replay.lock import only_one
    from flows.replay.processes import run_processes, why_threads
    from flows.replay.running import run_share

    run = _Run(StopSignal(), time.monotonic())
    generation = job.manifest()  # first: what is refused leaves nothing behind
    if not generation.settings:
        err.print(
            f"{generation.name} was begun by a version that did not note its settings: nobody can "
            "tell whether they are the same now",
            style="yellow",
        )
    alone = "one worker" if workers == 1 else why_threads(job.settings, job.asked.answers)
    if alone and workers > 1:
        err.print(f"{workers} threads of this process: {alone}", soft_wrap=True)
    embedder = make_embedder(job.settings)
    with (
        stop_on_signals(run.stop),
        only_one(job.settings.generation_dir, generation.name),
        _own_store(job.settings, embedder) as store,
    ):
        prepare_topics(job.settings)
        job.register.write(generation)
        err.print(extractor_line(job.settings))

        def phase(share: Share, bars: Bars) -> None:
            show = _show(job, share.follow, bars, run)
            if alone:
                done = run_share(share, (store, embedder), run.stop, show, workers=workers)
            else:
                done = run_processes(share, _opened, workers, run.stop, show)
            run.counts += done
            if not run.stop() and not share.follow:  # also what an earlier run had read
                bars.update(bars.task_ids[0], completed=job.span.records)

        try:
            with _bars() as bars:
                phase(_share(job, rate=rate, keep_open=follow), bars)
                if not run.stop():
                    # All that was read has ended: from here on it may be promoted.
                    job.register.write(generation.model_copy(update={"state": "ready"}))
                    if follow:
                        phase(_share(job, follow=True), bars)
        except FlowHalted as halted:
            job.register.write(generation.model_copy(update={"problem": halted.message}))
            raise
    _report(job, run, follow=follow, json=json)


@contextmanager
def _own_store(settings: Settings, embedder: Embedder) -> Iterator[MilvusStore]:
    from flows.opening import open_store

    with ExitStack() as stack:
        try:
            store = stack.enter_context(open_store(settings, embedder, write=True))
        except UserError as error:
            if type(error) is not UserError or settings.milvus_uri:
                raise
            message = (
                f"{error.message}. A replay needs the embedded store for itself: stop the other "
                "process, replay, promote, and start it again"
            )
            raise UserError(message) from None
        yield store


@contextmanager
def _opened(settings: Settings) -> Iterator[Opened]:
    """Open what one process of several needs. Called there."""
    from connectors.embeddings import make_embedder

    set_up_logging(verbose=False)
    embedder = make_embedder(settings)
    with _own_store(settings, embedder) as store:
        yield store, embedder


def _share(job: Job, *, rate: float = 0, follow: bool = False, keep_open: bool = False) -> Share:
    from flows.replay.running import Share

    return Share(
        settings=job.settings,
        flow="all",
        span=job.span,
        scope=job.asked.scope,
        answers=job.asked.answers,
        rate=rate,
        follow=follow,
        keep_open=keep_open,
    )


def _show(job: Job, follow: bool, bars: Bars, run: _Run) -> Callable[[Counts], None]:
    """Give what draws the bars of one phase; ``run.counts``: what was done in phases before."""
    from flows.replay.plan import Reached

    whole = None if follow else job.span.records
    task = bars.add_task("live" if follow else "history", total=whole, said="")
    ended = bars.add_task("windows ended", total=None, said="")
    began, total = time.monotonic(), run.counts
    told = False

    def show(now: Counts) -> None:
        nonlocal told
        if run.stop() and not told:
            told = True
            err.print(STOPPING)
        done = now.read if follow else Reached(now.offsets).within(job.span)
        speed = now.read / max(_LEAST_S, time.monotonic() - began)
        bars.update(task, completed=done, said=f"{speed:,.0f} events/s")
        all_of_it = total + now
        said = (
            f"answers: {all_of_it.asked:,} asked ({all_of_it.asked_tokens:,} tokens), "
            f"{all_of_it.saved:,} recorded ({all_of_it.saved_tokens:,} tokens saved)"
            if job.settings.llm_base_url
            else ""
        )
        windows = all_of_it.windows
        bars.update(ended, completed=all_of_it.ended, total=windows or None, said=said)

    return show


def _bars() -> Bars:
    return Bars(
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
        console=err,
    )


def _report(job: Job, run: _Run, *, follow: bool, json: bool) -> None:
    from flows.replay.promotion import standing_of

    generations = job.register.read()
    name = job.asked.name
    standing = standing_of(job.reader, job.settings, generations.manifests[name])
    unfinished = generations.manifests[name].state == "building"
    if json:
        print_json(
            {
                "generation": name,
                "state": generations.state(name),
                "records": job.span.records,
                "events_read": run.counts.read,
                "windows": run.counts.windows,
                "seconds": round(run.seconds, 3),
                "answers": {
                    "asked": run.counts.asked,
                    "asked_tokens": run.counts.asked_tokens,
                    "recorded": run.counts.saved,
                    "saved_tokens": run.counts.saved_tokens,
                },
                "atoms": standing.atoms,
                "dead_letters": standing.given_up,
            }
        )
    else:
        how = "stopped; the same command goes on from here" if run.stop() else "done"
        out.print(
            f"{how}: {run.counts.read} events read in {run.seconds:.0f} s, "
            f"{run.counts.ended} windows ended; generation {name} holds {standing.atoms} atoms",
            soft_wrap=True,
        )
        for reason, count in standing.given_up.items():
            err.print(f"dead letters: {count} for {reason}", style="yellow", markup=False)
        if not unfinished and not follow:
            out.print(
                f"look: sediment generations diff {generations.current} {name}; "
                f"switch: sediment generations promote {name}",
                soft_wrap=True,
            )
    if unfinished or _NO_ANSWER in standing.given_up:
        raise typer.Exit(1)

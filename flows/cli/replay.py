"""``sediment replay``: history again, into a generation of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
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
    settings_from,
)
from flows.cli.run import extractor_line
from flows.progress import Progress
from flows.replay.answers import AnswerTally
from flows.runner import FlowRun, StopSignal, stop_on_signals
from stores.errors import FlowHalted, NoRecordedAnswer, UserError

if TYPE_CHECKING:
    from flows.replay.dry_run import Estimate
    from flows.replay.job import Job
    from flows.replay.plan import ReplayPlan
    from flows.replay.stage_calls import StageCalls
    from stores.milvus import MilvusStore
    from stores.protocols import Embedder

__all__ = ["replay"]

_POLL_S = 0.2
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
    workers: Annotated[int, typer.Option(min=1, help="Worker threads.")] = 1,
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
    """How far a replay is. Counts of this process."""

    stop: StopSignal
    progress: Progress
    tally: AnswerTally
    began: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def _fill(job: Job, *, follow: bool, workers: int, rate: float, json: bool) -> None:
    from connectors.embeddings import make_embedder
    from flows.opening import prepare_topics
    from flows.replay.lock import only_one

    run = _Run(StopSignal(), Progress(), AnswerTally(), time.monotonic())
    generation = job.manifest()  # first: what is refused leaves nothing behind
    if not generation.settings:
        err.print(
            f"{generation.name} was begun by a version that did not note its settings: nobody can "
            "tell whether they are the same now",
            style="yellow",
        )
    embedder = make_embedder(job.settings)
    with (
        stop_on_signals(run.stop),
        only_one(job.settings.generation_dir, generation.name),
        _own_store(job.settings, embedder) as store,
    ):
        prepare_topics(job.settings)
        job.register.write(generation)
        err.print(extractor_line(job.settings))

        def phase(plan: ReplayPlan, bars: Bars) -> None:
            _phase(job, run, plan, (store, embedder), workers, bars)

        try:
            with _bars() as bars:
                phase(_plan(job, run, rate=rate, keep_open=follow), bars)
                if not run.stop():
                    # All that was read has ended: from here on it may be promoted.
                    job.register.write(generation.model_copy(update={"state": "ready"}))
                    if follow:
                        phase(_plan(job, run, follow=True), bars)
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


def _plan(
    job: Job, run: _Run, *, rate: float = 0, follow: bool = False, keep_open: bool = False
) -> ReplayPlan:
    from flows.replay.plan import Pace, Reached, ReplayPlan

    return ReplayPlan(
        span=job.span,
        wanted=job.wanted,
        pace=Pace(rate, time.monotonic),
        answers=job.asked.answers,
        tally=run.tally,
        reached=Reached(),
        follow=follow,
        keep_open=keep_open,
    )


def _phase(
    job: Job,
    run: _Run,
    plan: ReplayPlan,
    opened: tuple[MilvusStore, Embedder],
    workers: int,
    bars: Bars,
) -> None:
    """Run the flow over the history, or over what comes after it."""
    from flows.parts import flow_parts, recovery_folder
    from flows.topology import build_flow

    total = None if plan.follow else job.span.records
    task = bars.add_task("live" if plan.follow else "history", total=total, said="")
    ended = bars.add_task("windows ended", total=None, said="")
    before, began = run.progress.read, time.monotonic()

    def show() -> None:
        read = run.progress.read - before
        done = read if plan.follow else plan.reached.within(job.span)
        speed = read / max(_POLL_S, time.monotonic() - began)
        bars.update(task, completed=done, said=f"{speed:,.0f} events/s")
        asked, saved = run.tally.asked, run.tally.saved
        said = (
            f"answers: {asked:,} asked ({run.tally.asked_tokens:,} tokens), {saved:,} recorded "
            f"({run.tally.saved_tokens:,} tokens saved)"
            if job.settings.llm_base_url
            else ""
        )
        windows = run.progress.windows
        bars.update(ended, completed=run.progress.ended, total=windows or None, said=said)

    with flow_parts(
        job.settings,
        "all",
        run.stop,
        follow=plan.follow,
        progress=run.progress,
        opened=opened,
        replay=plan,
    ) as parts:
        flow = FlowRun(
            lambda: build_flow("all", parts),
            recovery_folder(job.settings, "all"),
            timedelta(seconds=job.settings.snapshot_interval_s),
            workers,
        )
        flow.start()
        while flow.running:
            flow.wait(_POLL_S)
            show()
        show()
        flow.wait()
    if not run.stop() and not plan.follow:
        bars.update(task, completed=total)  # also what an earlier run had read


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
                "events_read": run.progress.read,
                "windows": run.progress.windows,
                "seconds": round(run.seconds, 3),
                "answers": {
                    "asked": run.tally.asked,
                    "asked_tokens": run.tally.asked_tokens,
                    "recorded": run.tally.saved,
                    "saved_tokens": run.tally.saved_tokens,
                },
                "atoms": standing.atoms,
                "dead_letters": standing.given_up,
            }
        )
    else:
        how = "stopped; the same command goes on from here" if run.stop() else "done"
        out.print(
            f"{how}: {run.progress.read} events read in {run.seconds:.0f} s, "
            f"{run.progress.ended} windows ended; generation {name} holds {standing.atoms} atoms",
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

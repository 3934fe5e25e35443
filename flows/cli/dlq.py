"""``sediment dlq``: dead letters listed, shown, produced again, given up for good."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from connectors.settings import SCOPE_FIELDS, Settings
from flows.cli.common import (
    Brokers,
    DataDir,
    Json,
    memory_settings_from,
    out,
    print_json,
    progress_bar,
)
from flows.cli.letters import as_base64, as_json, case_table, named, read_cases, readable
from flows.upkeep.redrive import STATES, Case, State, Wanted
from stores.errors import UserError
from stores.records import Outcome, OutRecord

if TYPE_CHECKING:
    from flows.opening import Log

__all__ = ["dlq"]

dlq = typer.Typer(
    no_args_is_help=True, help="List dead letters, show one, produce them again, or drop them."
)

_BATCH = 500

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letters, as l1.dlq/0/17.")
]
Stage = Annotated[str, typer.Option(help="Stage: decode, index, extract or reconcile.")]
Reason = Annotated[str, typer.Option(help="Reason, as `sediment dlq list` shows it.")]
OfTenant = Annotated[str, typer.Option("--tenant", help="Only of this tenant.")]
OfAgent = Annotated[str, typer.Option("--agent", help="Only of this agent.")]
OfUser = Annotated[str, typer.Option("--user", help="Only of this user.")]
OfTeam = Annotated[str, typer.Option("--team", help="Only of this team.")]
Since = Annotated[datetime | None, typer.Option(help="Last failed at or after this (UTC).")]
Until = Annotated[datetime | None, typer.Option(help="Last failed before this (UTC).")]
OfState = Annotated[str, typer.Option(help=f"One of {', '.join(STATES)}, all.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")]
Force = Annotated[bool, typer.Option("--force", help="Also what is resolved or dropped.")]


@dlq.command("list")
def list_letters(
    stage: Stage = "",
    reason: Reason = "",
    tenant: OfTenant = "",
    agent: OfAgent = "",
    user: OfUser = "",
    team: OfTeam = "",
    since: Since = None,
    until: Until = None,
    state: OfState = "open",
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """List dead letters, one line for each window or record that was given up, and count them.

    The id on a line is that of its first letter; every letter's id names the whole window.

    Example: sediment dlq list --stage extract --since 2026-03-01
    """
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    wanted = _wanted(stage, reason, (tenant, team, agent, user), since, until, state)
    cases = [case for case in read_cases(settings, _opened(settings).reader) if wanted.takes(case)]
    counts = Counter((case.newest.stage, case.newest.reason) for case in cases)
    if json:
        rows = [
            {"stage": gave_up, "reason": why, "count": count}
            for (gave_up, why), count in sorted(counts.items())
        ]
        print_json({"items": [as_json(case) for case in cases], "counts": rows})
        return
    if not cases:
        out.print("no dead letters" if state == "all" else f"no dead letters that are {state}")
        return
    out.print(case_table(cases, "error", lambda case: case.newest.error))
    for (gave_up, why), count in sorted(counts.items()):
        out.print(f"{count} {gave_up}: {why}", markup=False)


@dlq.command("show")
def show_letter(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="As l1.dlq/0/17.")],
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Show one dead letter: its state, its headers, and the original bytes as they are.

    Bytes that are not printable UTF-8 are shown in hex; --json has them in base64.

    Example: sediment dlq show l1.dlq/0/17
    """
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    (case,) = named(read_cases(settings, _opened(settings).reader), [letter_id])
    (record,) = (letter.read for letter in case.copies if letter.id == letter_id)
    if json:
        print_json(
            {
                **as_json(case),
                "shown": letter_id,
                "headers": [[name, as_base64(value)] for name, value in record.headers],
                "key": as_base64(record.key),
                "value": as_base64(record.value),
            }
        )
        return
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("state", style="bold"), case.state)
    table.add_row(
        Text("redrive", style="bold"), Text(case.problem or f"{len(case.letters)} records")
    )
    table.add_row(Text("key", style="bold"), Text(readable(record.key)))
    for name, value in record.headers:
        table.add_row(Text(name, style="bold"), Text(readable(value)))
    out.print(table)
    sys.stdout.write(f"\n{readable(record.value)}\n")


@dlq.command("redrive")
def redrive(
    ids: Ids = None,
    stage: Stage = "",
    reason: Reason = "",
    tenant: OfTenant = "",
    agent: OfAgent = "",
    user: OfUser = "",
    team: OfTeam = "",
    since: Since = None,
    until: Until = None,
    state: OfState = "",
    yes: Yes = False,
    force: Force = False,
    rate: Annotated[int | None, typer.Option(min=1, help="Records per second at most.")] = None,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Produce the original records again; without --yes only show what would be produced.

    Takes the dead letters named, or all that are open and match the options. The letters of a
    window go together and in its order; a window with a missing letter is reported and left.
    Doing it twice changes nothing. Exit code 1 when something asked for was left.

    Example: sediment dlq redrive --reason refused --rate 50 --yes
    """
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    log = _opened(settings)
    scope = (tenant, team, agent, user)
    # Ids are looked up in every state: naming one that is resolved must say so, not find nothing.
    wanted = _wanted(stage, reason, scope, since, until, state or ("all" if ids else "open"))
    cases = _chosen(read_cases(settings, log.reader), ids, wanted)
    left = {case.id: why for case in cases if (why := _why_left(case, force=force))}
    going = [case for case in cases if case.id not in left]
    records = [record for case in going for record in case.redriven()]
    if yes:
        _produce(records, log, rate)
    _report(going, cases, left, json=json, done="redriven" if yes else "", records=len(records))
    if left:
        raise typer.Exit(1)


@dlq.command("drop")
def drop(
    ids: Ids = None,
    stage: Stage = "",
    reason: Reason = "",
    tenant: OfTenant = "",
    agent: OfAgent = "",
    user: OfUser = "",
    team: OfTeam = "",
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Give dead letters up for good: an outcome says so. Without --yes only show which.

    The letters stay in their topic. Takes those named, or all that are open and match the
    options, of which at least one must be given.

    Example: sediment dlq drop l0.dlq/0/3 --yes
    """
    scope = (tenant, team, agent, user)
    if not (ids or stage or reason or any(scope) or since or until):
        message = "ID: name dead letters, or say with an option which; dropping is for good"
        raise UserError(message)
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    log = _opened(settings)
    wanted = _wanted(stage, reason, scope, since, until, "all" if ids else "open")
    cases = _chosen(read_cases(settings, log.reader), ids, wanted)
    left = {case.id: f"is {case.state}" for case in cases if case.state in ("resolved", "dropped")}
    going = [case for case in cases if case.id not in left]
    if yes:
        topic = settings.topic("outcomes")
        outcomes = [case.dropped() for case in going]
        _produce([_as_record(outcome, topic) for outcome in outcomes], log, None)
    _report(going, cases, left, json=json, done="dropped" if yes else "", records=len(going))
    if left:
        raise typer.Exit(1)


# --- what to take ----------------------------------------------------------------------------


def _opened(settings: Settings) -> Log:
    from flows.opening import open_log

    return open_log(settings)


def _wanted(
    stage: str,
    reason: str,
    scope_ids: Sequence[str],
    since: datetime | None,
    until: datetime | None,
    state: str,
) -> Wanted:
    known: dict[str, State | None] = {"all": None, **{name: name for name in STATES}}
    if state not in known:
        message = f"--state: {state} is not one of {', '.join(known)}"
        raise UserError(message)
    ids = zip(SCOPE_FIELDS, scope_ids, strict=True)
    return Wanted(
        stage,
        reason,
        tuple((name, value) for name, value in ids if value),
        _in_utc(since),
        _in_utc(until),
        known[state],
    )


def _in_utc(moment: datetime | None) -> datetime | None:
    if moment is None or moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=timezone.utc)


def _chosen(cases: Sequence[Case], ids: Sequence[str] | None, wanted: Wanted) -> list[Case]:
    return [case for case in (named(cases, ids) if ids else cases) if wanted.takes(case)]


def _why_left(case: Case, *, force: bool) -> str:
    if case.problem:
        return case.problem
    if case.state in ("resolved", "dropped") and not force:
        return f"is {case.state}; --force redrives it all the same"
    return ""


# --- writing ---------------------------------------------------------------------------------


def _produce(records: Sequence[OutRecord], log: Log, rate: int | None) -> None:
    """Append in order. A call that dies on the way may be made again as a whole."""
    size = min(_BATCH, rate or _BATCH)
    started = time.monotonic()
    with progress_bar() as bar:
        task = bar.add_task("records produced", total=len(records))
        for at in range(0, len(records), size):
            if rate:
                time.sleep(max(0.0, started + at / rate - time.monotonic()))
            log.appender.append(records[at : at + size])
            bar.update(task, completed=min(at + size, len(records)))


def _as_record(outcome: Outcome, topic: str) -> OutRecord:
    value = outcome.model_dump_json(exclude_none=True).encode()
    return OutRecord(topic, (outcome.scope or outcome.outcome_id).encode(), value)


def _report(
    going: Sequence[Case],
    cases: Sequence[Case],
    left: dict[str, str],
    *,
    json: bool,
    done: str,
    records: int,
) -> None:
    if json:
        print_json(
            {
                "done": bool(done),
                "records": records,
                "items": [as_json(case) for case in going],
                "left": [{**as_json(c), "why": left[c.id]} for c in cases if c.id in left],
            }
        )
        return
    if cases:
        what = done or "would be taken"
        out.print(case_table(cases, "what", lambda case: left.get(case.id, what)))
    kinds = f"{len(going)} of {len(cases)} windows and records"
    if done:
        out.print(f"{done}: {kinds}, {records} log records written")
    else:
        out.print(f"would write {records} log records for {kinds}; nothing is done without --yes")

"""``sediment audit``: where every event ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from connectors.settings import ScopeField, Settings
from flows.cli.common import (
    Brokers,
    DataDir,
    Json,
    err,
    local_time,
    memory_settings_from,
    out,
    print_json,
    progress_bar,
    scope_label,
)
from stores.errors import UserError
from stores.ids import scope_parts

if TYPE_CHECKING:
    from flows.upkeep.audit import AuditReport, EventEnd
    from stores.protocols import Clock
    from stores.records import Position

__all__ = ["audit", "run_audit"]

_SHOW_EVERY = 500  # records, between two looks of the progress bar
_SETTLE_FILE_MS = 5_000
"""After this, what was handed to the file log at the same time can be read: it is written in one
turn of the dataflow."""
_SETTLE_KAFKA_MS = 65_000
"""The same on Kafka: a producer tries for 60 s, see ``connectors.kafka.connection``."""

_MEANING = {
    "extracted": "memories were found",
    "empty": "looked at, nothing to remember",
    "skipped": "not looked at",
    "dead_lettered": "given up; in the dead letters",
    "forgotten": "a forget request covers it",
    "applied": "a forget or reject request, carried out",
    "duplicate": "an earlier record has its id",
    "redriven": "a dead letter that came again",
    "open": "its window is open",
    "pending": "its window waits for its end",
    "not_read": "the flow has not come to it",
    "unexplained": "no outcome, and none can come",
    "conflicting": "two different outcomes",
}


def audit(
    start: Annotated[
        str, typer.Option("--from", help="Count from this log time (RFC 3339) or offset.")
    ] = "",
    end: Annotated[str, typer.Option("--to", help="Count up to here, exclusive.")] = "",
    tenant: Annotated[str, typer.Option("--tenant", help="Only of this tenant.")] = "",
    agent: Annotated[str, typer.Option("--agent", help="Only of this agent.")] = "",
    user: Annotated[str, typer.Option("--user", help="Only of this user.")] = "",
    team: Annotated[str, typer.Option("--team", help="Only of this team.")] = "",
    events: Annotated[
        bool, typer.Option("--events", help="With --json: the end of every single record.")
    ] = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Show from the topics alone that every event ended in one outcome, or where it waits.

    Exit code 1 when one is unexplained or has conflicting outcomes. Works while the flow runs
    and after any crash; give it the settings that the flow has. Topics are read as a whole,
    whatever part of them is counted.

    Example: sediment audit --from 2026-03-01T00:00:00Z --tenant acme
    """
    from flows.runner import SystemClock

    if events and not json:
        message = "--events: needs --json"
        raise UserError(message)
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    ends: list[EventEnd] = []
    report = run_audit(
        settings,
        SystemClock(),
        selected=_selection(start, end),
        in_scope=_scopes(settings, {"tenant": tenant, "team": team, "agent": agent, "user": user}),
        on_end=ends.append if events else None,
    )
    if json:
        print_json(_as_json(report, sorted(ends, key=lambda one: one.position), events))
    else:
        _show(report)
    if not report.clean:
        raise typer.Exit(1)


def run_audit(
    settings: Settings,
    clock: Clock,
    *,
    selected: Callable[[Position, int], bool] = lambda position, timestamp_ms: True,
    in_scope: Callable[[str], bool] | None = None,
    on_end: Callable[[EventEnd], None] | None = None,
) -> AuditReport:
    """Read the topics, with a progress bar. See :class:`flows.upkeep.audit.Audit`."""
    from connectors.log import EndAt, Place, StartAt
    from flows.parts import consumer_group, open_log, open_tombstones, window_policy
    from flows.upkeep.audit import Audit

    log = open_log(settings)
    reader = log.reader
    events, outcomes = settings.topic("l0.events"), settings.topic("outcomes")
    now_ms = int(clock.now().timestamp() * 1000)
    committed: dict[int, int] = {}
    for name in ("all", "l1"):
        for partition, offset in reader.committed(consumer_group(settings, name), events).items():
            committed[partition] = max(offset, committed.get(partition, 0))
    # First where the events end, then the outcomes, then the events: so none is missed.
    ends = reader.end_offsets(events)
    outcome_ends = reader.end_offsets(outcomes)
    the_audit = Audit(
        scope_fields=settings.scope_fields,
        policy=window_policy(settings),
        committed=committed,
        settled_before_ms=now_ms - (_SETTLE_FILE_MS if settings.embedded else _SETTLE_KAFKA_MS),
        selected=selected,
        in_scope=in_scope,
        kept_out=open_tombstones(settings, log).known,
        on_end=on_end,
    )

    def until(offsets: dict[int, int]) -> EndAt:
        return EndAt(partitions={part: Place("offset", at) for part, at in offsets.items()})

    with progress_bar() as bar:
        task = bar.add_task("outcomes read", total=sum(outcome_ends.values()))
        for count, record in enumerate(
            reader.read(outcomes, StartAt.beginning(), until(outcome_ends)), 1
        ):
            the_audit.read_outcome(record)
            if count % _SHOW_EVERY == 0:
                bar.update(task, completed=count)
        bar.update(task, completed=sum(outcome_ends.values()))
        task = bar.add_task("events read", total=sum(ends.values()))
        for count, record in enumerate(reader.read(events, StartAt.beginning(), until(ends)), 1):
            the_audit.read_event(record)
            if count % _SHOW_EVERY == 0:
                bar.update(task, completed=count)
        bar.update(task, completed=sum(ends.values()))
    return the_audit.report()


# --- what is looked at -----------------------------------------------------------------------


def _selection(start: str, end: str) -> Callable[[Position, int], bool]:
    first, last = _place("--from", start), _place("--to", end)

    def before(place: tuple[str, int] | None, position: Position, timestamp_ms: int) -> bool:
        if place is None:
            return False
        kind, value = place
        return (position.offset if kind == "offset" else timestamp_ms) < value

    def selected(position: Position, timestamp_ms: int) -> bool:
        return not before(first, position, timestamp_ms) and (
            last is None or before(last, position, timestamp_ms)
        )

    return selected


def _place(option: str, text: str) -> tuple[str, int] | None:
    if not text:
        return None
    if text.isdecimal():
        return "offset", int(text)
    try:
        # Python 3.10 does not know the Z of RFC 3339.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1] in "zZ" else text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        message = f"{option}: {text} is neither an offset nor a time as 2026-03-01T00:00:00Z"
        raise UserError(message)
    return "timestamp", int(moment.timestamp() * 1000)


def _scopes(settings: Settings, given: dict[ScopeField, str]) -> Callable[[str], bool] | None:
    ids = {name: value for name, value in given.items() if value}
    for name in ids:
        if name not in settings.scope_fields:
            message = f"--{name}: the scope is made of {', '.join(settings.scope_fields)}"
            raise UserError(message)
    if not ids:
        return None

    def in_scope(scope: str) -> bool:
        parts = dict(zip(settings.scope_fields, scope_parts(scope), strict=False))
        return all(parts.get(name) == value for name, value in ids.items())

    return in_scope


# --- what is shown ---------------------------------------------------------------------------


def _show(report: AuditReport) -> None:
    table = Table(title=f"{report.records} records of the events topic", title_justify="left")
    for column in ("end", "reason", "records", "means"):
        table.add_column(column, justify="right" if column == "records" else "left")
    for (result, reason), count in report.ends.items():
        faulty = result in ("unexplained", "conflicting")
        style = "bold red" if faulty else ""
        table.add_row(result, Text(reason), str(count), _MEANING[result], style=style)
    out.print(table)
    if report.open_windows:
        out.print(_open_windows(report))
    if report.problems:
        out.print(_problems(report))
    for line in _remarks(report):
        err.print(line, markup=False, soft_wrap=True)
    if report.clean:
        out.print("every record is explained")
    else:
        out.print(
            f"not explained: {report.count('unexplained')} records without an outcome, "
            f"{report.count('conflicting')} with conflicting ones; see docs/audit.md",
            style="bold red",
        )


def _open_windows(report: AuditReport) -> Table:
    table = Table(title="Open windows", title_justify="left", expand=True)
    for column in ("scope, session", "events", "since", "first event", "partition", "offset"):
        table.add_column(column, overflow="fold")
    for window in report.open_windows:
        table.add_row(
            Text(f"{scope_label(window.scope)}, {window.session_id}"),
            str(window.events),
            local_time(window.since),
            Text(window.first_event_id),
            str(window.first.partition),
            str(window.first.offset),
        )
    return table


def _problems(report: AuditReport) -> Table:
    table = Table(title="Not explained", title_justify="left", expand=True)
    for column in ("partition", "offset", "event", "scope, session", "what is wrong"):
        table.add_column(column, overflow="fold")
    for end in report.problems:
        where = f"{scope_label(end.scope)}, {end.session_id}" if end.scope else ""
        table.add_row(
            str(end.position.partition),
            str(end.position.offset),
            Text(end.event_id),
            Text(where),
            Text(f"{end.result}: {end.reason}"),
        )
    return table


def _remarks(report: AuditReport) -> Iterator[str]:
    if report.repeated:
        yield f"{report.repeated} outcomes were written again, the same: at least once"
    for reason, count in report.not_indexed.items():
        yield f"{count} events are not indexed ({reason}); they are in the dead letters"
    if report.spread_scopes:
        yield (
            f"{report.spread_scopes} scopes lie in several partitions: their order is not known, "
            "so loss cannot be shown there; see docs/produce-events.md"
        )
    if report.unreadable:
        yield f"{report.unreadable} records of the outcomes topic are not outcomes"
    for one in report.unmatched:
        yield (
            f"outcome {one.outcome_id} names {one.missing} events that are not at partition "
            f"{one.partition}, offsets {one.offsets[0]} to {one.offsets[1]}"
        )


def _as_json(report: AuditReport, ends: list[EventEnd], events: bool) -> dict[str, Any]:
    totals: dict[str, Any] = {}
    for (result, reason), count in report.ends.items():
        if reason:
            totals.setdefault(result, {})[reason] = count
        else:
            totals[result] = count
    shown: dict[str, Any] = {
        "clean": report.clean,
        "records": report.records,
        "ends": totals,
        "open_windows": [
            {
                "scope": window.scope,
                "session_id": window.session_id,
                "events": window.events,
                "since": window.since.astimezone(timezone.utc).isoformat(),
                "partition": window.first.partition,
                "offset": window.first.offset,
                "event_id": window.first_event_id,
            }
            for window in report.open_windows
        ],
        "problems": [_end_as_json(end) for end in report.problems],
        "unmatched_outcomes": [asdict(one) for one in report.unmatched],
        "not_indexed": dict(report.not_indexed),
        "outcomes": {
            "different": report.outcomes,
            "repeated": report.repeated,
            "unreadable": report.unreadable,
        },
        "spread_scopes": report.spread_scopes,
    }
    if events:
        shown["events"] = [_end_as_json(end) for end in ends]
    return shown


def _end_as_json(end: EventEnd) -> dict[str, Any]:
    return {
        "partition": end.position.partition,
        "offset": end.position.offset,
        "timestamp_ms": end.timestamp_ms,
        "event_id": end.event_id or None,
        "scope": end.scope or None,
        "session_id": end.session_id or None,
        "result": end.result,
        "reason": end.reason or None,
        "stage": end.stage or None,
        "outcome_id": end.outcome_id or None,
        "attempts": end.attempts or None,
        "pipeline": end.pipeline or None,
    }

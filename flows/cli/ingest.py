"""``sediment ingest``: a file of conversations into the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, cast

import typer

from connectors.importers import (
    ImportDefaults,
    ImportedEvent,
    ImportFormat,
    ImportProblem,
    read_events,
    to_record,
)
from connectors.log import Appender
from connectors.settings import Settings
from flows.cli.common import (
    Agent,
    Brokers,
    DataDir,
    Json,
    Team,
    Tenant,
    User,
    err,
    out,
    print_json,
    progress_bar,
    settings_from,
)
from stores.errors import SettingsError, UserError
from stores.records import OutRecord

__all__ = ["Ingested", "ingest", "ingest_file"]

_BATCH = 500
_PROBLEMS_SHOWN = 20
FORMATS = ("auto", "events", "messages", "sessions")


@dataclass(slots=True)
class Ingested:
    """What became of a file."""

    events: int = 0
    problems: list[ImportProblem] = field(default_factory=list)
    synthetic_times: int = 0


def ingest_file(
    items: Iterable[ImportedEvent | ImportProblem], appender: Appender, settings: Settings
) -> Iterator[Ingested]:
    """Append what was read, batch by batch; yields the count so far after each."""
    done = Ingested()
    items = iter(items)
    while batch := list(islice(items, _BATCH)):
        records: list[OutRecord] = []
        for item in batch:
            record = _record(item, settings)
            if isinstance(record, ImportProblem):
                done.problems.append(record)
                continue
            records.append(record)
            done.synthetic_times += isinstance(item, ImportedEvent) and item.time == "synthetic"
        if records:
            appender.append(records)
        done.events += len(records)
        yield done
    yield done


def _record(item: ImportedEvent | ImportProblem, settings: Settings) -> OutRecord | ImportProblem:
    """Make the record of what was read, or say why there is none."""
    if isinstance(item, ImportProblem):
        return item
    try:
        return to_record(item, settings)
    except SettingsError as error:
        # The contract leaves only the team to the producer, so it is what this event lacks.
        what = f"event {item.event.event_id}: {error.message}"
        message = f"{what}; give --team, or put team_id into the file"
        return ImportProblem(item.line, "empty_id", "team_id", message)


def ingest(
    file: Annotated[Path, typer.Argument(help="File to read.", exists=True, dir_okay=False)],
    format: Annotated[str, typer.Option(help=f"One of {', '.join(FORMATS)}.")] = "auto",
    tenant: Tenant = "",
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    session: Annotated[str, typer.Option(help="Session id, where the file has none.")] = "",
    start_time: Annotated[
        datetime | None,
        typer.Option(help="Time of the first message where the file has no times (UTC)."),
    ] = None,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Write the events of FILE to the log. The same file again changes nothing.

    Formats: native events (JSON Lines), OpenAI-style messages, session files. Ids given here
    fill those that the file lacks. A bad line is reported and costs none of the good ones;
    the exit code is then 1.

    Example: sediment ingest chat.json --tenant acme --agent helper --user ana --session s1
    """
    from flows.opening import open_log

    if format not in FORMATS:
        message = f"--format: {format} is not one of {', '.join(FORMATS)}"
        raise UserError(message)
    settings = settings_from(data_dir=data_dir, brokers=brokers)
    defaults = ImportDefaults(tenant=tenant, agent=agent, user=user, session=session, team=team)
    if start_time is not None and start_time.tzinfo is None:
        from datetime import timezone

        start_time = start_time.replace(tzinfo=timezone.utc)
    items = read_events(
        file, defaults=defaults, format=cast(ImportFormat, format), start_time=start_time
    )
    appender = open_log(settings).appender
    done = Ingested()
    with progress_bar() as bar:
        task = bar.add_task("ingest", total=None)
        for done in ingest_file(items, appender, settings):
            bar.update(task, completed=done.events)
        bar.update(task, total=done.events)
    _report(done, file, settings, json)
    if done.problems:
        raise typer.Exit(1)


def _report(done: Ingested, file: Path, settings: Settings, json: bool) -> None:
    if json:
        print_json(
            {
                "events": done.events,
                "refused": len(done.problems),
                "problems": [
                    {
                        "line": problem.line,
                        "path": problem.path,
                        "reason": problem.reason,
                        "field": problem.field,
                        "message": problem.message,
                    }
                    for problem in done.problems
                ],
            }
        )
        return
    for problem in done.problems[:_PROBLEMS_SHOWN]:
        err.print(f"{file}: {problem}", markup=False, soft_wrap=True)
    if len(done.problems) > _PROBLEMS_SHOWN:
        err.print(f"… and {len(done.problems) - _PROBLEMS_SHOWN} more; --json lists them all")
    if done.synthetic_times:
        err.print(
            f"{done.synthetic_times} messages have no time of their own; they were spaced one "
            "second apart and marked as synthetic (--start-time sets the first)"
        )
    where = str(settings.data_dir) if settings.embedded else settings.brokers
    out.print(f"{done.events} events written to {where}, {len(done.problems)} refused")

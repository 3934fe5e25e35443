"""Dead letters as ``sediment dlq`` reads and shows them: which there are, a table, JSON."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from connectors.kafka.topics import DEAD_LETTER_TOPICS
from connectors.log import EndAt, LogReader, StartAt
from connectors.settings import Settings
from flows.cli.common import err, local_time, out, scope_label
from flows.upkeep.redrive import Case, Cases, Letter, read_letter
from stores.errors import InvalidEvent, UserError
from stores.records import Outcome

__all__ = ["as_base64", "as_json", "case_table", "named", "read_cases", "readable"]

_NINE_COLUMNS = 130
"""Characters a terminal must have for a table of nine columns."""

_SLACK_MS = 5 * 60 * 1000
"""How far the clocks of those who write topics may differ. It only decides where reading starts."""


def read_cases(settings: Settings, reader: LogReader) -> list[Case]:
    """Read every dead letter, and from the other topics what became of each."""
    letters: list[Letter] = []
    strange: list[str] = []
    for topic in DEAD_LETTER_TOPICS:
        for record in reader.read(settings.topic(topic), StartAt.beginning(), EndAt.latest()):
            try:
                letters.append(
                    read_letter(record, settings.generation_prefix, settings.scope_fields)
                )
            except InvalidEvent as error:
                strange.append(error.message)
    cases = Cases(letters)
    if cases.since_ms is not None:
        start = StartAt.timestamp(max(0, cases.since_ms - _SLACK_MS))
        for record in reader.read(settings.topic("outcomes"), start, EndAt.latest()):
            try:
                cases.see_outcome(Outcome.model_validate_json(record.value or b""))
            except ValidationError:
                topic, partition, offset = record.position
                strange.append(f"{topic}, partition {partition}, offset {offset}: not an outcome")
    if cases.since_ms is not None:
        start = StartAt.timestamp(max(0, cases.since_ms - _SLACK_MS))
        for topic in ("l0.events", "l2.jobs", "l3.jobs"):
            for record in reader.read(settings.topic(topic), start, EndAt.latest()):
                cases.see_event(record)
    if strange:
        more = f", and {len(strange) - 1} more" if len(strange) > 1 else ""
        err.print(f"passed over: {strange[0]}{more}", style="yellow", markup=False, soft_wrap=True)
    return cases.all()


def named(cases: Sequence[Case], ids: Sequence[str]) -> list[Case]:
    """Give the cases of these letters, each once, in their own order.

    Raises :class:`~stores.errors.UserError` when there is no such letter.
    """
    owner = {letter.id: case.id for case in cases for letter in case.copies}
    for letter_id in ids:
        if letter_id not in owner:
            message = f"ID: no dead letter {letter_id}; `sediment dlq list --state all` has the ids"
            raise UserError(message)
    wanted = {owner[letter_id] for letter_id in ids}
    return [case for case in cases if case.id in wanted]


def case_table(cases: Iterable[Case], last: str, tell: Callable[[Case], str]) -> Table:
    """Show cases, one a line; ``tell`` fills the column ``last``.

    Where nine columns would leave none of them readable, what is told of a case stands under
    each other beside its id.
    """
    if out.width < _NINE_COLUMNS:
        return _stacked(cases, last, tell)
    table = Table(expand=True)
    for column in ("id", "records", "stage", "reason", "tries", "failed", "state"):
        table.add_column(column, no_wrap=column in ("id", "failed"))
    table.add_column("scope, session", ratio=2, overflow="fold")
    table.add_column(last, ratio=3, overflow="fold")
    for case in cases:
        dead = case.newest
        table.add_row(
            case.first.id,
            str(len(case.letters)),
            dead.stage,
            dead.reason,
            str(dead.attempt),
            local_time(dead.last_failed_at),
            case.state,
            Text(_place(case)),
            Text(tell(case)),
        )
    return table


def _stacked(cases: Iterable[Case], last: str, tell: Callable[[Case], str]) -> Table:
    table = Table(expand=True)
    table.add_column("id, state", no_wrap=True)
    table.add_column(f"why, when, whose, {last}", ratio=1, overflow="fold")
    for case in cases:
        dead = case.newest
        when = local_time(dead.last_failed_at)
        lines = [
            f"{dead.stage}: {dead.reason}",
            f"{when}, records: {len(case.letters)}, tries: {dead.attempt}",
            _place(case),
            tell(case),
        ]
        table.add_row(f"{case.first.id}\n{case.state}", Text("\n".join(filter(None, lines))))
    return table


def _place(case: Case) -> str:
    return ", ".join(filter(None, [scope_label(case.scope), case.session_id]))


def as_json(case: Case) -> dict[str, Any]:
    """Give what there is to know of a case, without conversation text."""
    dead = case.newest
    return {
        "id": case.first.id,
        "state": case.state,
        "stage": dead.stage,
        "reason": dead.reason,
        "error_class": dead.error_class,
        "error": dead.error,
        "attempts": dead.attempt,
        "first_failed_at": dead.first_failed_at.isoformat(),
        "last_failed_at": dead.last_failed_at.isoformat(),
        "pipeline": dead.pipeline,
        "window_id": dead.window_id or None,
        "scope": case.scope or None,
        "session_id": case.session_id or None,
        "problem": case.problem or None,
        "letters": [
            {
                "id": letter.id,
                "topic": letter.dead.record.position.topic,
                "partition": letter.dead.record.position.partition,
                "offset": letter.dead.record.position.offset,
                "event_id": letter.event.event.event_id if letter.event else None,
            }
            for letter in case.letters
        ],
    }


def as_base64(value: bytes | None) -> str | None:
    """Give bytes for a JSON document."""
    return None if value is None else base64.b64encode(value).decode()


def readable(value: bytes | None) -> str:
    """Give bytes as their text, or in hex: never as something that a terminal would obey."""
    if value is None:
        return "(none)"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return value.hex(" ")
    obeyed = any(unicodedata.category(char) == "Cc" and char not in "\t\r\n" for char in text)
    return value.hex(" ") if obeyed else text

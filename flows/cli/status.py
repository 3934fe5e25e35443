"""``sediment status``: how far the flows are, what was given up, what ended lately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from connectors.settings import Settings
from flows.cli.common import (
    Brokers,
    DataDir,
    Json,
    err,
    local_time,
    memory_settings_from,
    out,
    print_json,
)
from stores.errors import ServiceUnavailable, UserError

if TYPE_CHECKING:
    from connectors.log import LogReader
    from connectors.stage_figures import StageFigures
    from flows.upkeep.status import DeadLetterCount, OutcomeRate, PartitionLag
    from stores.records import LogRecord

__all__ = ["status"]

_SPAN_MS = 10 * 60_000
"""Outcomes are counted over this long before the newest one."""
_METRICS_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class _Standing:
    lags: Sequence[PartitionLag]
    dead_letters: Sequence[DeadLetterCount]
    outcomes: Sequence[OutcomeRate]
    newest_outcome_ms: int
    stages: Sequence[StageFigures] | None
    model_calls: _ModelCalls | None
    redis: str | None  # why it does not answer; empty when it does, `None` when none is set


@dataclass(frozen=True)
class _ModelCalls:
    """How the limits on model calls stand, for all workers; budgets of 0 are none.

    :arg state: ``go``, ``budget`` (the day's is used up), ``paused`` (the endpoint asked everybody
        to wait), ``unknown`` (Redis does not answer).
    :arg in_flight: ``None`` without Redis: only the process that makes them knows.
    """

    state: str
    in_flight: int | None
    paused_s: float
    tokens_today: int
    tokens_per_day: int
    dollars_today: float
    dollars_per_day: float


def status(
    metrics: Annotated[
        str, typer.Option(help="Also ask this running process, as http://127.0.0.1:9100/metrics.")
    ] = "",
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Show how far each flow has read, what is in the dead letters, and what ended lately.

    Outcomes are counted over the ten minutes before the newest one. What waits in the stages is
    known to the process that runs them: --metrics asks it. With a model it also says whether calls
    go on or wait for a budget, and what was spent today.

    Example: sediment status --metrics http://127.0.0.1:9100/metrics
    """
    from flows.opening import consumer_group, open_log
    from flows.progress import EVENT_FLOWS
    from flows.upkeep.status import dead_letter_counts, outcome_rates, partition_lags
    from stores.redis_connection import why_away

    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    stages = _ask(metrics) if metrics else None
    reader = open_log(settings).reader
    events = settings.topic("l0.events")
    committed: dict[str, dict[int, int]] = {
        name: reader.committed(consumer_group(settings, name), events) for name in EVENT_FLOWS
    }
    newest_ms = _newest_ms(reader, settings.topic("outcomes"))
    standing = _Standing(
        lags=partition_lags(reader.end_offsets(events), committed),
        dead_letters=dead_letter_counts(_dead_letters(reader, settings)),
        outcomes=outcome_rates(_recent(reader, settings.topic("outcomes"), newest_ms), _SPAN_MS),
        newest_outcome_ms=newest_ms,
        stages=stages,
        model_calls=_model_calls(settings) if settings.llm_base_url else None,
        redis=why_away(settings.redis_url) if settings.redis_url else None,
    )
    if json:
        _print_json(standing)
    else:
        _show(standing)


def _model_calls(settings: Settings) -> _ModelCalls:
    from connectors.llm_limits import LedgerState, Spend, open_ledger

    with closing(open_ledger(settings)) as ledger:
        try:
            state = ledger.state()
        except ServiceUnavailable:
            state, told = LedgerState(Spend(), 0, 0.0, stopped=False), "unknown"
        else:
            told = "paused" if state.paused_s else "budget" if state.stopped else "go"
    return _ModelCalls(
        state=told,
        in_flight=state.in_flight if settings.redis_url else None,
        paused_s=round(state.paused_s, 1),
        tokens_today=state.spent.tokens,
        tokens_per_day=settings.llm_tokens_per_day,
        dollars_today=state.spent.micros / 1_000_000,
        dollars_per_day=settings.llm_dollars_per_day,
    )


def _dead_letters(reader: LogReader, settings: Settings) -> Iterator[LogRecord]:
    from connectors.kafka.topics import DEAD_LETTER_TOPICS
    from connectors.log import EndAt, StartAt

    for topic in DEAD_LETTER_TOPICS:
        yield from reader.read(settings.topic(topic), StartAt.beginning(), EndAt.latest())


def _newest_ms(reader: LogReader, topic: str) -> int:
    """Give the log's time of a topic's newest record; 0 when it has none."""
    from connectors.log import EndAt, Place, StartAt

    last = {
        partition: Place("offset", max(0, end - 1))
        for partition, end in reader.end_offsets(topic).items()
    }
    records = reader.read(topic, StartAt(partitions=last), EndAt.latest())
    return max((record.timestamp_ms for record in records), default=0)


def _recent(reader: LogReader, topic: str, newest_ms: int) -> Iterator[LogRecord]:
    from connectors.log import EndAt, StartAt

    start = StartAt.timestamp(max(0, newest_ms - _SPAN_MS))
    return reader.read(topic, start, EndAt.latest())


def _ask(url: str) -> list[StageFigures]:
    """Read a process's metrics. Raises ``ServiceUnavailable`` or ``UserError``."""
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    from connectors.stage_figures import stage_figures
    from flows.upkeep.status import log_away

    service = "metrics"
    try:
        answer = httpx.get(url, timeout=_METRICS_TIMEOUT_S)
        answer.raise_for_status()
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        message = f"--metrics: {url}: {error}"
        raise UserError(message) from None
    except httpx.HTTPError as error:
        raise ServiceUnavailable(service, f"{url}: {error}") from None
    try:
        # Said at once: what follows asks the same log.
        for doing, seconds in log_away(answer.text).items():
            err.print(f"the process has waited for Kafka for {seconds:.0f} s ({doing})")
        return stage_figures(text_string_to_metric_families(answer.text))
    except ValueError:
        message = f"--metrics: {url} answers, but not with metrics; is it the page /metrics?"
        raise UserError(message) from None


# --- what is shown ---------------------------------------------------------------------------


def _show(standing: _Standing) -> None:
    if standing.lags:
        table = _table("Flows", "flow", "partition", "committed", "end", "lag")
        for lag in standing.lags:
            table.add_row(
                lag.flow, str(lag.partition), str(lag.committed), str(lag.end), str(lag.lag)
            )
        out.print(table)
    else:
        out.print("no flow has noted how far it has read; start one with `sediment run`")
    if standing.stages is not None:
        columns = ("pending", "oldest", "in flight", "retries waiting", "retries so far")
        table = _table("Stages of the process", "stage", *columns)
        for one in standing.stages:
            table.add_row(
                one.stage,
                str(one.pending),
                f"{one.oldest_pending_s:.1f} s",
                str(one.in_flight),
                str(one.retries_waiting),
                str(one.retries),
            )
        out.print(table)
    _show_what_holds_up(standing)
    if standing.outcomes:
        newest = _moment(standing.newest_outcome_ms)
        title = f"Outcomes of the ten minutes up to {local_time(newest)}"
        table = _table(title, "result", "reason", "count", "per minute")
        for rate in standing.outcomes:
            table.add_row(rate.result, rate.reason, str(rate.count), f"{rate.per_minute:.1f}")
        out.print(table)
    else:
        out.print("nothing has ended yet")
    if standing.dead_letters:
        table = _table("Dead letters", "stage", "reason", "count", "newest")
        for letters in standing.dead_letters:
            newest_letter = local_time(_moment(letters.newest_ms))
            table.add_row(letters.stage, Text(letters.reason), str(letters.count), newest_letter)
        out.print(table)
        err.print("`sediment dlq list` tells which are not settled")
    else:
        out.print("no dead letters")


def _show_what_holds_up(standing: _Standing) -> None:
    if standing.redis:
        away = f"[bold red]redis[/]: {standing.redis}; flows wait for it (SEDIMENT_REDIS_URL)"
        out.print(away, soft_wrap=True)
    if standing.model_calls is not None:
        out.print(_told(standing.model_calls))


def _told(calls: _ModelCalls) -> str:
    """Say in one line how the limits on model calls stand."""
    what = {
        "go": "going on",
        "budget": "[bold red]waiting[/]: the day's budget is used up, until midnight UTC",
        "paused": f"[yellow]waiting[/]: the endpoint asked for it, {calls.paused_s:.0f} s more",
        "unknown": "[bold red]waiting[/]: Redis, which counts them, does not answer",
    }[calls.state]
    if calls.in_flight is not None:
        what += f"; {calls.in_flight} in flight"
    if calls.tokens_per_day:
        what += f"; {calls.tokens_today:,} of {calls.tokens_per_day:,} tokens today"
    if calls.dollars_per_day:
        what += f"; ${calls.dollars_today:.2f} of ${calls.dollars_per_day:.2f} today"
    return f"model calls: {what}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        numeric = column in ("partition", "committed", "end", "lag", "count", "per minute")
        table.add_column(column, justify="right" if numeric else "left")
    return table


def _moment(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, tz=timezone.utc)


def _print_json(standing: _Standing) -> None:
    newest = standing.newest_outcome_ms
    print_json(
        {
            "flows": [asdict(lag) | {"lag": lag.lag} for lag in standing.lags],
            "model_calls": standing.model_calls and asdict(standing.model_calls),
            "redis": None if standing.redis is None else standing.redis or "ok",
            "stages": standing.stages and [asdict(one) for one in standing.stages],
            "outcomes": [asdict(rate) for rate in standing.outcomes],
            "newest_outcome_at": _moment(newest).isoformat() if newest else None,
            "dead_letters": [
                {
                    "stage": letters.stage,
                    "reason": letters.reason,
                    "count": letters.count,
                    "newest_at": _moment(letters.newest_ms).isoformat(),
                }
                for letters in standing.dead_letters
            ],
        }
    )

"""The tables of a traffic run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["show"]


def show(found: Mapping[str, Any], flat: float, console: Console) -> None:
    """Print the tables.

    :arg flat: percent up to which memory counts as flat.
    """
    plan, recall, model = found["plan"], found["recall"], found["model"]
    lags = {
        name: max((one["lag"].get(name, 0) for one in found["samples"]), default=0)
        for name in ("l0", "l1", "l2", "l3")
    }
    letters = [f"{one['stage']} {one['reason']} {one['count']}" for one in found["dead_letters"]]
    recallable = found["recallable_within_s"]
    rows = {
        "traffic": f"{plan['scopes']} scopes, {plan['rate']:g} events/s for "
        f"{plan['minutes']:g} min ({plan['hours']:g} h of event time)",
        "disturbances": "; ".join(
            f"{one['what']} at {one['at_s']:g} s, {one['took_s']:g} s"
            for one in found["disturbances"]
        ),
        "events": f"{found['events']['accepted']} acknowledged, "
        f"{found['audit']['records']} in the log",
        "model calls": f"{model['calls']}, failed {model['share']:.1%}: {_told(model['failed'])}",
        "audit": f"{'clean' if found['audit']['clean'] else 'NOT CLEAN'}: "
        f"{_told(found['audit']['ends'])}",
        "outcomes": _told(found["outcomes"]),
        "dead letters": ", ".join(letters) or "none",
        "recall": f"{recall['availability']:.3%} of {recall['asked']} available, p50 "
        f"{recall['p50_ms']:g} ms, p95 {recall['p95_ms']:g} ms; asked again "
        f"{recall['asked_again']}; failed: {_told(recall['failures']) or 'none'}; degraded: "
        f"{_told(recall['degraded']) or 'none'}",
        "recallable within": "; ".join(
            f"{layer} p50 {times['0.5']} s, p95 {times['0.95']} s"
            for layer, times in recallable.items()
        ),
        "highest lag": _told(lags),
        "worked off after": f"{found['drained_s']:g} s",
        "processor time": _processor_time(found["processor_s"], found["events"]["accepted"]),
        "load (1 min)": ", ".join(
            f"{when} {of['load_average_1_min']}" for when, of in found["machine"].items()
        ),
    }
    table = Table(title="traffic", show_header=False)
    for name, said in rows.items():
        table.add_row(name, said)
    console.print(table)
    if not found["memory"]:
        console.print("memory is not compared: the disturbances took too long, give more minutes")
    table = Table(title=f"memory, middle to end of the traffic; flat is {flat:g} %")
    for column in ("process", "middle MB", "end MB", "grew %", "MB/h", "flat"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for one in found["memory"]:
        table.add_row(
            one["name"], f"{one['middle_mb']:.0f}", f"{one['end_mb']:.0f}", f"{one['percent']:.1f}",
            f"{one['mb_per_hour']:.0f}", "yes" if one["percent"] <= flat else "no",
        )  # fmt: skip
    if found["memory"]:
        console.print(table)
    for line in found["not_held"]:
        console.print(f"[bold red]did not hold:[/] {line}")
    if found["held"]:
        console.print("everything held")


def _told(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _processor_time(seconds: Mapping[str, float], events: int) -> str:
    """Tell the milliseconds that an event costs in all, and in which processes."""
    each = {name: 1000 * s / max(1, events) for name, s in seconds.items()}
    most = sorted(each.items(), key=lambda one: -one[1])
    return f"{sum(each.values()):.1f} ms an event: " + ", ".join(
        f"{name} {ms:.1f}" for name, ms in most
    )

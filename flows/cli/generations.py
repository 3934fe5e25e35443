"""``sediment generations``: what memories there are side by side, and which one recall reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

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
    local_time,
    out,
    print_json,
    progress_bar,
    scope_label,
    scope_of,
)
from flows.cli.generation_changes import drop, opened, promote, read_standing
from stores.generations import MAIN, Generation, Generations

if TYPE_CHECKING:
    from flows.opening import Log
    from flows.replay.diff import Difference
    from flows.replay.promotion import Standing
    from stores.records import Atom

__all__ = ["generations"]

generations = typer.Typer(
    no_args_is_help=True, help="Memories side by side, made by replay; which one recall reads."
)

_SHOWN = 40  # lines of a diff; --json gives all


@generations.command("list")
def list_(data_dir: DataDir = None, brokers: Brokers = None, json: Json = False) -> None:
    """Show every generation: state, atoms, dead letters, records not yet read.

    Example: sediment generations list --json
    """
    settings, log, register = opened(data_dir, brokers)
    known = register.read()
    found = [(one, read_standing(log, settings, one)) for one in known.standing()]
    if json:
        print_json([_as_json(known, one, standing) for one, standing in found])
        return
    table = Table(title="Generations", title_justify="left")
    for column in ("generation", "state", "atoms", "dead letters", "lag", "made of"):
        table.add_column(column, justify="right" if column in ("atoms", "lag") else "left")
    for one, standing in found:
        table.add_row(
            one.name,
            known.state(one.name) + (" (stopped)" if one.problem else ""),
            str(standing.atoms),
            str(standing.dead),
            "?" if standing.lag is None else str(standing.lag),
            _made_of(one),
            style="bold" if one.name == known.current else "",
        )
    out.print(table)
    for one, _ in found:
        if one.problem:
            err.print(f"{one.name}: {one.problem}", style="yellow", markup=False)


@generations.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="The generation to compare from.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    tenant: Tenant = "",
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Show which atoms B has and A has not, which are gone, and which changed.

    Atoms are matched by id, the rest by scope, type and text (case, width and white space do
    not count). All atoms of both, or of one scope, are held in memory.

    Example: sediment generations diff main v2 --tenant demo --agent companion --user ana
    """
    from flows.opening import in_generation
    from flows.replay.diff import compare

    settings, log, register = opened(data_dir, brokers)
    known = register.read()
    given = any((tenant, agent, user, team))
    scope = scope_of(settings, tenant, agent, user, team) if given else None
    sides = [
        _atoms(log, in_generation(settings, known.get(name).name), scope)
        for name in (before, after)
    ]
    found = compare(*sides)
    if json:
        print_json(_difference_json(found))
    else:
        _show(found, before, after)


# --- how a generation stands -----------------------------------------------------------------


def _made_of(one: Generation) -> str:
    if one.name == MAIN:
        return "live traffic"
    part = "" if one.whole() and one.end == "end" else f"{one.start} to {one.end}, "
    scope = "".join(f"{name} {value}, " for name, value in one.scope.items())
    return f"{part}{scope}{one.answers} answers, {one.extractor}"


def _as_json(known: Generations, one: Generation, standing: Standing) -> dict[str, object]:
    return {
        "generation": one.name,
        "state": known.state(one.name),
        "problem": one.problem,
        "atoms": standing.atoms,
        "dead_letters": dict(standing.given_up),
        "lag": standing.lag,
        "from": one.start,
        "to": one.end,
        "scope": one.scope,
        "answers": one.answers,
        "extractor": one.extractor,
        "windows": one.windows,
        "settings": one.settings,
        "pipeline": one.pipeline,
        "created_from": one.created_from,
    }


# --- what differs ----------------------------------------------------------------------------


def _atoms(log: Log, settings: Settings, scope: str | None) -> list[Atom]:
    from flows.upkeep.history import History, Tally

    with progress_bar() as bar:
        task = bar.add_task(settings.generation_name, total=None)
        history = History(
            log.reader,
            settings.topic,
            scope_fields=settings.scope_fields,
            dedup_ids=settings.dedup_ids,
            show=lambda: bar.update(task, completed=history.records_read),
        )
        bar.update(task, total=2 * history.atom_records())
        final = history.final_atoms(Tally())
        atoms = [one for one in history.atoms(final, Tally()) if scope in (None, one.scope)]
    for unreadable in final.unreadable:
        err.print(str(unreadable), markup=False, soft_wrap=True)
    return atoms


def _difference_json(found: Difference) -> dict[str, object]:
    return {
        "same": found.same,
        "added": [atom.model_dump(mode="json") for atom in found.added],
        "gone": [atom.model_dump(mode="json") for atom in found.gone],
        "changed": [
            {
                "fields": list(one.fields),
                "before": one.before.model_dump(mode="json"),
                "after": one.after.model_dump(mode="json"),
            }
            for one in found.changed
        ],
    }


def _show(found: Difference, before: str, after: str) -> None:
    table = Table(title=f"From {before} to {after}", title_justify="left")
    for column in ("", "scope", "said", "type", "text", "fields"):
        table.add_column(column, overflow="fold")
    rows = [
        *_rows("+", "green", found.added),
        *_rows("-", "red", found.gone),
        *((_cells("~", one.after, ", ".join(one.fields)), "yellow") for one in found.changed),
    ]
    for cells, style in rows[:_SHOWN]:
        table.add_row(*cells, style=style)
    if rows:
        out.print(table)
    if len(rows) > _SHOWN:
        err.print(f"… and {len(rows) - _SHOWN} more; --json lists them all")
    out.print(
        f"{len(found.added)} added, {len(found.gone)} gone, {len(found.changed)} changed, "
        f"{found.same} the same"
    )


def _rows(
    mark: str, style: str, atoms: Sequence[Atom]
) -> Iterator[tuple[tuple[Text | str, ...], str]]:
    for atom in atoms:
        yield _cells(mark, atom, ""), style


def _cells(mark: str, atom: Atom, fields: str) -> tuple[Text | str, ...]:
    return (
        mark,
        Text(scope_label(atom.scope)),
        local_time(atom.occurred_at),
        atom.type,
        Text(atom.text),
        fields,
    )


generations.command("promote")(promote)
generations.command("drop")(drop)

"""``sediment generations``: what memories there are side by side, and which one recall reads."""

from __future__ import annotations

import shutil
import time
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
    settings_from,
)
from stores.errors import UserError
from stores.generations import MAIN, Generation, Generations

if TYPE_CHECKING:
    from flows.generations import GenerationLog
    from flows.parts import Log
    from flows.replay.diff import Difference
    from flows.replay.promotion import Standing
    from stores.records import Atom

__all__ = ["generations"]

generations = typer.Typer(
    no_args_is_help=True, help="Memories side by side, made by replay; which one recall reads."
)

_POLL_S = 0.5
_SHOWN = 40  # lines of a diff; --json gives all
_FOLDERS = ("recovery", "scenes")  # of `main`, whose folder holds everything else as well


@generations.command("list")
def list_(data_dir: DataDir = None, brokers: Brokers = None, json: Json = False) -> None:
    """Show every generation: state, atoms, dead letters, records not yet read.

    Example: sediment generations list --json
    """
    settings, log, register = _opened(data_dir, brokers)
    known = register.read()
    found = [(one, _standing(log, settings, one)) for one in known.standing()]
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
    from flows.parts import in_generation
    from flows.replay.diff import compare

    settings, log, register = _opened(data_dir, brokers)
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


@generations.command("promote")
def promote(
    name: Annotated[str, typer.Argument(metavar="GENERATION", help="The one to read.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Go back to the one before.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until it has read what there is.")
    ] = 60.0,
    allow_dead_letters: Annotated[
        bool, typer.Option("--allow-dead-letters", help="Also with more than the current one.")
    ] = False,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Also when it holds a part of history only.")
    ] = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Make recall read another generation: in one step, and it can be undone.

    Refused while the generation lags behind the events topic as it is now, when its replay
    stopped or is not at its end, when it gave up more than the current one. Running services
    follow within about a second and fail no request.

    Example: sediment generations promote v2
    """
    if bool(name) == undo:
        message = "name a GENERATION, or --undo"
        raise UserError(message)
    settings, log, register = _opened(data_dir, brokers)
    known = register.read()
    before = known.current
    if undo:
        pointer = known.pointer.back()
        name = known.get(pointer.current).name
        lag = _wait_until_read(settings, log, known.get(name), 0)
        if lag != 0:
            err.print(f"{name} is {_lag(lag)}: start its flow", style="yellow")
    else:
        generation = known.get(name)
        pointer = known.pointer.to(name)
        if name != before:
            _check(
                settings,
                log,
                known,
                generation,
                timeout=timeout,
                allow_dead_letters=allow_dead_letters,
                allow_partial=allow_partial,
            )
    if name != before:
        register.point(pointer)
    if json:
        print_json({"current": name, "before": before, "previous": list(pointer.previous)})
        return
    if name == before:
        out.print(f"recall reads {name} already")
        return
    back = f"`sediment generations promote {'--undo' if not undo else before}` goes back"
    out.print(f"recall reads {name} now, before it was {before}; {back}", soft_wrap=True)
    err.print(f"new events reach {name} from a flow of its own: `sediment run` started anew")


@generations.command("drop")
def drop(
    name: Annotated[str, typer.Argument(metavar="GENERATION", help="The one to delete.")],
    yes: Annotated[bool, typer.Option("--yes", help="Yes, delete it.")] = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
) -> None:
    """Delete a generation for good: collections, topics, snapshots. Events stay.

    Its name is not used again. Stop its flows first; killed on the way, run it again.

    Example: sediment generations drop v1 --yes
    """
    from connectors.embeddings import make_embedder
    from flows.parts import delete_topics_of, drop_store, in_generation
    from flows.replay.lock import only_one

    settings, _, register = _opened(data_dir, brokers)
    known = register.read()
    if name not in known.manifests:
        known.get(name)  # raises
    if name == known.current:
        message = f"recall reads {name}; promote another generation before dropping it"
        raise UserError(message)
    own = in_generation(settings, name)
    if not yes:
        message = (
            f"this deletes the topics {own.generation_prefix}.* and the collections "
            f"{own.generation_collections}_* of generation {name}; add --yes when that is meant"
        )
        raise UserError(message)
    folder = settings.data_dir / "generations" / name
    with only_one(folder, name):
        # Dropped for everybody before anything is gone.
        register.write(known.manifests[name].model_copy(update={"state": "dropped"}))
        if name in known.pointer.previous:
            register.point(known.pointer.without(name))
        drop_store(own, make_embedder(own))
        delete_topics_of(own)
        for gone in _FOLDERS if name == MAIN else ():
            shutil.rmtree(settings.data_dir / gone, ignore_errors=True)
        shutil.rmtree(folder)
    out.print(f"generation {name} is gone")


# --- how a generation stands -----------------------------------------------------------------


def _opened(data_dir: object, brokers: str | None) -> tuple[Settings, Log, GenerationLog]:
    from flows.parts import generation_log, open_log

    settings = settings_from(data_dir=data_dir, brokers=brokers)
    log = open_log(settings)
    return settings, log, generation_log(settings, log)


def _standing(log: Log, settings: Settings, generation: Generation) -> Standing:
    from flows.parts import in_generation
    from flows.replay.promotion import standing_of

    own = in_generation(settings, generation.name)
    with progress_bar() as bar:
        ends = [log.reader.end_offsets(own.topic(name)) for name in ("l1.atoms", "outcomes")]
        task = bar.add_task(generation.name, total=sum(sum(one.values()) for one in ends))
        return standing_of(log.reader, own, generation, lambda read: bar.advance(task, read))


def _check(
    settings: Settings,
    log: Log,
    known: Generations,
    generation: Generation,
    *,
    timeout: float,
    allow_dead_letters: bool,
    allow_partial: bool,
) -> None:
    """Raise ``UserError`` with every reason why this generation should not be read."""
    from flows.replay.promotion import reasons_against

    lag: int | None = 0
    if not generation.problem and generation.state == "ready":
        lag = _wait_until_read(settings, log, generation, timeout)
    reasons = reasons_against(
        generation,
        _standing(log, settings, generation),
        _standing(log, settings, known.manifests[known.current]),
        allow_dead_letters=allow_dead_letters,
        allow_partial=allow_partial,
    )
    if lag != 0:
        reasons.insert(
            0,
            f"it is {_lag(lag)}; let it catch up: run its `sediment replay` command again, with "
            "--follow under live traffic",
        )
    if reasons:
        message = f"{generation.name} is not promoted: " + "; ".join(reasons)
        raise UserError(message)


def _wait_until_read(
    settings: Settings, log: Log, generation: Generation, timeout: float
) -> int | None:
    from flows.parts import in_generation
    from flows.replay.promotion import wait_until_read

    deadline = time.monotonic() + timeout
    told: int | None = -1

    def again(lag: int | None) -> bool:
        nonlocal told
        if time.monotonic() >= deadline:
            return False
        if lag != told:
            err.print(f"waiting: {generation.name} is {_lag(lag)}")
            told = lag
        time.sleep(_POLL_S)
        return True

    own = in_generation(settings, generation.name)
    return wait_until_read(log.reader, own, generation, again)


def _lag(lag: int | None) -> str:
    if lag is None:
        return "behind: no flow has noted how far it has read for it"
    return f"{lag} records behind the events topic"


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

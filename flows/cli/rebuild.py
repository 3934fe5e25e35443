"""``sediment rebuild``: the rows of the store from the topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from connectors.settings import Settings
from flows.cli.common import (
    Brokers,
    DataDir,
    Json,
    err,
    memory_settings_from,
    out,
    print_json,
    progress_bar,
)
from flows.runner import SystemClock
from flows.upkeep.history import History, Tally, Unreadable
from flows.upkeep.profiles import ProfileHistory
from flows.upkeep.rebuild import LayerResult, Rebuilder, Rebuilt
from stores.errors import UserError

if TYPE_CHECKING:
    from stores.milvus import MilvusStore
    from stores.protocols import Embedder

__all__ = [
    "bring_in",
    "open_history",
    "profile_history",
    "rebuild",
    "rebuilt_json",
    "show_problems",
    "unreadable_json",
]

_PROBLEMS_SHOWN = 20


def rebuild(
    collection_prefix: Annotated[
        str | None,
        typer.Option(
            help="Fill collections of this prefix [default: SEDIMENT_COLLECTION_PREFIX or sediment]"
        ),
    ] = None,
    drop_first: Annotated[
        bool, typer.Option("--drop-first", help="Delete the collections of that prefix first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, delete them.")] = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Fill the Milvus collections from l1.atoms, l0.events and profiles. No chat model is asked.

    Rows that are there already are left alone: run it again and it goes on. Stop the flows
    first. To change the embedding model or the analyzer, fill collections of a new prefix and
    then set SEDIMENT_COLLECTION_PREFIX to it. Exit code 1 when something could not be
    brought in.

    Example: sediment rebuild --collection-prefix sediment_v2
    """
    from connectors.embeddings import make_embedder
    from flows.opening import open_store

    settings = memory_settings_from(
        data_dir=data_dir, brokers=brokers, collection_prefix=collection_prefix
    )
    if drop_first and not yes:
        message = (
            f"--drop-first deletes the collections {settings.generation_collections}_events and "
            f"{settings.generation_collections}_atoms with all rows; add --yes when that is meant"
        )
        raise UserError(message)
    embedder = make_embedder(settings)
    done = Rebuilt()
    with open_store(settings, embedder, write=True, drop_first=drop_first) as store:
        bring_in(settings, store, embedder, done)
    if json:
        print_json(rebuilt_json(done))
    else:
        show_problems(done)
        layers = (("atoms", done.atoms), ("events", done.events), ("profiles", done.profiles))
        for name, layer in layers:
            out.print(
                f"{name}: {layer.written} written, {layer.unchanged} were there, "
                f"{len(layer.failed)} failed"
            )
        if collection_prefix is not None:
            out.print(
                f"to recall from them, set SEDIMENT_COLLECTION_PREFIX={settings.collection_prefix}"
            )
    if not done.complete:
        raise typer.Exit(1)


def bring_in(
    settings: Settings,
    store: MilvusStore,
    embedder: Embedder,
    done: Rebuilt,
    *,
    layers: Sequence[str] = ("atoms", "events", "profiles"),
    wanted: Callable[[str], bool] = lambda _: True,
) -> None:
    """Bring the rows of the scopes that are ``wanted`` into the store, with progress bars."""
    with progress_bar() as bar:
        show = _Bars(bar, done, layers)
        history = open_history(settings, show.update)
        show.totals(history)
        rebuilder = Rebuilder(store, embedder, SystemClock(), batch=settings.embeddings_batch)

        async def all_layers() -> None:
            if "atoms" in layers:
                await rebuilder.atoms(history, done, wanted)
            if "events" in layers:
                await rebuilder.events(history, done, wanted)
            if "profiles" in layers:
                profiles = profile_history(settings)
                gone = history.gone_atoms(history.final_atoms(Tally()))
                await rebuilder.profiles(profiles, done, wanted, gone)

        asyncio.run(all_layers())
        show.update()


def open_history(settings: Settings, show: Callable[[], None] = lambda: None) -> History:
    """Open the topics as they stand now, without what was forgotten."""
    from flows.opening import open_log, open_tombstones

    log = open_log(settings)
    return History(
        log.reader,
        settings.topic,
        scope_fields=settings.scope_fields,
        dedup_ids=settings.dedup_ids,
        kept_out=open_tombstones(settings, log).known,
        show=show,
    )


def profile_history(settings: Settings) -> ProfileHistory:
    """Open the topic of scenes and personas as it stands now."""
    from flows.opening import open_log

    return ProfileHistory(open_log(settings).reader, settings.topic("profiles"))


class _Bars:
    """Three bars: the atoms topic read through, atoms brought in, events brought in."""

    def __init__(self, bar: Progress, done: Rebuilt, layers: Sequence[str]) -> None:
        self._bar = bar
        self._done = done
        names = ["atom records", "atoms"] if "atoms" in layers else []
        names += ["events"] if "events" in layers else []
        self._tasks = {name: bar.add_task(name, total=None) for name in names}

    def totals(self, history: History) -> None:
        self._set("atom records", total=history.atom_records())
        self._set("events", total=history.event_records())

    def update(self) -> None:
        done = self._done
        self._set("atom records", completed=done.scanned.read)
        self._set("atoms", completed=done.atoms_read.read, total=done.atoms_total or None)
        self._set("events", completed=done.events_read.read)

    def _set(self, name: str, **values: int | None) -> None:
        if name in self._tasks:
            self._bar.update(self._tasks[name], **values)  # type: ignore[arg-type]


def rebuilt_json(done: Rebuilt) -> dict[str, object]:
    """Give the result for scripts."""

    def layer(result: LayerResult) -> dict[str, object]:
        failed = [
            {"scope": row.scope, "id": row.id, "reason": row.reason, "message": row.message}
            for row in result.failed
        ]
        return {"written": result.written, "unchanged": result.unchanged, "failed": failed}

    return {
        "complete": done.complete,
        "atoms": layer(done.atoms),
        "events": layer(done.events),
        "profiles": layer(done.profiles),
        "unreadable": [unreadable_json(one) for one in done.unreadable],
        "atoms_grew": done.atoms_grew,
    }


def unreadable_json(one: Unreadable) -> dict[str, object]:
    """Give a record of the atoms topic that is not an atom, for scripts."""
    topic, partition, offset = one.position
    return {"topic": topic, "partition": partition, "offset": offset, "reason": one.reason}


def show_problems(done: Rebuilt) -> None:
    """List on stderr what could not be brought in."""
    lines = [str(one) for one in done.unreadable]
    lines += [
        f"{row.layer} of {row.scope}: {row.id}: {row.message}"
        for row in (*done.atoms.failed, *done.events.failed, *done.profiles.failed)
    ]
    for line in lines[:_PROBLEMS_SHOWN]:
        err.print(line, markup=False, soft_wrap=True)
    if len(lines) > _PROBLEMS_SHOWN:
        err.print(f"… and {len(lines) - _PROBLEMS_SHOWN} more; --json lists them all")
    if done.atoms_grew:
        err.print("a flow wrote atoms meanwhile: stop the flows and run it again")

"""``sediment generations promote`` and ``drop``: which one recall reads, and which one goes."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from connectors.settings import Settings
from flows.cli.common import (
    Brokers,
    DataDir,
    Json,
    err,
    out,
    print_json,
    progress_bar,
    settings_from,
)
from flows.runner import SystemClock
from stores.errors import UserError
from stores.generations import Generation, Generations

if TYPE_CHECKING:
    from flows.generations import GenerationLog
    from flows.parts import Log
    from flows.replay.dropping import Belonging
    from flows.replay.pending import Pending
    from flows.replay.promotion import Standing

__all__ = ["drop", "opened", "promote", "read_standing"]

_POLL_S = 0.5


def promote(
    name: Annotated[str, typer.Argument(metavar="GENERATION", help="The one to read.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Go back to the one before.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until it has done what there is.")
    ] = 60.0,
    allow_dead_letters: Annotated[
        bool, typer.Option("--allow-dead-letters", help="Also with more than the current one.")
    ] = False,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Also when it holds a part of history only.")
    ] = False,
    allow_pending: Annotated[
        bool,
        typer.Option(
            "--allow-pending", help="Also with windows or jobs open that the current one has done."
        ),
    ] = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Make recall read another generation: in one step, and it can be undone.

    Refused while the generation lags behind the events topic as it is now, while windows, scene
    or persona jobs are open in it that the current one has done, when its replay stopped or is
    not at its end, when it gave up more than the current one. Running services follow within
    about a second and fail no request.

    Example: sediment generations promote v2
    """
    if bool(name) == undo:
        message = "name a GENERATION, or --undo"
        raise UserError(message)
    settings, log, register = opened(data_dir, brokers)
    known = register.read()
    before = known.current
    pending: Pending | None = None
    if undo:
        pointer = known.pointer.back()
        name = known.get(pointer.current).name
        waiting = _Waiting(settings, log, known, known.get(name), timeout=0)
        if (lag := waiting.lag()) != 0:
            err.print(f"{name} is {_lag(lag)}: start its flow", style="yellow")
        pending = waiting.pending()
        for one in pending.behind():
            err.print(f"{name}: {one}", style="yellow", markup=False)
    else:
        generation = known.get(name)
        pointer = known.pointer.to(name)
        if name != before:
            waiting = _Waiting(settings, log, known, generation, timeout=timeout)
            pending = _check(
                waiting,
                allow_dead_letters=allow_dead_letters,
                allow_partial=allow_partial,
                allow_pending=allow_pending,
            )
    if name != before:
        register.point(pointer)
    if json:
        done = {"current": name, "before": before, "previous": list(pointer.previous)}
        print_json({**done, "pending": asdict(pending) if pending is not None else None})
        return
    if name == before:
        out.print(f"recall reads {name} already")
        return
    back = f"`sediment generations promote {'--undo' if not undo else before}` goes back"
    out.print(f"recall reads {name} now, before it was {before}; {back}", soft_wrap=True)
    came = _Waiting(settings, log, known, known.get(name), timeout=0).lag()
    if came and not undo:
        err.print(f"{came} records came meanwhile: the flow that fills {name} reads them")
    err.print(f"new events reach {name} from a flow of its own: `sediment run` started anew")


def drop(
    name: Annotated[str, typer.Argument(metavar="GENERATION", help="The one to delete.")],
    yes: Annotated[bool, typer.Option("--yes", help="Yes, delete it.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would go, also with --yes.")
    ] = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Delete a generation for good: everything that is its own, wherever it is kept. Events stay.

    Collections, topics, snapshots, scene and persona folders, the answers that were recorded for
    it alone, locks and counters in Redis. Its name is not used again. Stop its flows first;
    killed on the way, run it again.

    Example: sediment generations drop v1 --dry-run
    """
    from flows.parts import in_generation
    from flows.replay.dropping import belongings, delete_all
    from flows.replay.lock import only_one

    settings, _, register = opened(data_dir, brokers)
    known = register.read()
    if name not in known.manifests:
        known.get(name)  # raises
    if name == known.current:
        message = f"recall reads {name}; promote another generation before dropping it"
        raise UserError(message)
    own, generation = in_generation(settings, name), known.manifests[name]
    found = belongings(own, generation)
    if dry_run or not yes:
        _show_belongings(name, found, json=json)
    if dry_run:
        return
    if not yes:
        message = f"all of this of generation {name} would be gone; add --yes when that is meant"
        raise UserError(message)
    folder = settings.data_dir / "generations" / name
    with only_one(folder, name):
        # Dropped for everybody before anything is gone.
        register.write(generation.model_copy(update={"state": "dropped"}))
        if name in known.pointer.previous:
            register.point(known.pointer.without(name))
        delete_all(own, generation)
        shutil.rmtree(folder, ignore_errors=True)  # the lock's own
    if json:
        print_json({"dropped": name, "items": [asdict(one) for one in found]})
    else:
        out.print(f"generation {name} is gone")


def _show_belongings(name: str, found: list[Belonging], *, json: bool) -> None:
    if json:
        print_json({"dropped": None, "items": [asdict(one) for one in found]})
        return
    table = Table(title=f"What goes with generation {name}", title_justify="left")
    for column in ("what", "name", "holds"):
        table.add_column(column, overflow="fold")
    for one in found:
        table.add_row(one.kind, one.name, "" if one.count is None else str(one.count))
    out.print(table)


# --- how a generation stands -----------------------------------------------------------------


def opened(data_dir: object, brokers: str | None) -> tuple[Settings, Log, GenerationLog]:
    """Open the log and the register of generations."""
    from flows.parts import generation_log, open_log

    settings = settings_from(data_dir=data_dir, brokers=brokers)
    log = open_log(settings)
    return settings, log, generation_log(settings, log)


def read_standing(log: Log, settings: Settings, generation: Generation) -> Standing:
    """Read how a generation stands, with a progress bar."""
    from flows.parts import in_generation
    from flows.replay.promotion import standing_of

    own = in_generation(settings, generation.name)
    with progress_bar() as bar:
        ends = [log.reader.end_offsets(own.topic(name)) for name in ("l1.atoms", "outcomes")]
        task = bar.add_task(generation.name, total=sum(sum(one.values()) for one in ends))
        return standing_of(log.reader, own, generation, lambda read: bar.advance(task, read))


class _Waiting:
    """Waits until a generation has done what there is, and says what it has not.

    :arg timeout: seconds for all of it; 0 only looks.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        known: Generations,
        generation: Generation,
        *,
        timeout: float,
    ) -> None:
        from flows.parts import in_generation
        from flows.replay.pending import Progressed

        self.settings = settings
        self.log = log
        self.known = known
        self.generation = generation
        self._own = in_generation(settings, generation.name)
        self._deadline = time.monotonic() + timeout
        self._told = ""
        self._this = Progressed(log.reader, self._own)
        self._current = Progressed(log.reader, in_generation(settings, known.current))

    def lag(self) -> int | None:
        """Wait until it has read the events topic as it is now; give the lag then left."""
        from flows.replay.promotion import wait_until_read

        return wait_until_read(
            self.log.reader, self._own, self.generation, lambda lag: self._again(f" is {_lag(lag)}")
        )

    def pending(self) -> Pending:
        """Wait until it has finished what the current one has; give what it has not."""
        from flows.replay.pending import pending_of
        from flows.replay.promotion import span_asked

        span = span_asked(self.log.reader, self._own, self.generation)
        while True:
            self._current.refresh()
            self._this.refresh()
            found = pending_of(
                self._this,
                self._current,
                None if self.generation.scope else span,
                SystemClock().now(),
                timedelta(seconds=self.settings.scene_max_wait_s),
            )
            if not found.behind() or not self._again(": " + "; ".join(found.behind())):
                return found

    def _again(self, what: str) -> bool:
        if time.monotonic() >= self._deadline:
            return False
        if what != self._told:
            err.print(f"waiting: {self.generation.name}{what}", markup=False, soft_wrap=True)
            self._told = what
        time.sleep(_POLL_S)
        return True


def _check(
    waiting: _Waiting, *, allow_dead_letters: bool, allow_partial: bool, allow_pending: bool
) -> Pending | None:
    """Raise ``UserError`` with every reason why this generation should not be read."""
    from flows.replay.promotion import reasons_against

    generation, known = waiting.generation, waiting.known
    lag: int | None = 0
    pending: Pending | None = None
    if not generation.problem and generation.state == "ready":
        lag = waiting.lag()
        pending = waiting.pending()
    reasons = reasons_against(
        generation,
        read_standing(waiting.log, waiting.settings, generation),
        read_standing(waiting.log, waiting.settings, known.manifests[known.current]),
        allow_dead_letters=allow_dead_letters,
        allow_partial=allow_partial,
    )
    if pending is not None:
        style = "yellow" if pending.behind() else ""
        for one in (*(pending.behind() if allow_pending else ()), *pending.waiting()):
            err.print(f"{generation.name}: {one}", style=style, markup=False, soft_wrap=True)
        if pending.behind() and not allow_pending:
            reasons.insert(
                0,
                "the current one has finished more: "
                + "; ".join(pending.behind())
                + "; wait for its flow, or use --allow-pending",
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
    return pending


def _lag(lag: int | None) -> str:
    if lag is None:
        return "behind: no flow has noted how far it has read for it"
    return f"{lag} records behind the events topic"

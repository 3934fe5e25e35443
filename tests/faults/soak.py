"""``make soak``: many seeded runs against real processes. Exit code 1 when one did not hold.

python -m tests.faults --runs 1000 --seed 0 --jobs 2
python -m tests.faults --runs 1 --seed 417       # repeats a failure that was printed

After Ctrl-C the runs that have begun are ended, and told with the others; exit code 130.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import queue
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import fields
from multiprocessing.queues import Queue
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.faults.drive import Driver, Verdict
from tests.faults.scenario import FAULTS, Scenario
from tests.faults.servers import PATIENCE_S, running_servers
from tests.rig import kafka
from tests.rig.kafka import real_kafka

_CONTEXT = mp.get_context("spawn")
_INTERRUPTED = 130

err = Console(stderr=True)


def main() -> None:
    """Run what was asked for and say how it went."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=100, help="scenarios, one a seed [100]")
    parser.add_argument("--seed", type=int, default=0, help="the first seed [0]")
    parser.add_argument("--minutes", type=float, default=0, help="begin no run after that [no end]")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each on own servers [1]")
    parser.add_argument("--fault", choices=sorted(FAULTS), help="only seeds that are about this")
    parser.add_argument(
        "--ledger",
        type=Path,
        help="add each run to this file as a line of JSON; seeds in it that held are left out, and "
        "the table is of all in it",
    )
    parser.add_argument("--keep", help="keep the folders of runs that did not hold in this one")
    arguments = parser.parse_args()
    before = _read_ledger(arguments.ledger) if arguments.ledger else []
    held = {verdict.seed for verdict in before if not verdict.wrong}
    wanted = _seeds(arguments.seed, arguments.runs, arguments.fault)
    seeds = [seed for seed in wanted if seed not in held]
    began = time.monotonic()
    until = began + 60 * arguments.minutes if arguments.minutes else float("inf")
    stop = Stop(until)
    verdicts, lost = _work_on(seeds, arguments.jobs, stop, arguments.keep, arguments.ledger)
    newest = {verdict.seed: verdict for verdict in [*before, *verdicts]}
    _tell(list(newest.values()), time.monotonic() - began)
    if any(verdict.wrong for verdict in newest.values()) or lost:
        sys.exit(1)
    sys.exit(_INTERRUPTED if stop.asked() else not newest)


def _read_ledger(path: Path) -> list[Verdict]:
    if not path.exists():
        return []
    found: list[Verdict] = []
    for line in path.read_bytes().splitlines():
        row = orjson.loads(line)
        row["wrong"] = tuple(row["wrong"])
        row["model_failures"] = Counter(row["model_failures"])
        found.append(Verdict(**row))
    return found


def _write_ledger(path: Path, verdict: Verdict) -> None:
    with path.open("ab") as file:
        row = {one.name: getattr(verdict, one.name) for one in fields(verdict)}
        file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _seeds(first: int, runs: int, fault: str | None) -> list[int]:
    if fault is None:
        return list(range(first, first + runs))
    names = list(FAULTS)
    start = first + (names.index(fault) - first) % len(names)
    return list(range(start, start + runs * len(names), len(names)))


class Stop:
    """Says to all workers when to begin no run any more: at a time, or after Ctrl-C."""

    def __init__(self, until: float) -> None:
        """``until`` is a time of ``time.monotonic``, which all processes share."""
        self._until = until
        self._event = _CONTEXT.Event()

    def ask(self) -> None:
        """Begin no run any more."""
        self._event.set()

    def asked(self) -> bool:
        """Say whether somebody asked."""
        return self._event.is_set()

    def reached(self) -> bool:
        """Say whether no run is to be begun."""
        return self.asked() or time.monotonic() >= self._until


def _work_on(
    seeds: list[int], jobs: int, stop: Stop, keep: str | None, ledger: Path | None
) -> tuple[list[Verdict], int]:
    """Give the verdicts, and how many workers ended before their work did."""
    todo: Queue[int] = _CONTEXT.Queue()
    done: Queue[Verdict | str] = _CONTEXT.Queue()
    for seed in seeds:
        todo.put(seed)
    workers = [_CONTEXT.Process(target=_worker, args=(todo, done, stop, keep)) for _ in range(jobs)]
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers and their servers inherit this
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    verdicts: list[Verdict] = []
    lost = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=err) as bar:
        task = bar.add_task("scenarios", total=len(seeds))
        while any(worker.is_alive() for worker in workers) or not done.empty():
            if interrupts and not stop.asked():
                stop.ask()
                err.print("stopping: the runs that have begun are ended first")
            try:
                verdict = done.get(timeout=0.5)
            except queue.Empty:
                continue
            if isinstance(verdict, str):
                lost += 1
                err.print(f"a worker has ended: {verdict}", style="bold red", markup=False)
                continue
            verdicts.append(verdict)
            if ledger:
                _write_ledger(ledger, verdict)
            bar.advance(task)
            if not err.is_terminal:  # a log file gets a line a run; a terminal has the bar
                how = "did not hold" if verdict.wrong else "held"
                err.print(f"{len(verdicts)}: {how}, {verdict.seconds:.0f} s, {verdict.fault}")
            if verdict.wrong:
                _tell_wrong(verdict)
    todo.cancel_join_thread()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            lost += 1
            err.print(f"a worker has ended with exit code {worker.exitcode}", style="bold red")
    return verdicts, lost


def _worker(todo: Queue[int], done: Queue[Verdict | str], stop: Stop, keep: str | None) -> None:
    kafka.START_TIMEOUT_S = PATIENCE_S  # a soak goes on beside other work
    try:
        with tempfile.TemporaryDirectory(prefix="sediment-faults-") as name, real_kafka() as broker:
            # Of its own: workers come to the same conversation at the same time.
            folder = Path(keep) / f"worker-{os.getpid()}" if keep else Path(name)
            folder.mkdir(parents=True, exist_ok=True)
            with running_servers(broker, Path(name)) as servers:
                driver = Driver(servers, folder, keep=keep is not None)
                while not stop.reached():
                    try:
                        seed = todo.get(timeout=1)
                    except queue.Empty:
                        break
                    done.put(driver.run(Scenario.of(seed)))
    except Exception as error:
        done.put(f"{type(error).__name__}: {error}")


def _tell_wrong(verdict: Verdict) -> None:
    err.print(f"seed {verdict.seed} ({verdict.fault}) did not hold:", style="bold red")
    for line in verdict.wrong:
        err.print(f"  {line}", markup=False, soft_wrap=True)
    again = f"python -m tests.faults --runs 1 --seed {verdict.seed}"
    err.print(f"  again: {again}", markup=False)


def _tell(verdicts: list[Verdict], seconds: float) -> None:
    table = Table(title="Seeded fault runs", title_justify="left")
    for column in ("fault", "runs", "did not hold", "seconds a run"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for fault in FAULTS:
        ones = [verdict for verdict in verdicts if verdict.fault == fault]
        if ones:
            wrong = sum(bool(one.wrong) for one in ones)
            mean = sum(one.seconds for one in ones) / len(ones)
            table.add_row(fault, str(len(ones)), str(wrong or ""), f"{mean:.1f}")
    out = Console()
    out.print(table)
    wrong_seeds = sorted(verdict.seed for verdict in verdicts if verdict.wrong)
    failures: Counter[str] = Counter()
    for verdict in verdicts:
        failures.update(verdict.model_failures)
    chats = sum(verdict.chats for verdict in verdicts)
    processes = sum(verdict.processes for verdict in verdicts)
    windows = sum(verdict.windows for verdict in verdicts)
    out.print(
        f"{len(verdicts)} runs, these in {seconds:.0f} s; {processes} processes of the flow, "
        f"{windows} windows, {chats} calls of the model, of which {failures.total()} failed "
        f"({', '.join(f'{count} {name}' for name, count in failures.most_common())})"
    )
    if wrong_seeds:
        out.print(f"did not hold: seeds {', '.join(map(str, wrong_seeds))}", style="bold red")
    elif not verdicts:
        out.print("nothing was run", style="bold red")
    else:
        out.print("all held: nothing unexplained, nothing doubled, order kept")

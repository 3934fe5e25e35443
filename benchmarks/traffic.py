"""Two hours' worth of traffic, compressed, with disturbances: what holds, and what it costs.

    python -m benchmarks.traffic --minutes 20 --rate 200 --scopes 1000 --out DIR

A whole installation on this machine: real Apache Kafka, Redis and Milvus (2.3.5, dense only), the
flows l0, l1, l2 and l3 and two query services as processes of their own. The chat model and the
embeddings are scripted, over HTTP; 5 % of the model's calls fail (500, 429, timeout, broken JSON).
While events and questions go on, the broker is killed and started on its data, l1 goes from one
worker to two, and both query services are restarted one after the other.

Then every session is ended and the rest worked off. Exit code 1 when the audit is not clean, not
everything ended, an acknowledged event is missing, a process died, or recall was available for
less than 99.9 %; 3 when something did not start. Memory is told and not judged. Ctrl-C stops all
that was started.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks.__main__ import machine
from benchmarks.faults import outcomes
from benchmarks.traffic_plan import (
    AGENT,
    DISTURBANCES,
    TENANT,
    Failures,
    Plan,
    growths,
    not_held,
    recalls,
    within_s,
)
from benchmarks.traffic_report import show
from benchmarks.traffic_rig import Asker, Onlooker, Program, Speaker, free_port
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.topics import create_topics
from connectors.log import StartAt
from flows.cli.common import progress_bar
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import KafkaBroker, real_kafka
from tests.rig.milvus_server import milvus_server
from tests.rig.redis import running_redis
from tests.rig.scripted_llm import ScriptedLlm, scripted_llm

PARTITIONS = 4
DIMENSION = 64
MODEL_TIMEOUT_S = 10
QUIET_S, BETWEEN_S, MAX_WAIT_S = 10.0, 900.0, 3600.0  # of scenes, the defaults
_SETTLED_S = 22.0  # lag is measured every 10 s: two looks of each flow
_AUDIT_EVERY_S = 15.0
_MISSING = {
    "java": "Java 17 or newer",
    "mvn": "Apache Maven",
    "redis-server": "redis-server",
}


@dataclass
class Installation:
    """What runs, and the environment in which its commands run."""

    broker: KafkaBroker
    model: ScriptedLlm
    failures: Failures
    environment: Mapping[str, str]
    key: str
    flows: dict[str, Program]
    services: list[Program]
    died: list[str] = field(default_factory=list)
    done: list[dict[str, Any]] = field(default_factory=list)
    """Disturbances, with when they began and how long they took."""

    @property
    def programs(self) -> list[Program]:
        """Give every process of ours."""
        return [*self.flows.values(), *self.services]

    def disturb(self, name: str, elapsed_s: float) -> None:
        """Do one of the disturbances, to its end."""
        ways: dict[str, Callable[[], None]] = {
            "broker killed": self._kill_broker,
            "l1 rescaled": self._rescale,
            "query services restarted": self._roll,
        }
        began = time.monotonic()
        ways[name]()
        took = round(time.monotonic() - began, 1)
        self.done.append({"what": name, "at_s": round(elapsed_s, 1), "took_s": took})

    def revive(self) -> None:
        """Start again what ended by itself, as a supervisor would, and note it."""
        for program in self.programs:
            if program.ended:
                self.died.append(program.name)
                program.start()

    def _kill_broker(self) -> None:
        self.broker.stop(kill=True)
        self.broker.start()

    def _rescale(self) -> None:
        flow = self.flows["l1"]
        self._stop(flow)
        flow.arguments = ("run", "l1", "--workers", "2")
        flow.start()
        flow.wait_until_ready()

    def _roll(self) -> None:
        for service in self.services:
            self._stop(service)
            service.start()
            service.wait_until_ready()

    def _stop(self, program: Program) -> None:
        if program.stop() != 0:
            self.died.append(program.name)

    def sediment(self, *arguments: str) -> Any:
        """Run a command that prints JSON; a check that finds something is no failure here."""
        return _sediment(self.environment, *arguments)


# --- setting up ------------------------------------------------------------------------------


@contextmanager
def installed(plan: Plan, fail_rate: float, folder: Path, logs: Path) -> Iterator[Installation]:
    """Start everything and wait until it is ready; stop all of it at the end."""
    failures = Failures(fail_rate, plan.seed)
    with (
        real_kafka() as broker,
        running_redis(folder) as redis,
        milvus_server(folder / "milvus") as milvus,
        scripted_llm(failures, answer=answer, dimension=DIMENSION) as model,
        ExitStack() as stack,
    ):
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SEDIMENT_")},
            "SEDIMENT_BROKERS": broker.bootstrap,
            "SEDIMENT_REDIS_URL": redis.url,
            "SEDIMENT_MILVUS_URI": milvus,
            "SEDIMENT_LLM_BASE_URL": model.url,
            "SEDIMENT_LLM_MODEL": SCRIPTED_MODEL,
            "SEDIMENT_LLM_TIMEOUT_S": str(MODEL_TIMEOUT_S),
            "SEDIMENT_EMBEDDINGS_BASE_URL": model.url,
            "SEDIMENT_EMBEDDINGS_MODEL": SCRIPTED_MODEL,
            "SEDIMENT_EMBEDDINGS_DIMENSION": str(DIMENSION),
            "SEDIMENT_API_KEYS_FILE": str(folder / "keys.json"),
            "SEDIMENT_DATA_DIR": str(folder / "commands"),
            # Scenes wait by the clock, so their times are compressed as the events' are.
            "SEDIMENT_SCENE_QUIET_S": f"{QUIET_S / plan.compression:.2f}",
            "SEDIMENT_SCENE_BETWEEN_S": f"{BETWEEN_S / plan.compression:.2f}",
            "SEDIMENT_SCENE_MAX_WAIT_S": f"{MAX_WAIT_S / plan.compression:.2f}",
        }
        create_topics(KafkaConnection(broker.bootstrap), "sediment", PARTITIONS)
        key = _sediment(
            environment, "keys", "create", "asker", "--json", "--right", "read",
            "--tenant", TENANT, "--agent", AGENT,
        )["key"]  # fmt: skip

        def program(name: str, arguments: Sequence[str], port_name: str, data: str) -> Program:
            port = free_port()
            own = {port_name: str(port), "SEDIMENT_DATA_DIR": str(folder / data)}
            return Program(name, arguments, {**environment, **own}, port, logs / f"{name}.log")

        # l2 and l3 work on the same files, as in k8s/base.
        flows = {
            name: program(name, ("run", name), "SEDIMENT_METRICS_PORT", data)
            for name, data in (("l0", "l0"), ("l1", "l1"), ("l2", "layers"), ("l3", "layers"))
        }
        # So that /ui of both shows how it stands while it runs.
        asked = json.dumps([f"{flow.url}/metrics" for flow in flows.values()])
        environment["SEDIMENT_FLOW_METRICS"] = asked
        environment["SEDIMENT_UI_SECRET"] = secrets.token_hex(16)
        services = [
            program(name, ("serve",), "SEDIMENT_PORT", name) for name in ("query-1", "query-2")
        ]
        here = Installation(broker, model, failures, environment, key, flows, services)
        stack.callback(_stop_all, here.programs)
        for one in here.programs:
            one.start()
        for one in here.programs:
            one.wait_until_ready()
        yield here


def _sediment(environment: Mapping[str, str], *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments],
        env=dict(environment),
        capture_output=True,
        check=False,
    )
    if not done.stdout.startswith((b"{", b"[")):
        message = f"sediment {' '.join(arguments)}: {done.stderr.decode(errors='replace')[-1500:]}"
        raise RuntimeError(message)
    return json.loads(done.stdout)


def _stop_all(programs: Sequence[Program]) -> None:
    for program in programs:
        if program.process is not None:
            program.process.terminate()
    for program in programs:
        program.stop()


# --- the run ---------------------------------------------------------------------------------


def traffic(
    plan: Plan, fail_rate: float, asks_per_s: float, drain_s: float, logs: Path
) -> dict[str, Any]:
    """Run it and give what was found."""
    started = {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), **machine()}
    with tempfile.TemporaryDirectory(prefix="sediment-traffic-") as name, progress_bar() as bar:
        starting = bar.add_task("servers and processes", total=1)
        with installed(plan, fail_rate, Path(name), logs) as here, ExitStack() as stack:
            bar.advance(starting)
            connection = KafkaConnection(here.broker.bootstrap)
            speaker = Speaker(plan, connection.producer(300.0), "sediment.l0.events")
            urls = [service.url for service in here.services]
            asker = Asker(urls, here.key, asks_per_s, speaker.conversations, plan.seed)
            onlooker = Onlooker(
                here.programs, list(here.flows.values()), min(30.0, max(2.0, plan.seconds / 200))
            )
            for part in (onlooker, speaker, asker):
                part.start()
                stack.callback(part.stop)
            _talk(plan, here, speaker, bar)
            asker.stop()
            speaker.stop()
            speaker.finish()
            loaded = machine()
            began = time.monotonic()
            audit = _drained(here, onlooker, drain_s, bar)
            drained_s = time.monotonic() - began
            onlooker.stop()
            return _found(
                plan, here, speaker, asker, onlooker, audit,
                {"started": started, "at the end of the traffic": loaded}, drained_s,
            )  # fmt: skip


@dataclass
class _Lines:
    """Tells a pipe every minute how far it is, which sees no bars."""

    bar: Progress
    next_s: float = 0.0

    def tell(self, said: str) -> None:
        if time.monotonic() >= self.next_s and not self.bar.console.is_terminal:
            self.next_s = time.monotonic() + 60
            self.bar.console.print(f"{datetime.now(timezone.utc):%H:%M:%S} {said}")


def _talk(plan: Plan, here: Installation, speaker: Speaker, bar: Progress) -> None:
    """Let it flow, and disturb it when it is time."""
    task = bar.add_task("events said", total=plan.events)
    lines = _Lines(bar)
    coming = list(DISTURBANCES)
    began = time.monotonic()
    while speaker.running or time.monotonic() - began < plan.seconds:
        elapsed = time.monotonic() - began
        if coming and elapsed >= coming[0].share * plan.seconds:
            bar.update(task, description=coming[0].name)
            here.disturb(coming.pop(0).name, elapsed)
            bar.update(task, description="events said")
        here.revive()
        here.model.clear()  # it keeps every request, and would fill the memory
        bar.update(task, completed=speaker.said)
        lines.tell(f"{speaker.said} of {plan.events} events said")
        time.sleep(0.5)
    bar.update(task, completed=speaker.said)


def _drained(here: Installation, onlooker: Onlooker, most_s: float, bar: Progress) -> Any:
    """Wait until every event has ended; give the last audit."""
    task = bar.add_task("working off", total=None)
    lines = _Lines(bar)
    deadline = time.monotonic() + most_s
    still_since = time.monotonic()
    while True:
        here.revive()
        here.model.clear()
        left = _left(onlooker, len(here.flows))
        bar.update(task, description=f"working off ({left})")
        lines.tell(f"working off, {left} left")
        if left != 0:
            still_since = time.monotonic()
        if time.monotonic() - still_since >= _SETTLED_S or time.monotonic() > deadline:
            audit = here.sediment("audit", "--json")
            if not waiting(audit) or time.monotonic() > deadline:
                return audit
            still_since = time.monotonic() - _SETTLED_S + _AUDIT_EVERY_S
        time.sleep(1.0)


def _left(onlooker: Onlooker, flows: int) -> int | None:
    """Count what is unread or waits; ``None`` while a flow does not tell."""
    if not onlooker.samples or len(onlooker.samples[-1].lag) < flows:
        return None
    newest = onlooker.samples[-1]
    return sum(newest.lag.values()) + sum(newest.pending.values())


def waiting(audit: Mapping[str, Any]) -> int:
    """Count the records of an audit that have not ended."""
    counts = (audit["ends"].get(name, 0) for name in ("open", "pending", "not_read"))
    return sum(sum(one.values()) if isinstance(one, dict) else one for one in counts)


# --- what was found --------------------------------------------------------------------------


def _found(
    plan: Plan,
    here: Installation,
    speaker: Speaker,
    asker: Asker,
    onlooker: Onlooker,
    audit: Mapping[str, Any],
    machines: Mapping[str, Any],
    drained_s: float,
) -> dict[str, Any]:
    asked = recalls(asker.asks)
    ended = {one["what"] for one in here.done}
    wrong = not_held(
        clean=audit["clean"],
        drained=not waiting(audit),
        accepted=speaker.accepted,
        refused=speaker.refused,
        recorded=audit["records"],
        asked=asked,
        died=here.died,
        skipped=[one.name for one in DISTURBANCES if one.name not in ended],
    )
    kinds = Counter(
        f"{outcome.kind} {outcome.result}"
        for outcome, _ in outcomes(here.broker.bootstrap, StartAt.beginning())
    )
    pages = onlooker.last_pages
    calm_s = max((one["at_s"] + one["took_s"] for one in here.done), default=0.0)
    return {
        "held": not wrong,
        "not_held": wrong,
        "plan": {**asdict(plan), "compression": round(plan.compression, 1)},
        "machine": machines,
        "disturbances": here.done,
        "events": {"accepted": speaker.accepted, "refused": speaker.refused},
        "drained_s": round(drained_s, 1),
        "model": {
            "calls": here.failures.calls,
            "failed": dict(here.failures.failed),
            "share": round(here.failures.failed.total() / max(1, here.failures.calls), 4),
        },
        "audit": {name: audit[name] for name in ("clean", "records", "ends", "outcomes")},
        "problems": audit["problems"][:20],
        "outcomes": dict(sorted(kinds.items())),
        "dead_letters": here.sediment("status", "--json")["dead_letters"],
        "processor_s": {name: round(s, 1) for name, s in sorted(onlooker.processor_s.items())},
        "recall": {**asdict(asked), "availability": round(asked.availability, 5)},
        "recallable_within_s": {
            layer: {
                str(share): within_s(pages.get(flow, ""), layer, share) for share in (0.5, 0.95)
            }
            for layer, flow in (("events", "l0"), ("atoms", "l1"))
        },
        "memory": [
            {**asdict(one), "percent": round(one.percent, 1)}
            for one in growths(onlooker.samples, plan.seconds, calm_s)
        ],
        "asks": [asdict(ask) for ask in asker.asks],
        "samples": [asdict(sample) for sample in onlooker.samples],
    }


def _interrupted(number: int, frame: object) -> NoReturn:
    for one in (signal.SIGINT, signal.SIGTERM):  # stopping is bounded, and is not broken off
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.traffic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=20, help="of traffic, by the clock [20]")
    parser.add_argument("--rate", type=float, default=200, help="events a second [200]")
    parser.add_argument("--scopes", type=int, default=1000, help="users who talk [1000]")
    parser.add_argument("--asks", type=float, default=5, help="recalls a second [5]")
    parser.add_argument("--failures", type=float, default=0.05, help="share of model calls [0.05]")
    parser.add_argument("--drain", type=float, help="minutes to work off the rest [10 or MINUTES]")
    parser.add_argument("--flat", type=float, default=10, help="percent that is still flat [10]")
    parser.add_argument("--seed", type=int, default=0, help="of what is said and what fails [0]")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/traffic"),
        help="folder of traffic.json and of the processes' logs [benchmarks/results/traffic]",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    for name in ("minutes", "rate", "scopes", "asks"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name}: give more than 0")
    if not 0 <= given.failures < 1:
        parser.error("--failures: give a share, such as 0.05")
    if given.minutes < 1:
        parser.error("--minutes: give 1 or more; the disturbances need some time")
    for needed, package in _MISSING.items():
        if shutil.which(needed) is None:
            parser.error(f"needs {package}, which is not there")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; see the module for the exit code."""
    given = _parsed(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for old in given.out.glob("*.log"):
        old.unlink()
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _interrupted)
    plan = Plan(given.minutes, given.rate, given.scopes, given.seed)
    drain_s = 60 * (given.drain if given.drain is not None else max(10.0, given.minutes))
    try:
        found = traffic(plan, given.failures, given.asks, drain_s, given.out)
    except KeyboardInterrupt:
        print("interrupted; everything that was started is stopped", file=sys.stderr)
        return 130
    except (pytest.skip.Exception, pytest.fail.Exception, RuntimeError) as error:
        print(f"could not run: {error}", file=sys.stderr)  # so the rig says what is missing
        return 3
    (given.out / "traffic.json").write_text(json.dumps(found, indent=1))
    with (given.out / "traffic.txt").open("w") as file:
        show(found, given.flat, Console(file=file, width=160))
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        show(found, given.flat, Console(highlight=False))
    return 0 if found["held"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""The moving parts of a traffic run: processes, who talks, who asks, who looks on.

Each part stops when told, and a thread of a part ends within seconds of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import KafkaError, Message, Producer
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.traffic_plan import AGENT, TENANT, Ask, Conversations, Plan, Sample, question

__all__ = ["Asker", "Onlooker", "Program", "Speaker", "free_port", "page_of", "server_memory"]

START_S, STOP_S = 600.0, 90.0
"""Seconds that a program may take to be ready, and to stop, on a machine with other work."""
_TICK_S = 0.05
_ASKS_AT_ONCE = 32
_ASK_S = 15.0
_SERVERS = ("java", "redis-server", "milvus")


def free_port() -> int:
    """Find a port of loopback that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Program:
    """A ``sediment`` process that is started, stopped and started again on the same port.

    :arg port: of its health and metrics.
    :arg log: file that its output goes to.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Give the address of its health and metrics."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def ended(self) -> bool:
        """True once it has ended by itself."""
        return self.process is not None and self.process.poll() is not None

    def start(self) -> None:
        """Start it and return at once."""
        command = [sys.executable, "-m", "flows.cli.main", *self.arguments]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=dict(self.environment), stdout=output, stderr=output
            )

    def wait_until_ready(self) -> None:
        """Wait for its readiness probe. Raises ``RuntimeError`` with its last words."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and not self.ended:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5.0).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        how = "ended" if self.ended else f"was not ready within {START_S:g} s"
        words = self.log.read_text(errors="replace").strip()[-1500:]
        message = f"{self.name} {how}; see {self.log}:\n{words}"
        raise RuntimeError(message)

    def stop(self) -> int:
        """Ask it to stop and wait; give its exit code. Killed when it takes too long."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.terminate()
        try:
            return process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


class _Part:
    """A thread that works until it is told to stop."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        """False once it has ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop it and wait. Raises what ended it, if that was an error."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            self.run()
        except Exception as error:
            self._error = error

    def run(self) -> None:
        raise NotImplementedError


class Speaker(_Part):
    """Produces events at a steady rate, and catches up where the broker was away.

    :arg properties: of the Kafka producer.
    """

    def __init__(self, plan: Plan, properties: Mapping[str, Any], topic: str) -> None:
        super().__init__("speaker")
        self._plan = plan
        self._producer = Producer(dict(properties))
        self._topic = topic
        self.conversations = Conversations(plan)
        self.said = 0
        self.accepted = 0
        self.refused = 0

    def run(self) -> None:
        """Talk until all is said."""
        began = time.monotonic()
        while self.said < self._plan.events and not self._stopping.is_set():
            for _ in range(self._plan.due(time.monotonic() - began) - self.said):
                self._say(*self.conversations.next())
                self.said += 1
            self._producer.poll(0)
            self._stopping.wait(_TICK_S)

    def finish(self) -> None:
        """End every open session, and wait until the broker has everything."""
        self._producer.flush(STOP_S)
        for key, value in self.conversations.ends():
            self._say(key, value)
        self._producer.flush(STOP_S)

    def _say(self, key: bytes, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
            except BufferError:  # the broker is away for longer than the queue lasts
                if self._stopping.is_set():
                    self.refused += 1
                    return
                self._producer.poll(0.1)
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.accepted += 1
        else:
            self.refused += 1


@dataclass
class _Turns:
    """Which service is asked first: each in turn."""

    services: Sequence[str]
    number: int = 0

    def order(self) -> list[str]:
        self.number += 1
        at = self.number % len(self.services)
        return [*self.services[at:], *self.services[:at]]


class Asker(_Part):
    """Asks recalls at a steady rate, of the services in turn, as behind a load balancer.

    One that refuses the connection, or closes it without an answer, is passed over for the next:
    recall changes nothing, so it may be asked twice. Every other failure counts.

    :arg users: gives how many users there are to ask about.
    """

    def __init__(
        self, services: Sequence[str], key: str, per_second: float, talk: Conversations, seed: int
    ) -> None:
        super().__init__("asker")
        self._turns = _Turns(services)
        self._headers = {"authorization": f"Bearer {key}"}
        self._per_second = per_second
        self._talk = talk
        self._rng = random.Random(seed)
        self.asks: list[Ask] = []

    def run(self) -> None:
        """Ask until told to stop, then wait for the answers."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        began = time.monotonic()
        waiting: set[asyncio.Task[None]] = set()
        async with httpx.AsyncClient(timeout=_ASK_S, headers=self._headers) as http:
            number = 0
            while not self._stopping.is_set():
                if number < (time.monotonic() - began) * self._per_second:
                    if len(waiting) < _ASKS_AT_ONCE:
                        task = asyncio.create_task(self._ask(http, began))
                        waiting.add(task)
                        task.add_done_callback(waiting.discard)
                    else:  # not asked, and not hidden either
                        self.asks.append(Ask(time.monotonic() - began, 0.0, "too many waiting"))
                    number += 1
                else:
                    await asyncio.sleep(_TICK_S / 2)
            await asyncio.gather(*waiting)

    async def _ask(self, http: httpx.AsyncClient, began: float) -> None:
        user, asked = question(self._rng, self._talk.users)
        body = {"query": asked, "tenant": TENANT, "agent": AGENT, "user": user}
        started = time.monotonic()
        failure, tries = "", 0
        degraded: tuple[str, ...] = ()
        for service in self._turns.order():
            tries += 1
            try:
                answer = await http.post(f"{service}/v1/recall", json=body)
            except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError) as error:
                failure = type(error).__name__
                continue
            except httpx.HTTPError as error:
                failure = type(error).__name__
                break
            if answer.status_code != 200:
                failure = f"{answer.status_code} {_code(answer)}"
            else:
                failure, parts = "", answer.json()["degraded"]
                degraded = tuple(f"{part['part']}:{part['reason']}" for part in parts)
            break
        ms = (time.monotonic() - started) * 1000
        self.asks.append(Ask(started - began, ms, failure, degraded, tries))


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):  # no error of ours
        return "without a code"


@dataclass
class Onlooker(_Part):
    """Notes memory, processor time, lag and what waits, at even times.

    :arg programs: those that are looked at.
    :arg flows: those among them that tell their lag.
    """

    programs: Sequence[Program]
    flows: Sequence[Program]
    every_s: float
    samples: list[Sample] = field(default_factory=list)
    last_pages: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _Part.__init__(self, "onlooker")
        self._began = time.monotonic()
        self._processor_s: dict[tuple[str, int], float] = {}

    @property
    def processor_s(self) -> dict[str, float]:
        """Give seconds of processor time by name, of all processes of a name; ours is ``load``."""
        sums: defaultdict[str, float] = defaultdict(float)
        for (name, _), seconds in self._processor_s.items():
            sums[name] += seconds
        return dict(sums)

    def run(self) -> None:
        """Look until told to stop."""
        while not self._stopping.wait(self.every_s):
            self.samples.append(self.look())

    def look(self) -> Sample:
        """Look once."""
        rss = dict(server_memory())
        for program in self.programs:
            process = program.process
            if process is not None and (mb := _resident_mb(process.pid)):
                rss[program.name] = (process.pid, mb)
        for name, (pid, _) in [*rss.items(), ("load", (os.getpid(), 0.0))]:
            self._processor_s[name, pid] = _processor_s(pid) or self._processor_s.get(
                (name, pid), 0.0
            )
        lag: dict[str, int] = {}
        pending: dict[str, int] = {}
        for flow in self.flows:
            page = page_of(flow)
            if page is None:
                continue
            self.last_pages[flow.name] = page
            found = _sums(page, ("sediment_log_lag", "sediment_stage_pending"))
            lag[flow.name] = found["sediment_log_lag"]
            pending[flow.name] = found["sediment_stage_pending"]
        return Sample(time.monotonic() - self._began, rss, lag, pending)


def page_of(program: Program) -> str | None:
    """Read the metrics of a process; ``None`` when it does not answer."""
    try:
        answer = httpx.get(f"{program.url}/metrics", timeout=5.0)
    except httpx.HTTPError:
        return None
    return answer.text if answer.status_code == 200 else None


def _sums(page: str, names: Sequence[str]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        if family.name in names:
            sums[family.name] += round(sum(sample.value for sample in family.samples))
    return sums


def server_memory() -> Iterator[tuple[str, tuple[int, float]]]:
    """Give process id and resident megabytes of the servers below this process, by program."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                told = (entry / "stat").read_text(errors="replace")
            except OSError:  # it has ended
                continue
            name, _, rest = told.partition("(")[2].rpartition(")")
            parents[int(entry.name)] = (int(rest.split()[1]), name)
    for pid, (_, name) in parents.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above][0]
        if above == os.getpid() and name in _SERVERS and (mb := _resident_mb(pid)):
            yield name, (pid, mb)


def _resident_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    kib = next((line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")), "0")
    return round(int(kib) / 1024, 1)


def _processor_s(pid: int) -> float:
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0.0
    user, system = told.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

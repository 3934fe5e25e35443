"""One run: makes topics, says what is said, hurts the flow, and lets it be judged."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import orjson
import redis

from connectors.settings import Settings, load_settings
from flows.parts import recovery_folder
from stores.records import OutRecord
from tests.faults.conversation import Conversation, conversation
from tests.faults.flow_process import STACKS, FlowProcess, stacks_file
from tests.faults.judge import Final, Judged, faults_found, final_state
from tests.faults.points import open_gate, read_trace
from tests.faults.scenario import Between, Outside, Run, Scenario
from tests.faults.servers import PATIENCE_S, Servers, Topics
from tests.faults.unreliable_llm import Unreliable

__all__ = ["Driver", "Verdict", "stacks_of"]

CONCURRENCY = 4
_POLL_S = 0.005
_STACKS_S = 5.0
_SPARE = 4
"""Calls that time out on a busy machine while their answer is being recorded: asked again."""


@dataclass(frozen=True)
class Verdict:
    """How a run went.

    :arg wrong: everything that did not hold; empty for a good one.
    :arg model_failures: how often the model failed, by way of failing.
    """

    seed: int
    fault: str
    seconds: float
    wrong: tuple[str, ...]
    processes: int = 0
    events: int = 0
    windows: int = 0
    model_failures: Counter[str] = field(default_factory=Counter)
    chats: int = 0


class NotCausedError(Exception):
    """The scenario did not do what it is there for."""


class Driver:
    """Runs scenarios one after the other on the same servers."""

    def __init__(self, servers: Servers, folder: Path, *, keep: bool = False) -> None:
        self._servers = servers
        self._folder = folder
        self._keep = keep
        self._references: dict[int, Final] = {}

    def run(self, scenario: Scenario) -> Verdict:
        """Run a scenario, and before it once the same undisturbed, unless that was done."""
        began = time.monotonic()
        talk = conversation(scenario.variant)
        try:
            reference = self._reference(talk)
        except Exception as error:
            wrong = (f"the undisturbed run: {type(error).__name__}: {error}",)
            return Verdict(scenario.seed, scenario.fault, time.monotonic() - began, wrong)
        began = time.monotonic()
        one = _OneRun(self._servers, scenario, self._folder / f"seed-{scenario.seed}")
        try:
            found = one.play(reference)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        one.clean(keep=self._keep and bool(found))
        return Verdict(
            seed=scenario.seed,
            fault=scenario.fault,
            seconds=time.monotonic() - began,
            wrong=tuple(found),
            processes=one.number,
            events=len(talk.records),
            windows=len(talk.windows),
            model_failures=one.script.failed,
            chats=one.script.total,
        )

    def _reference(self, talk: Conversation) -> Final:
        """Give the final state of the same conversation without any fault but the model's."""
        if talk.variant not in self._references:
            calm = Scenario(-1, "none", talk.variant, "all", "stand-in", 1, (Run("done"),))
            folder = self._folder / f"variant-{talk.variant}"
            one = _OneRun(self._servers, calm, folder)
            try:
                judged = one.play_undisturbed()
            finally:
                one.clean(keep=False)
            self._references[talk.variant] = judged.final
        return self._references[talk.variant]


class _OneRun:
    def __init__(self, servers: Servers, scenario: Scenario, folder: Path) -> None:
        self._servers = servers
        self._scenario = scenario
        self._talk = conversation(scenario.variant)
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        prefix = f"f{scenario.seed}-{uuid.uuid4().hex[:6]}"
        self._topics = Topics(servers.broker.bootstrap, prefix)
        self.script = Unreliable(scenario.variant)
        self.number = 0
        self._wrong: list[str] = []

    # --- the whole ---

    def play(self, reference: Final) -> list[str]:
        """Do every step, then judge. Gives what did not hold."""
        self._begin()
        for step in self._scenario.steps:
            if isinstance(step, Run):
                self._process(step)
            else:
                self._between(step)
        judged = self._read()
        return self._wrong + faults_found(
            judged,
            reference,
            self._talk,
            self._settings(),
            flow=self._scenario.flow,
            answers_again=self._answers_again(),
            journal=self._journal(),
            may_be_given_up=self._scenario.fault == "given up, killed, then well",
        )

    def play_undisturbed(self) -> Judged:
        """Run once from beginning to end; it must hold by itself."""
        self._begin()
        self._process(Run("done"))
        judged = self._read()
        wrong = faults_found(
            judged, judged.final, self._talk, self._settings(), flow="all", answers_again=_SPARE,
            journal=self._journal(), may_be_given_up=False,
        )  # fmt: skip
        if self._wrong or wrong:
            raise AssertionError("; ".join([*self._wrong, *wrong]))
        return judged

    def clean(self, *, keep: bool) -> None:
        """Leave nothing behind."""
        self._servers.llm.script = None
        self._servers.llm.clear()
        self._servers.heal()
        self._topics.delete()
        if not keep:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self) -> None:
        self._servers.llm.script = self.script
        self._topics.create(self._scenario.partitions)
        self._append(late=False)
        if not self._scenario.held_back:
            self._append(late=True)

    def _append(self, *, late: bool) -> None:
        records = [said for said in self._talk.records if said.late == late]
        name = self._topics.name("l0.events")
        self._topics.append([OutRecord(name, said.key, said.value) for said in records])

    def _read(self) -> Judged:
        return final_state(self._topics, self._settings(), self._scenario.store, self._talk)

    def _settings(self, *, impatient: bool = False) -> Settings:
        return load_settings(**self._setting_values(impatient=impatient))

    def _setting_values(self, *, impatient: bool) -> dict[str, Any]:
        # Calls that record an answer are waited for at exit. Less is too little beside other work.
        hasty = {"message.timeout.ms": "4000", "socket.timeout.ms": "4000"}
        return {
            "data_dir": self._folder / "data",
            "brokers": self._servers.broker.bootstrap,
            "kafka": hasty if impatient else {},
            "broker_patience_s": 5 if impatient else 900,
            "topic_prefix": self._topics.prefix,
            "redis_url": self._servers.redis.url,
            "llm_base_url": self._servers.llm.url,
            "llm_model": "scripted",
            "llm_timeout_s": 1.5,
            "window_user_turns": self._talk.user_turns,
            "window_background": 3,
            "concurrency": CONCURRENCY,
            "snapshot_interval_s": self._talk.snapshot_s,
            # Rules: what they write follows from the atoms alone, and so is the same at the end
            # whenever it was written. A scene run for nearly every job, a persona for all news.
            "scene_writer": "rules",
            "scene_quiet_s": 0.2,
            "scene_between_s": 0.0,
            "persona_atoms": 1,
        }

    def _answers_again(self) -> int:
        """Count the answers that may have been recorded twice: in flight when something died."""
        scenario = self._scenario
        servers_away = [
            step for step in scenario.steps if isinstance(step, Run) and step.outside is not None
        ]
        return _SPARE + CONCURRENCY * scenario.kills + (1000 if servers_away else 0)

    def _journal(self) -> dict[bytes, str]:
        """Read the answers that Redis has, by request."""
        prefix = f"{self._topics.name('answers')}:".encode()
        with redis.Redis.from_url(self._servers.redis.url) as client:
            keys = [key for key in client.scan_iter(match=prefix + b"*", count=1000)]
            values = client.mget(keys) if keys else []
            if keys:
                client.delete(*keys)
        return {
            key.removeprefix(prefix): orjson.loads(value)["text"]
            for key, value in zip(keys, values, strict=True)
        }

    # --- a process ---

    def _process(self, step: Run) -> None:
        self.number += 1
        number = self.number
        self.script.down = step.down
        what = FlowProcess(
            folder=self._folder,
            number=number,
            settings=self._setting_values(impatient=step.impatient),
            flow=self._scenario.flow,
            store=self._scenario.store,
            workers=step.workers,
            follow=step.follow,
            injections=step.injections,
            retry=step.retry,
            file_limit=step.file_limit,
        )
        asked = self.script.total
        process = self._servers.start_flow(what)
        try:
            if step.kill_at_chat >= 0:
                # From the server's thread, with the question in hand: it is in flight for sure.
                self.script.on_chat = lambda count: (
                    process.kill() if count == asked + step.kill_at_chat else None
                )
            if step.outside is not None:
                self._outside(step.outside, process, number)
            self._wait_for_end(process, f"process {number} to end")
        finally:
            self.script.on_chat = None
            self.script.down = ""
            if process.exitcode is None:
                process.kill()
            process.join()
        self._servers.forget_locks(self._topics.prefix)
        self._check_end(step, process.exitcode)
        process.close()

    def _check_end(self, step: Run, code: int | None) -> None:
        number = self.number
        wanted = {"killed": code == -9, "failed": code in (1, 2, 3)}.get(step.ends, code == 0)
        if not wanted:
            log = (self._folder / f"flow-{number}.log").read_text(errors="replace")
            message = f"process {number} was to be {step.ends} and left with {code}:\n{log[-1500:]}"
            raise NotCausedError(message)
        happened = [one for one in read_trace(self._folder) if one.process == number]
        for injection in step.injections:
            if not any(
                (injection.action, injection.point) == (h.action, h.point) for h in happened
            ):
                raise NotCausedError(f"process {number} never came to {injection}")
        if step.outside and step.outside.what == "redis restarted":
            if not any(one.action == "journal_down" for one in happened):
                raise NotCausedError("nobody noticed that Redis was away")

    # --- around it ---

    def _outside(self, outside: Outside, process: ForkServerProcess, number: int) -> None:
        servers = self._servers

        def at_gate() -> bool:
            if process.exitcode is not None:
                raise NotCausedError(
                    f"process {number} ended with {process.exitcode} before the gate"
                )
            trace = read_trace(self._folder)
            return any((one.process, one.action) == (number, "gate") for one in trace)

        self._wait(at_gate, "the gate")
        if outside.what in ("broker restarted", "broker killed"):
            servers.broker.stop(kill=outside.what == "broker killed")
            open_gate(self._folder, number)
            time.sleep(outside.seconds)
            self._still_there(process)
            servers.broker.start()
        elif outside.what == "broker frozen":
            with servers.broker.frozen():
                open_gate(self._folder, number)
                time.sleep(outside.seconds)
                self._still_there(process)
        elif outside.what == "broker unreachable":
            with servers.broker.frozen():
                open_gate(self._folder, number)
                self._wait_for_end(process, "the flow to give up the broker")
        elif outside.what == "redis flushed":
            with redis.Redis.from_url(servers.redis.url) as client:
                if not client.dbsize():
                    raise NotCausedError("there was nothing to flush")
                client.flushdb()
            process.kill()
        else:
            servers.redis.stop()
            open_gate(self._folder, number)
            time.sleep(outside.seconds)
            self._still_there(process)
            servers.redis.start()

    def _wait_for_end(self, process: ForkServerProcess, what: str) -> None:
        try:
            self._wait(lambda: process.exitcode is not None, what)
        except TimeoutError as error:
            # Where it stands is gone once it is killed, and it may not come to stand there again.
            stacks = stacks_file(self._folder, self.number)
            message = f"{error}; its threads stand at\n{stacks_of(process, stacks)}"
            raise TimeoutError(message) from None

    @staticmethod
    def _still_there(process: ForkServerProcess) -> None:
        if process.exitcode is not None:
            raise NotCausedError(f"the flow had ended with {process.exitcode} during the outage")

    def _between(self, step: Between) -> None:
        recovery = recovery_folder(self._settings(), self._scenario.flow)
        copy = recovery.with_name("copy")
        if step == "recovery store lost":
            if not _bytes_in(recovery):
                raise NotCausedError("there was no recovery store to lose")
            shutil.rmtree(recovery)
        elif step == "recovery store copied":
            shutil.copytree(recovery, copy)
        elif step == "recovery store restored":
            if _bytes_in(copy) == _bytes_in(recovery):
                raise NotCausedError("the copy of the recovery store is not older")
            shutil.rmtree(recovery)
            copy.rename(recovery)
        else:
            self._topics.add_partition(self._scenario.partitions)
            self._append(late=True)

    @staticmethod
    def _wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_S:g} s for {what}")
            time.sleep(_POLL_S)


def stacks_of(process: ForkServerProcess, file: Path) -> str:
    """Have a process write down where its threads stand, and give what it wrote."""
    os.kill(process.pid or 0, STACKS)
    before, deadline = -1, time.monotonic() + _STACKS_S
    while (size := file.stat().st_size) != before or not size:
        if time.monotonic() > deadline:
            break
        before = size
        time.sleep(_STACKS_S / 50)
    return file.read_text(errors="replace")


def _bytes_in(folder: Path) -> Sequence[tuple[str, bytes]]:
    return sorted((path.name, path.read_bytes()) for path in folder.rglob("*") if path.is_file())

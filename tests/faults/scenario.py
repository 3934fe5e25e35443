"""What goes wrong in a run, wholly derived from its seed.

A scenario is a row of steps: processes of the flow that are hurt and end, things done between
them, and one last process that must reach the end of the log. The fault that a scenario is about
follows from its seed by turns, so any row of seeds as long as :data:`FAULTS` covers them all; a
second one may join it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from flows.async_stage import RetryPolicy
from flows.topology import FlowName
from tests.faults.conversation import Conversation, conversation, poisoned
from tests.faults.flow_process import PATIENT, StoreKind
from tests.faults.points import Injection

__all__ = ["FAULTS", "VARIANTS", "Between", "Ends", "Outside", "Run", "Scenario", "Step"]

VARIANTS = 24
"""Conversations there are. Each is also run undisturbed once, to compare with."""

Ends = Literal["killed", "stopped", "failed", "done"]
OutsideWhat = Literal[
    "broker restarted", "broker killed", "broker frozen", "broker unreachable", "redis flushed",
    "redis restarted",
]  # fmt: skip
Between = Literal[
    "recovery store lost", "recovery store copied", "recovery store restored", "partition added"
]


@dataclass(frozen=True, slots=True)
class Outside:
    """What is done to a server while the flow waits at a gate, and for how long it lasts."""

    what: OutsideWhat
    seconds: float = 0.0


@dataclass(frozen=True)
class Run:
    """One process of the flow.

    :arg ends: how it has to end; another end fails the scenario.
    :arg kill_at_chat: killed while the model is asked for the n-th time, counted from 0.
    :arg impatient: an unreachable broker is given up within seconds.
    :arg down: the model fails for this word for as long as the process lives.
    :arg file_limit: of the disk that is full, in bytes; 0 for none.
    """

    ends: Ends
    follow: bool = False
    workers: int = 1
    injections: tuple[Injection, ...] = ()
    outside: Outside | None = None
    kill_at_chat: int = -1
    impatient: bool = False
    down: str = ""
    file_limit: int = 0
    retry: RetryPolicy = PATIENT


Step = Run | Between


@dataclass(frozen=True)
class Scenario:
    """One seeded run.

    :arg fault: the fault by which it is named.
    :arg partitions: of the events topic at the start.
    :arg held_back: the late records are produced only when a partition is added.
    """

    seed: int
    fault: str
    variant: int
    flow: FlowName
    store: StoreKind
    partitions: int
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Derive a scenario."""
        rng = Random(f"scenario {seed}")
        talk = conversation(rng.randrange(VARIANTS))
        names = list(FAULTS)
        fault = names[seed % len(names)]
        only_l1 = not any(word in fault for word in _MORE_THAN_L1) and rng.random() < 0.2
        flow: FlowName = "l1" if only_l1 else "all"
        steps = FAULTS[fault](rng, talk)
        if fault not in _ALONE and rng.random() < 0.4:
            # A kill first: the fault then meets a flow that resumes.
            at = rng.randrange(max(1, len(talk.windows) // 8))
            steps = [Run("killed", follow=rng.random() < 0.5, kill_at_chat=at), *steps]
        steps = [
            replace(step, workers=rng.choice((1, 1, 2)))
            if isinstance(step, Run) and fault != "rescaled from 1 to 4 to 2"
            else step
            for step in steps
        ]
        return cls(
            seed=seed,
            fault=fault,
            variant=talk.variant,
            flow=flow,
            store="milvus-lite" if rng.random() < 0.1 else "stand-in",
            partitions=4 if "rescaled" in fault else rng.choice((1, 2)),
            steps=tuple(steps),
        )

    @property
    def held_back(self) -> bool:
        return "partition added" in self.steps

    @property
    def kills(self) -> int:
        return sum(isinstance(step, Run) and step.ends != "done" for step in self.steps)


Make = Callable[[Random, Conversation], list[Step]]
_DONE = Run("done")


def _few(rng: Random, talk: Conversation) -> int:
    """Choose a count that is reached for sure, also when it is the third kill of a run."""
    return rng.randint(1, max(1, talk.healthy // 6))


def _killed_at(point: str, most: int = 0, *, first: bool = False) -> Make:
    """Kill at a point, maybe twice. ``most`` bounds the count; ``first`` allows one kill only."""

    def make(rng: Random, talk: Conversation) -> list[Step]:
        def kill() -> Run:
            count = rng.randint(1, most) if most else _few(rng, talk)
            at = Injection("kill", point, count)
            return Run("killed", follow=rng.random() < 0.5, injections=(at,))

        again = [kill()] if not first and rng.random() < 0.4 else []
        return [kill(), *again, _DONE]

    return make


def _killed_at_snapshot(point: str) -> Make:
    """Kill at the snapshot that follows on some record, maybe twice."""

    def make(rng: Random, talk: Conversation) -> list[Step]:
        def kill() -> Run:
            at = Injection("kill", point, records=_few(rng, talk))
            return Run("killed", follow=rng.random() < 0.5, injections=(at,))

        return [*[kill() for _ in range(rng.choice((1, 1, 2)))], _DONE]

    return make


def _killed_while_asking(rng: Random, talk: Conversation) -> list[Step]:
    kills = [
        Run("killed", follow=rng.random() < 0.5, kill_at_chat=rng.randrange(len(talk.windows) // 8))
        for _ in range(rng.randint(1, 2))
    ]
    return [*kills, _DONE]


def _store(action: Literal["fail", "slow"], point: str, times: int, seconds: float = 0.0) -> Make:
    def make(rng: Random, talk: Conversation) -> list[Step]:
        hurt = Injection(action, point, 1, times, seconds)
        if point.startswith("events"):
            return [replace(_DONE, injections=(hurt,))]
        down = Injection(action, "atoms.read", 1, 2, seconds)
        return [replace(_DONE, injections=(hurt, down) if times > 1 else (hurt,))]

    return make


def _outside(what: OutsideWhat, point: str, ends: Ends, seconds: float = 0.0) -> Make:
    def make(rng: Random, talk: Conversation) -> list[Step]:
        gate = Injection("gate", point, _few(rng, talk))
        hurt = Run(
            ends,
            follow=ends != "done" and rng.random() < 0.5,
            injections=(gate,),
            outside=Outside(what, seconds * rng.uniform(0.5, 1.5)),
            impatient=what == "broker unreachable",
        )
        return [hurt] if ends == "done" else [hurt, _DONE]

    return make


def _redis_flushed(rng: Random, talk: Conversation) -> list[Step]:
    """Recorded answers go, then the flow: what was not in a snapshot is asked again."""
    gate = Injection("gate", "answer.after", _few(rng, talk))
    return [Run("killed", injections=(gate,), outside=Outside("redis flushed")), _DONE]


def _recovery_lost(rng: Random, talk: Conversation) -> list[Step]:
    kill = Injection("kill", "produce.after", _few(rng, talk))
    return [Run("killed", injections=(kill,)), "recovery store lost", _DONE]


def _recovery_older(rng: Random, talk: Conversation) -> list[Step]:
    first = Injection("kill", "snapshot.written", rng.randint(1, 3))
    second = Injection("kill", "produce.after", _few(rng, talk))
    return [
        Run("killed", injections=(first,)),
        "recovery store copied",
        Run("killed", follow=rng.random() < 0.5, injections=(second,)),
        "recovery store restored",
        _DONE,
    ]


def _disk_full(rng: Random, talk: Conversation) -> list[Step]:
    del talk
    return [Run("failed", file_limit=rng.choice((32, 40, 48)) * 1024), _DONE]


def _partition_added(rng: Random, talk: Conversation) -> list[Step]:
    early = sum(window.scope != talk.scopes[-1] for window in talk.windows)
    kill = Injection("kill", "produce.after", rng.randint(1, max(1, early // 3)))
    return [Run("killed", follow=True, injections=(kill,)), "partition added", _DONE]


def _rescaled(rng: Random, talk: Conversation) -> list[Step]:
    ends: Ends = rng.choice(("killed", "stopped"))
    action: Literal["kill", "term"] = "kill" if ends == "killed" else "term"
    steps: list[Step] = []
    for workers in (1, 4):
        at = Injection(action, "produce.after", _few(rng, talk))
        steps.append(Run(ends, follow=True, workers=workers, injections=(at,)))
    return [*steps, replace(_DONE, workers=2)]


def _victim(rng: Random, talk: Conversation) -> str:
    """Choose a window that no poison is in, by something that a user says in it."""
    window = rng.choice([window for window in talk.windows if not poisoned(window)])
    return next(one.event.text() for one in window.events if one.event.role == "user")


def _stopped_during_retries(rng: Random, talk: Conversation) -> list[Step]:
    slow = RetryPolicy(backoff_s=(0.8, *[0.8] * 12))
    stop = Injection("term", "retry", rng.randint(1, 2))
    return [
        Run("stopped", follow=rng.random() < 0.5, injections=(stop,), down=_victim(rng, talk),
            retry=slow),
        _DONE,
    ]  # fmt: skip


def _given_up_then_well(rng: Random, talk: Conversation) -> list[Step]:
    """A window is given up, its dead letters are out, the snapshot is not; then all is well."""
    soon = RetryPolicy(backoff_s=(0.05, 0.05, 0.05))
    kill = Injection("kill", "given_up.after")
    return [
        Run("killed", injections=(kill,), down=_victim(rng, talk), retry=soon),
        _DONE,
    ]


FAULTS: dict[str, Make] = {
    "killed while asking": _killed_while_asking,
    "killed before an answer is recorded": _killed_at("answer.before"),
    "killed with an answer half recorded": _killed_at("answer.between"),
    "killed after an answer is recorded": _killed_at("answer.after"),
    "killed before atoms are stored": _killed_at("atoms.before", 3),
    "killed with half of the atoms stored": _killed_at("atoms.half", 2),
    "killed after atoms are stored": _killed_at("atoms.after", 3),
    "killed before a scene is current": _killed_at("rename.before", 3),
    "killed after a scene is current": _killed_at("rename.after", 3),
    "killed with half of the profiles stored": _killed_at("profiles.half", 1, first=True),
    "killed after profiles are stored": _killed_at("profiles.after", 2),
    "killed before the index is written": _killed_at("events.before", 1, first=True),
    "killed with half of the index written": _killed_at("events.half", 1, first=True),
    "killed after the index is written": _killed_at("events.after", 1, first=True),
    "killed before a record is produced": _killed_at("produce.before"),
    "killed after a record is produced": _killed_at("produce.after"),
    "killed before a snapshot": _killed_at_snapshot("snapshot.before"),
    "killed with a snapshot half made": _killed_at_snapshot("snapshot.flushed"),
    "killed after a snapshot": _killed_at("snapshot.written", 3),
    "broker restarted": _outside("broker restarted", "answer.before", "done"),
    "broker killed": _outside("broker killed", "produce.before", "done"),
    "broker frozen for a while": _outside("broker frozen", "produce.before", "done", 0.8),
    "broker unreachable": _outside("broker unreachable", "produce.before", "failed"),
    "redis flushed": _redis_flushed,
    "redis restarted": _outside("redis restarted", "answer.before", "done", 0.5),
    "store stopped": _store("fail", "atoms.before", 3),
    "store slow": _store("slow", "atoms.after", 4, 0.3),
    "store fails half of a batch": _store("fail", "atoms.half", 1),
    "store fails half of the index": _store("fail", "events.half", 1),
    "recovery store lost": _recovery_lost,
    "recovery store older": _recovery_older,
    "disk full": _disk_full,
    "partition added": _partition_added,
    "rescaled from 1 to 4 to 2": _rescaled,
    "stopped during retries": _stopped_during_retries,
    "given up, killed, then well": _given_up_then_well,
}
"""Every fault, by name: what makes the steps of a scenario about it."""

_MORE_THAN_L1 = ("index", "scene", "profiles")
_ALONE = frozenset(
    name
    for name in FAULTS
    if "index" in name or name in ("disk full", "partition added", "rescaled from 1 to 4 to 2")
)
"""Faults that need a flow that has not begun yet."""

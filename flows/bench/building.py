"""Turns histories into memory: events into the file log, then the flow ``all`` to its end.

Histories are built in rounds, each no further than its next question may see. So what comes
after a question is in no store when it is asked: nothing can leak, whatever recall does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import orjson

from connectors.embeddings import make_embedder
from connectors.importers import ImportedEvent, encode_event, to_record
from connectors.importers.events import validated
from connectors.settings import Settings
from flows.bench.data import Dataset, History, Message
from flows.bench.files import read_json
from flows.bench.vectors import KeptVectors
from flows.opening import in_generation
from flows.parts import flow_parts, open_log, open_store, recovery_folder
from flows.runner import FlowRun, StopSignal
from flows.topology import Progress, build_flow
from stores.errors import UserError
from stores.generations import MAIN
from stores.milvus import MilvusStore
from stores.protocols import Embedder
from stores.records import CONTRACT_VERSION

__all__ = [
    "BuildCost",
    "Builder",
    "Memory",
    "bench_settings",
    "build_costs",
    "events_between",
    "opened_memory",
    "scope_of_bench",
]

_TENANT = "bench"
_BATCH = 500
_POLL_S = 0.2
_STATE = "built.json"


@dataclass(frozen=True)
class Memory:
    """The opened store of a benchmark, and what embeds for it."""

    settings: Settings
    store: MilvusStore
    embedder: Embedder


def bench_settings(settings: Settings, work: Path) -> Settings:
    """Give the same settings in a data folder of the benchmark's own, embedded, nothing shared."""
    own = {
        "data_dir": work / "memory",
        "brokers": "",
        "milvus_uri": "",
        "redis_url": "",
        "scope_fields": ("tenant", "agent", "user"),
    }
    return in_generation(settings.model_copy(update=own), MAIN)


def scope_of_bench(settings: Settings, dataset: Dataset, history_id: str) -> str:
    """Give the scope of a history."""
    return settings.scope_of(tenant=_TENANT, agent=dataset.name, user=history_id, team="")


@contextmanager
def opened_memory(settings: Settings, work: Path) -> Iterator[Memory]:
    """Open the store, to build and to ask. Raises as :func:`flows.parts.open_store` does."""
    with (
        KeptVectors(make_embedder(settings), work / "vectors.sqlite") as embedder,
        open_store(settings, embedder, write=True) as store,
    ):
        yield Memory(settings, store, embedder)


class Builder:
    """Builds a data set's memory, round by round, and knows how far it has come.

    Killed at any point and started again it goes on: events are written again with the same
    ids, which changes nothing, and the flow resumes from its snapshot.
    """

    def __init__(self, dataset: Dataset, memory: Memory) -> None:
        self._dataset = dataset
        self._memory = memory
        self._path = memory.settings.data_dir / _STATE
        self.built: dict[str, int] = {}
        if self._path.exists():
            self.built = read_json(self._path, dict)

    def build(
        self, known: Mapping[str, int], stop: StopSignal, tell: Callable[[Progress], None]
    ) -> None:
        """Let every history be known up to ``known``, its first messages.

        Raises :class:`~stores.errors.UserError` when the memory already holds more.
        """
        beyond = [name for name, count in known.items() if self.built.get(name, 0) > count]
        if beyond:
            message = (
                f"{self._memory.settings.data_dir} already holds what was said after the next "
                f"question about {beyond[0][:12]}; give a new --work folder"
            )
            raise UserError(message)
        new = {name: count for name, count in known.items() if self.built.get(name, 0) < count}
        if not new:
            return
        for name, count in new.items():
            self._write(self._dataset.histories[name], self.built.get(name, 0), count)
        self._run(stop, tell)
        if stop():
            return
        self.built.update(new)
        draft = self._path.with_suffix(".new")
        draft.write_bytes(orjson.dumps(self.built, option=orjson.OPT_SORT_KEYS))
        draft.replace(self._path)

    def _write(self, history: History, since: int, until: int) -> None:
        settings = self._memory.settings
        appender = open_log(settings).appender
        events = events_between(self._dataset.name, history, since, until)
        records = [to_record(one, settings) for one in events]
        for start in range(0, len(records), _BATCH):
            appender.append(records[start : start + _BATCH])

    def _run(self, stop: StopSignal, tell: Callable[[Progress], None]) -> None:
        settings, progress = self._memory.settings, Progress()
        opened = (self._memory.store, self._memory.embedder)
        with flow_parts(
            settings, "all", stop, follow=False, progress=progress, opened=opened
        ) as parts:
            run = FlowRun(
                lambda: build_flow("all", parts),
                recovery_folder(settings, "all"),
                timedelta(seconds=settings.snapshot_interval_s),
            )
            run.start()
            while run.running:
                run.wait(_POLL_S)
                tell(progress)
            run.wait()


@dataclass(frozen=True, slots=True)
class BuildCost:
    """What models were asked to build one layer, as their servers counted."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: BuildCost) -> BuildCost:
        return BuildCost(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


def build_costs(settings: Settings) -> dict[str, BuildCost]:
    """Add up the recorded answers of a memory by layer: atoms, scenes, persona.

    Each answer is recorded once, so a run that was killed and resumed counts as one.
    """
    path = settings.data_dir / "answers.sqlite"
    costs: dict[str, BuildCost] = {}
    if not path.exists():
        return costs
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        for version, answer in file.execute("SELECT prompt_version, answer FROM answers"):
            layer = next((one for one in ("persona", "scenes") if version.startswith(one)), "atoms")
            one = orjson.loads(answer)
            cost = BuildCost(1, one["prompt_tokens"], one["completion_tokens"])
            costs[layer] = costs.get(layer, BuildCost()) + cost
    return costs


def events_between(agent: str, history: History, since: int, until: int) -> list[ImportedEvent]:
    """Give the events of the messages from ``since`` to ``until``; ended sessions say so.

    A message without text is none. A session has ended when the next one begins, so the end of
    the last one is not told: the flow ends it with its input.
    """
    events: list[ImportedEvent] = []
    messages = history.messages
    for place in range(since, until):
        one = messages[place]
        if place > 0 and messages[place - 1].session_id != one.session_id:
            events.append(_session_end(agent, history, messages[:place]))
        if one.text.strip():
            said = {"role": one.role, "content": one.text, "name": one.name or None}
            events.append(_event(agent, history, one, one.event_id, said))
    return events


def _session_end(agent: str, history: History, before: Sequence[Message]) -> ImportedEvent:
    last = before[-1]
    return _event(agent, history, last, f"{last.session_id}:end", {"type": "session_end"})


def _event(
    agent: str, history: History, one: Message, event_id: str, fields: Mapping[str, object]
) -> ImportedEvent:
    event = validated(
        {
            "v": CONTRACT_VERSION,
            "event_id": event_id,
            "tenant_id": _TENANT,
            "agent_id": agent,
            "user_id": history.id,
            "session_id": one.session_id,
            "occurred_at": one.said_at,
            **fields,
        }
    )
    return ImportedEvent(event, encode_event(event), 0)

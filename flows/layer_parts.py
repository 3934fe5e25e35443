"""Opens what scenes and persona stand on: folders, locks, heat counters, writers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bytewax.inputs import Source

from connectors.llm_limits import PATIENCE_S
from connectors.log import Appender
from connectors.settings import Settings
from flows.async_stage import AsyncStage
from flows.layers import Layers, LayersProgress
from flows.outputs import Topics
from flows.persona import PersonaParts, PersonaRequests, PersonaWork
from flows.prompts import load_prompt
from flows.scenes import (
    AgentLimits,
    Pace,
    ProfileSync,
    Resting,
    SceneAgent,
    SceneLimits,
    SceneParts,
    SceneWork,
)
from stores.coordination import LocalLocks, RedisLocks, ScopeLocks
from stores.protocols import ChatModel, Clock, Embedder
from stores.records import LogRecord
from stores.scenes import HeatCounters, LocalHeat, RedisHeat, SandboxLimits, SceneFolder
from stores.tombstones import Tombstones

if TYPE_CHECKING:
    from stores.milvus import MilvusStore

__all__ = [
    "RUNS_A_SLOT",
    "LayerBase",
    "open_heat",
    "open_layers",
    "open_persona_folder",
    "open_scene_folder",
    "scene_pace",
]

_PERSONAS_KEPT = 3
_GRACE_S = 60.0  # for lock, files, topic and index around a run's own time limit
RUNS_A_SLOT = 1.5  # scene runs for each call of the model: some always have their files in hand


@dataclass(frozen=True)
class LayerBase:
    """What a flow has open already.

    :arg stage: makes a stage of a name, its work and its limits.
    :arg heat: recall hits, counted by whoever serves recall.
    :arg source: makes the source of a topic, by its name without prefix; ``None`` where only
        what is passed on counts.
    """

    store: MilvusStore
    embedder: Embedder
    chat: ChatModel | None
    clock: Clock
    kept_out: Tombstones
    appender: Appender
    topics: Topics
    stage: Callable[..., AsyncStage[Any, Any]]
    source: Callable[[str], Source[LogRecord]] | None
    live: bool
    stopping: Callable[[], bool]
    progress: LayersProgress
    heat: HeatCounters


def scene_pace(settings: Settings) -> Pace:
    """Say how often scenes are brought up to date, from the settings."""
    return Pace(
        quiet=timedelta(seconds=settings.scene_quiet_s),
        between=timedelta(seconds=settings.scene_between_s),
        max_wait=timedelta(seconds=settings.scene_max_wait_s),
    )


@contextmanager
def open_scene_folder(settings: Settings) -> Iterator[SceneFolder]:
    """Open the scene folders of a generation of memory."""
    folder = SceneFolder(settings.generation_dir / "scenes")
    try:
        yield folder
    finally:
        folder.close()


@contextmanager
def open_persona_folder(settings: Settings) -> Iterator[SceneFolder]:
    """Open the persona folders of a generation of memory."""
    folder = SceneFolder(settings.generation_dir / "persona", "persona", keep=_PERSONAS_KEPT)
    try:
        yield folder
    finally:
        folder.close()


@contextmanager
def open_layers(settings: Settings, base: LayerBase) -> Iterator[Layers | None]:
    """Open scenes and persona; ``None`` when they are switched off."""
    if settings.scene_writer == "off":
        yield None
        return
    chat = base.chat if settings.scene_writer == "model" else None
    with ExitStack() as stack:
        scenes = stack.enter_context(open_scene_folder(settings))
        personas = stack.enter_context(open_persona_folder(settings))
        locks = _locks(settings, stack)
        sync = ProfileSync(
            base.store,
            base.embedder,
            base.appender.append,
            settings.topic("profiles"),
            Resting(base.store, base.kept_out),
        )
        scene_work = SceneWork(
            SceneParts(
                folder=scenes,
                locks=locks,
                heat=base.heat,
                atoms=base.store,
                profiles=base.store,
                sync=sync,
                agent=_agent(settings, chat, base.clock),
                kept_out=base.kept_out,
            ),
            SceneLimits(
                capacity=settings.scene_capacity,
                atoms=settings.scene_atoms,
                sandbox=SandboxLimits(
                    max_file_bytes=settings.scene_file_bytes, max_files=2 * settings.scene_capacity
                ),
            ),
        )
        persona_work = PersonaWork(
            PersonaParts(
                folder=personas,
                locks=locks,
                requests=PersonaRequests(settings.generation_dir / "persona-requests"),
                atoms=base.store,
                profiles=base.store,
                sync=sync,
                chat=chat,
                kept_out=base.kept_out,
                mode=settings.extract_mode,
                every=settings.persona_atoms,
            )
        )

        # The last answer may be asked for just before a run's time is over, and wait its turn.
        answer_s = settings.llm_timeout_s + PATIENCE_S + _GRACE_S
        runs = math.ceil(settings.concurrency * RUNS_A_SLOT)
        source = base.source
        yield Layers(
            scenes=base.stage(
                "scenes",
                scene_work,
                concurrency=runs,
                timeout_s=settings.scene_time_s + answer_s,
            ),
            persona=base.stage(
                "persona", persona_work, concurrency=settings.concurrency, timeout_s=answer_s
            ),
            pace=scene_pace(settings),
            topics=base.topics,
            clock=base.clock,
            live=base.live,
            stopping=base.stopping,
            progress=base.progress,
            asked_scenes=source("l2.jobs") if source else None,
            asked_personas=source("l3.jobs") if source else None,
        )


def _agent(settings: Settings, chat: ChatModel | None, clock: Clock) -> SceneAgent | None:
    if chat is None:
        return None
    limits = AgentLimits(
        steps=settings.scene_steps,
        time=timedelta(seconds=settings.scene_time_s),
        tokens=settings.scene_tokens,
        answer_tokens=settings.llm_max_tokens,
        at_once=settings.concurrency,
    )
    return SceneAgent(chat, load_prompt(f"scenes-{settings.extract_mode}"), clock, limits)


@contextmanager
def open_heat(settings: Settings) -> Iterator[HeatCounters]:
    """Open the counters of recall hits: in Redis where it is set, else in this process."""
    if not settings.redis_url:
        yield LocalHeat()
        return
    heat = RedisHeat(settings.redis_url, f"{settings.generation_prefix}.heat")
    try:
        yield heat
    finally:
        heat.close()


def _locks(settings: Settings, stack: ExitStack) -> ScopeLocks:
    if not settings.redis_url:
        return LocalLocks()
    locks = RedisLocks(settings.redis_url, f"{settings.generation_prefix}.locks")
    stack.callback(locks.close)
    return locks

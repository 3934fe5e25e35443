"""Opens the real parts of a flow, as the settings say, and closes them again.

What they stand on is opened in :mod:`flows.opening`, whose names are here as well.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, Source
from bytewax.outputs import FixedPartitionedSink

from connectors.dataflow import BATCH_RECORDS
from connectors.embeddings import make_embedder
from connectors.filelog import FileLogSink, FileLogSource
from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import KafkaSource
from connectors.llm_limits import PATIENCE_S
from connectors.log import EndAt, StartAt
from connectors.settings import Settings, load_settings
from connectors.tokens import count_tokens
from flows import outputs
from flows.async_stage import AsyncStage, FailureLimit, PendingWork, StageSpec, Work
from flows.extract.llm import LlmExtractor
from flows.extract.work import ExtractWork
from flows.forget.events import EventForgetter
from flows.forget.work import ForgettingWork
from flows.gate import Gate, GatePolicy, ModelSplitter
from flows.index import Indexer
from flows.layer_parts import LayerBase, open_heat, open_layers
from flows.observed import observed
from flows.opening import (
    Log,
    StoreServer,
    consumer_group,
    delete_topics_of,
    drop_store,
    file_log,
    generation_journal,
    generation_log,
    in_generation,
    kafka_connection,
    log_name,
    open_chat,
    open_journal,
    open_log,
    open_store,
    open_store_server,
    open_tombstones,
    open_unfinished,
    prepare_topics,
    recovery_folder,
    resolved,
)
from flows.outputs import Topics
from flows.reconcile import Reconciler, StoredAtoms
from flows.recovery import guard_plain_run
from flows.replay.plan import ReplayPlan
from flows.replay.source import ReplaySource
from flows.runner import StopSignal, SystemClock
from flows.scenes import ProfileSync, Resting
from flows.topology import FlowName, Parts, Progress, build_flow, source_topic
from flows.window import WindowPolicy
from stores.protocols import AnswerJournal, ChatModel, Embedder, Extractor
from stores.records import LogRecord, OutRecord
from stores.scenes import HeatCounters

if TYPE_CHECKING:
    from stores.milvus import MilvusStore

__all__ = [
    "Log",
    "StoreServer",
    "consumer_group",
    "delete_topics_of",
    "drop_store",
    "extractor_of",
    "flow_parts",
    "gate_of",
    "generation_journal",
    "generation_log",
    "in_generation",
    "open_chat",
    "open_journal",
    "open_log",
    "open_store",
    "open_store_server",
    "open_tombstones",
    "prepare_topics",
    "recovery_folder",
    "resolved",
    "standing_flow",
    "window_policy",
]


@contextmanager
def _journal_to_forget_in(settings: Settings, name: FlowName) -> Iterator[AnswerJournal | None]:
    """Open the recorded answers where there may be any, also of a model that is no longer set."""
    recorded = settings.llm_base_url or settings.redis_url
    if name == "l0" or not (recorded or (settings.data_dir / "answers.sqlite").exists()):
        yield None
        return
    with open_journal(settings) as journal:
        yield journal


def extractor_of(settings: Settings, chat: ChatModel | None) -> Extractor:
    """Make the LLM extractor, or the rule-based one when there is no model.

    Raises :class:`~stores.errors.SettingsError` when the guidance file is wrong.
    """
    if chat is None:
        from flows.rules import RuleExtractor  # its patterns take 0.3 s to compile

        return RuleExtractor()
    return LlmExtractor.configured(settings, chat, count_tokens)


def gate_of(settings: Settings, chat: ChatModel | None) -> Gate:
    """Make the quality gate; without a model it splits by sentence."""
    policy = GatePolicy(settings.gate, settings.gate_max_chars)
    return Gate(policy, None if chat is None else ModelSplitter(chat))


def window_policy(settings: Settings) -> WindowPolicy:
    """Say when windows close, from the settings."""
    return WindowPolicy(
        user_turns=settings.window_user_turns,
        warmup=settings.window_warmup,
        gap=timedelta(seconds=settings.window_gap_s),
        max_tokens=settings.window_max_tokens,
        background=settings.window_background,
        dedup_ids=settings.dedup_ids,
    )


@contextmanager
def flow_parts(
    settings: Settings,
    name: FlowName,
    stop: StopSignal,
    *,
    follow: bool,
    progress: Progress | None = None,
    opened: tuple[MilvusStore, Embedder] | None = None,
    replay: ReplayPlan | None = None,
    heat: HeatCounters | None = None,
) -> Iterator[Parts]:
    """Open everything a flow of one generation needs; name it with :func:`resolved` before.

    :arg follow: read on for ever; otherwise up to the end of the log as it is now.
    :arg opened: store and embedder to share, when the process has them already.
    :arg heat: counters to share with recall, when it is served by this process.
    :arg replay: read what this says instead of all there is.
    """
    clock = SystemClock()
    pending = PendingWork(settings.pending_cap)
    limit = FailureLimit(rate=settings.halt_dead_letter_rate)
    with ExitStack() as stack:
        if opened is None:
            embedder = make_embedder(settings)
            store = stack.enter_context(open_store(settings, embedder, write=True))
        else:
            store, embedder = opened
        opening = (
            open_chat(settings, replay.answers, replay.tally, stopping=stop)
            if replay
            else open_chat(settings, stopping=stop)
        )
        chat = stack.enter_context(opening)
        extractor = extractor_of(settings, chat)

        def announce(done: StoredAtoms) -> None:
            log.appender.append(outputs.atom_records(done, topics))

        def stage(step: str, work: Work, **limits: float) -> AsyncStage:  # type: ignore[type-arg]
            spec = StageSpec(
                name=step,
                work=observed(step, work, clock),
                clock=clock,
                pending=pending,
                failure_limit=limit,
                stopping=stop,
                log_patience_s=settings.broker_patience_s,
                **limits,  # type: ignore[arg-type]
            )
            return stack.enter_context(AsyncStage(spec))

        log = open_log(settings)
        topics = Topics(settings.generation_prefix, settings.topic("tombstones"))
        tombstones = open_tombstones(settings, log)
        stack.callback(tombstones.close)
        if follow:
            tombstones.follow()
        journal = stack.enter_context(_journal_to_forget_in(settings, name))
        source, sink = _source_and_sink(settings, name, pending, stop, follow, replay)
        progress = progress or Progress()

        def job_source(topic: str) -> Source[LogRecord]:
            return _source(settings, name, topic, pending, stop, follow)

        # What this says is whether the end of input is the end of the conversations.
        stopping = (lambda: True) if replay and replay.keep_open else stop
        layers = stack.enter_context(
            open_layers(
                settings,
                LayerBase(
                    store=store,
                    embedder=embedder,
                    chat=chat,
                    clock=clock,
                    kept_out=tombstones.known,
                    appender=log.appender,
                    topics=topics,
                    stage=stage,
                    source=job_source if name == "all" and replay is None else None,
                    live=follow,
                    stopping=stopping,
                    progress=progress.layers,
                    heat=heat or stack.enter_context(open_heat(settings)),
                ),
            )
        )
        yield Parts(
            source=source,
            sink=sink,
            topics=topics,
            scope_fields=settings.scope_fields,
            window=window_policy(settings),
            clock=clock,
            live=follow,
            stopping=stopping,
            progress=progress,
            indexing=stage(
                "index",
                Indexer(store, embedder, clock, EventForgetter(store, tombstones)),
                batch_max=settings.embeddings_batch,
            ),
            extracting=stage(
                "extract",
                ExtractWork(extractor, gate_of(settings, chat), tombstones.known),
                concurrency=settings.concurrency,
                per_key=settings.concurrency,
                timeout_s=settings.llm_timeout_s + PATIENCE_S,
            ),
            reconciling=stage(
                "reconcile",
                ForgettingWork(
                    Reconciler(
                        store,
                        embedder,
                        clock,
                        chat=chat,
                        kept_out=tombstones.known,
                        announce=announce,
                        max_chars=settings.gate_max_chars,
                        answer_tokens=settings.llm_max_tokens,
                        unfinished=stack.enter_context(open_unfinished(settings)),
                    ),
                    atoms=store,
                    index=store,
                    journal=journal,
                    log=tombstones,
                    hide=ProfileSync(
                        store,
                        embedder,
                        log.appender.append,
                        settings.topic("profiles"),
                        Resting(store, tombstones.known),
                    ).hide,
                ),
                concurrency=settings.concurrency,
                timeout_s=settings.llm_timeout_s + PATIENCE_S,
            ),
            kept_out=tombstones.known,
            layers=layers,
        )


def _source_and_sink(
    settings: Settings,
    name: FlowName,
    pending: PendingWork,
    stop: StopSignal,
    follow: bool,
    replay: ReplayPlan | None,
) -> tuple[Source[LogRecord], FixedPartitionedSink[Sequence[OutRecord], None]]:
    source = _source(settings, name, source_topic(name), pending, stop, follow, replay)
    sink: FixedPartitionedSink[Sequence[OutRecord], None]
    if settings.embedded:
        sink = FileLogSink(file_log(settings))
    else:
        sink = KafkaSink(kafka_connection(settings), stop)
    return (ReplaySource[Any](source, replay, stop) if replay else source), sink


def _source(
    settings: Settings,
    name: FlowName,
    topic: str,
    pending: PendingWork,
    stop: StopSignal,
    follow: bool,
    replay: ReplayPlan | None = None,
) -> FixedPartitionedSource[LogRecord, Any]:
    places: dict[str, Any] = {
        "group": consumer_group(settings, name),
        "start": replay.span.start_at() if replay else StartAt.beginning(),
        "end": None if follow else replay.span.end_at() if replay else EndAt.latest(),
        "paused": pending.full,
        "stopping": stop,
        "batch_size": replay.pace.batch_size if replay else BATCH_RECORDS,
    }
    full = settings.topic(topic)
    if settings.embedded:
        return FileLogSource(file_log(settings), full, **places)
    return KafkaSource(kafka_connection(settings), full, **places)


def standing_flow(name: FlowName) -> Dataflow:
    """Build a flow that Bytewax's own command runs; its parts close when the process ends."""
    settings = load_settings()
    held = guard_plain_run(sys.argv[1:], os.environ, log_name(settings, name))
    if held is not None:
        atexit.register(held.close)
    parts = flow_parts(resolved(settings), name, StopSignal(), follow=True)
    opened = parts.__enter__()
    atexit.register(parts.__exit__, None, None, None)
    return build_flow(name, opened)

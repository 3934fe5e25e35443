"""Opens the real parts of a flow, as the settings say, and closes them again."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bytewax.dataflow import Dataflow
from bytewax.inputs import Source
from bytewax.outputs import FixedPartitionedSink

from connectors.answers_topic import PublishedAnswers
from connectors.embeddings import make_embedder
from connectors.filelog import FileLog, FileLogSink, FileLogSource
from connectors.kafka.connection import KafkaConnection
from connectors.kafka.sink import KafkaAppender, KafkaSink
from connectors.kafka.source import KafkaLog, KafkaSource
from connectors.llm import make_chat
from connectors.log import Appender, EndAt, LogReader, StartAt
from connectors.metrics import STORE_SECONDS
from connectors.settings import Settings, load_settings
from connectors.tokens import count_tokens
from flows.async_stage import AsyncStage, FailureLimit, PendingWork, StageSpec, Work
from flows.extract.llm import LlmExtractor
from flows.extract.work import ExtractWork
from flows.index import Indexer
from flows.outputs import Topics
from flows.reconcile import Reconciler
from flows.rules import RuleExtractor
from flows.runner import StopSignal, SystemClock
from flows.topology import FlowName, Parts, Progress, build_flow
from flows.window import WindowPolicy
from stores.answers import RedisAnswers, SqliteAnswers
from stores.embedded import open_embedded
from stores.milvus import MilvusStore
from stores.protocols import AnswerJournal, Embedder, Extractor
from stores.records import LogRecord, OutRecord

__all__ = [
    "Log",
    "consumer_group",
    "flow_parts",
    "open_extractor",
    "open_journal",
    "open_log",
    "open_store",
    "recovery_folder",
    "standing_flow",
    "window_policy",
]


@dataclass(frozen=True)
class Log:
    """Both ways into the log, outside a dataflow."""

    appender: Appender
    reader: LogReader


def open_log(settings: Settings) -> Log:
    """Open the embedded file log, or Kafka when brokers are set."""
    if settings.embedded:
        log = _file_log(settings)
        return Log(log, log)
    connection = _kafka(settings)
    return Log(KafkaAppender(connection), KafkaLog(connection))


@contextmanager
def open_store(
    settings: Settings, embedder: Embedder, *, write: bool, drop_first: bool = False
) -> Iterator[MilvusStore]:
    """Open the vector store and check that it was made with these settings.

    The embedded one lives in this process, or is reached through the process that owns the data
    folder when ``write`` is false. Raises :class:`~stores.errors.StoreMismatch` when the
    collections were made with another embedding model, dimension or analyzer.

    :arg drop_first: delete the collections with all rows and make them anew.
    """
    with ExitStack() as stack:
        uri, token, refuse = settings.milvus_uri, settings.milvus_token.get_secret_value(), ""
        if not uri:
            handle = stack.enter_context(open_embedded(settings.data_dir, write=write))
            uri, token, refuse = handle.uri, handle.token, handle.refuse_writes
        store = MilvusStore(
            uri,
            token=token,
            prefix=settings.collection_prefix,
            dimension=embedder.dimension,
            embedding_name=embedder.name,
            analyzer=settings.analyzer,
            refuse_writes=refuse,
            observe=lambda operation, seconds: STORE_SECONDS.labels(operation).observe(seconds),
        )
        stack.callback(store.close)
        if drop_first:
            store.drop_collections()
        store.ensure_collections()
        yield store


@contextmanager
def open_journal(settings: Settings) -> Iterator[AnswerJournal]:
    """Open the recorded answers: Redis when it is set, else a file in the data folder.

    On Kafka every new answer also goes to the answers topic.
    """
    with closing(
        RedisAnswers(settings.redis_url, settings.topic("answers"))
        if settings.redis_url
        else SqliteAnswers(settings.data_dir / "answers.sqlite")
    ) as journal:
        if settings.embedded:
            yield journal
        else:
            appender = open_log(settings).appender
            yield PublishedAnswers(journal, appender, settings.topic("answers"))


@contextmanager
def open_extractor(settings: Settings) -> Iterator[Extractor]:
    """Make the LLM extractor, or the rule-based one when no endpoint is configured."""
    if not settings.llm_base_url:  # no journal is made where nothing is recorded
        yield RuleExtractor()
        return
    with open_journal(settings) as journal:
        chat = make_chat(settings, journal)
        yield RuleExtractor() if chat is None else LlmExtractor(chat, count_tokens=count_tokens)


def recovery_folder(settings: Settings, name: FlowName) -> Path:
    """Give the folder of a flow's recovery store."""
    return settings.data_dir / "recovery" / name


def consumer_group(settings: Settings, name: FlowName) -> str:
    """Name the group under which a flow notes how far it has read."""
    return f"{settings.consumer_group}-{name}"


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
) -> Iterator[Parts]:
    """Open everything a flow needs.

    :arg follow: read on for ever; otherwise up to the end of the log as it is now.
    :arg opened: store and embedder to share, when the process has them already.
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
        extractor = stack.enter_context(open_extractor(settings))

        def stage(step: str, work: Work, **limits: float) -> AsyncStage:  # type: ignore[type-arg]
            spec = StageSpec(
                name=step,
                work=work,
                clock=clock,
                pending=pending,
                failure_limit=limit,
                stopping=stop,
                **limits,  # type: ignore[arg-type]
            )
            return stack.enter_context(AsyncStage(spec))

        source, sink = _source_and_sink(settings, name, pending, stop, follow)
        yield Parts(
            source=source,
            sink=sink,
            topics=Topics(settings.topic_prefix),
            scope_fields=settings.scope_fields,
            window=window_policy(settings),
            clock=clock,
            live=follow,
            stopping=stop,
            progress=progress or Progress(),
            indexing=stage(
                "index", Indexer(store, embedder, clock), batch_max=settings.embeddings_batch
            ),
            extracting=stage(
                "extract",
                ExtractWork(extractor),
                concurrency=settings.concurrency,
                per_key=settings.concurrency,
                timeout_s=settings.llm_timeout_s,
            ),
            reconciling=stage("reconcile", Reconciler(store, embedder, clock)),
        )


def _source_and_sink(
    settings: Settings, name: FlowName, pending: PendingWork, stop: StopSignal, follow: bool
) -> tuple[Source[LogRecord], FixedPartitionedSink[OutRecord, None]]:
    topic = settings.topic("l0.events")
    end = None if follow else EndAt.latest()
    group = consumer_group(settings, name)
    if settings.embedded:
        log = _file_log(settings)
        source = FileLogSource(log, topic, group=group, end=end, paused=pending.full, stopping=stop)
        return source, FileLogSink(log)
    connection = _kafka(settings)
    kafka_source = KafkaSource(
        connection,
        topic,
        group=group,
        start=StartAt.beginning(),
        end=end,
        paused=pending.full,
        stopping=stop,
    )
    return kafka_source, KafkaSink(connection)


def _file_log(settings: Settings) -> FileLog:
    return FileLog(settings.data_dir / "log", SystemClock())


def _kafka(settings: Settings) -> KafkaConnection:
    return KafkaConnection(settings.brokers, settings.kafka)


def standing_flow(name: FlowName) -> Dataflow:
    """Build a flow that Bytewax's own command runs; its parts close when the process ends."""
    parts = flow_parts(load_settings(), name, StopSignal(), follow=True)
    opened = parts.__enter__()
    atexit.register(parts.__exit__, None, None, None)
    return build_flow(name, opened)

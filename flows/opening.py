"""Opens what a flow stands on, as the settings say: log, store, recorded answers, model.

And says what belongs to which generation: names of groups and folders, topics made and deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from connectors import tracing
from connectors.answers_topic import PublishedAnswers
from connectors.dataflow import never
from connectors.filelog import FileLog
from connectors.kafka.connection import KafkaConnection, topic_identity
from connectors.kafka.sink import KafkaAppender
from connectors.kafka.source import KafkaLog
from connectors.kafka.topics import TOPICS, create_topics, delete_topics
from connectors.llm import RecordedChat, make_chat
from connectors.llm_limits import open_call_gate
from connectors.log import Appender, LogReader
from connectors.metrics import STORE_SECONDS
from connectors.settings import Settings
from connectors.tombstones_topic import TombstonesTopic
from flows.generations import GenerationLog
from flows.progress import FlowName, source_topic
from flows.replay.answers import AnswerTally, CountedChat, NobodyToAsk
from flows.runner import SystemClock
from stores.answers import RedisAnswers, SqliteAnswers
from stores.generation_answers import GenerationAnswers
from stores.generations import MAIN, AnswerMode
from stores.protocols import AnswerJournal, ChatModel, Embedder, UnfinishedWrites
from stores.tombstones import Tombstones
from stores.unfinished import UnfinishedInRedis
from stores.unfinished_files import UnfinishedInFiles

if TYPE_CHECKING:
    from stores.milvus import MilvusStore
    from stores.milvus_base import Reads

__all__ = [
    "KeptServer",
    "Log",
    "StoreServer",
    "consumer_group",
    "delete_topics_of",
    "drop_store",
    "file_log",
    "generation_journal",
    "generation_log",
    "in_generation",
    "kafka_connection",
    "log_name",
    "open_chat",
    "open_journal",
    "open_log",
    "open_store",
    "open_store_server",
    "open_tombstones",
    "open_unfinished",
    "prepare_topics",
    "recovery_folder",
    "resolved",
]


@dataclass(frozen=True)
class Log:
    """Both ways into the log, outside a dataflow."""

    appender: Appender
    reader: LogReader


def open_log(settings: Settings) -> Log:
    """Open the embedded file log, or Kafka when brokers are set."""
    if settings.embedded:
        log = file_log(settings)
        return Log(log, log)
    connection = kafka_connection(settings)
    return Log(KafkaAppender(connection), KafkaLog(connection))


def generation_log(settings: Settings, log: Log | None = None) -> GenerationLog:
    """Open the register of generations."""
    log = log or open_log(settings)
    return GenerationLog(log.reader, log.appender, settings.topic("generations"))


def open_tombstones(settings: Settings, log: Log | None = None) -> TombstonesTopic:
    """Read everything that was forgotten or rejected. Raises as ``TombstonesTopic.refresh``."""
    log = log or open_log(settings)
    known = Tombstones(user_owns_scope="user" in settings.scope_fields)
    tombstones = TombstonesTopic(log.reader, log.appender, settings.topic("tombstones"), known)
    tombstones.refresh()
    return tombstones


def resolved(settings: Settings) -> Settings:
    """Name the generation: the one that is set, else the one that recall reads now.

    Raises :class:`~stores.errors.UserError` when the one that is set is not there.
    """
    topic = settings.topic("generations")
    nothing_made = settings.embedded and not file_log(settings).has_topic(topic)
    if nothing_made and settings.generation in ("", MAIN):
        return in_generation(settings, MAIN)
    generations = generation_log(settings).read()
    return in_generation(settings, generations.get(settings.generation or generations.current).name)


def in_generation(settings: Settings, name: str) -> Settings:
    """Give the same settings for another generation."""
    return settings.model_copy(update={"generation": name})


def prepare_topics(settings: Settings) -> None:
    """Create a generation's topics, and the register, where they are missing. Kafka only.

    The file log makes its topics by itself.
    """
    if settings.embedded:
        return
    register = [spec for spec in TOPICS if spec.name == "generations"]
    own = [spec for spec in TOPICS if not spec.shared]
    connection, partitions = kafka_connection(settings), settings.topic_partitions
    create_topics(connection, settings.topic_prefix, partitions, register)
    create_topics(connection, settings.generation_prefix, partitions, own)


def delete_topics_of(settings: Settings) -> None:
    """Delete a generation's own topics with all records; missing ones are no error."""
    own = [spec for spec in TOPICS if not spec.shared]
    if settings.embedded:
        log = file_log(settings)
        for spec in own:
            log.delete_topic(settings.topic(spec.name))
        return
    delete_topics(kafka_connection(settings), settings.generation_prefix, own)


@dataclass(frozen=True, slots=True)
class StoreServer:
    """Where the vector store answers.

    :arg refuse_writes: why this process may not write; empty when it may.
    :arg reads: a shorter way to read, where the embedded store lives in this process.
    :arg moved: says whether the process that owned the embedded store was started again since.
    """

    uri: str
    token: str
    refuse_writes: str = ""
    reads: Reads | None = None
    moved: Callable[[], bool] = never


@contextmanager
def open_store_server(settings: Settings, *, write: bool) -> Iterator[StoreServer]:
    """Start the embedded store, or reach the process that owns it, or name the real server.

    Stores of several generations can be opened on it at once. Raises as
    :func:`stores.embedded.open_embedded` does.
    """
    if settings.milvus_uri:
        yield StoreServer(settings.milvus_uri, settings.milvus_token.get_secret_value())
        return
    # Here: most commands open no store, and this takes longer to import than all else together.
    from stores.embedded import open_embedded

    with open_embedded(settings.data_dir, write=write) as handle:
        yield StoreServer(
            handle.uri, handle.token, handle.refuse_writes, handle.reads, handle.moved
        )


class KeptServer:
    """The store's server for as long as a service runs, found again when its owner moved."""

    def __init__(self, settings: Settings, stack: ExitStack, *, write: bool) -> None:
        """Open it; ``stack`` closes it. Raises as :func:`open_store_server` does."""
        self._settings = settings
        self._stack = stack
        self._write = write
        self._server = self._open()

    def moved(self) -> bool:
        """Say whether what was opened on it must be opened anew."""
        return self._server.moved()

    def now(self) -> StoreServer:
        """Give where it answers now. Raises as :func:`open_store_server` does."""
        if self.moved():
            self._server = self._open()
        return self._server

    def _open(self) -> StoreServer:
        return self._stack.enter_context(open_store_server(self._settings, write=self._write))


@contextmanager
def open_store(
    settings: Settings,
    embedder: Embedder,
    *,
    write: bool,
    drop_first: bool = False,
    server: StoreServer | None = None,
) -> Iterator[MilvusStore]:
    """Open the vector store and check that it was made with these settings.

    The embedded one lives in this process, or is reached through the process that owns the data
    folder when ``write`` is false. Raises :class:`~stores.errors.StoreMismatch` when the
    collections were made with another embedding model, dimension or analyzer.

    :arg drop_first: delete the collections with all rows and make them anew.
    :arg server: one that is open already.
    """
    with _connected_store(settings, embedder, write=write, server=server) as store:
        if drop_first:
            store.drop_collections()
        store.ensure_collections()
        yield store


def drop_store(settings: Settings, embedder: Embedder) -> None:
    """Delete a generation's collections with all rows; missing ones are no error."""
    with _connected_store(settings, embedder, write=True) as store:
        store.drop_collections()


@contextmanager
def _connected_store(
    settings: Settings, embedder: Embedder, *, write: bool, server: StoreServer | None = None
) -> Iterator[MilvusStore]:
    from stores.milvus import MilvusStore

    with ExitStack() as stack:
        if server is None:
            server = stack.enter_context(open_store_server(settings, write=write))
        store = MilvusStore(
            server.uri,
            token=server.token,
            prefix=settings.generation_collections,
            dimension=embedder.dimension,
            embedding_name=embedder.name,
            analyzer=settings.analyzer,
            refuse_writes=server.refuse_writes,
            reads=server.reads,
            observe=_store_call,
        )
        stack.callback(store.close)
        yield store


def _store_call(operation: str, seconds: float) -> None:
    STORE_SECONDS.labels(operation).observe(seconds)
    tracing.finished(f"store.{operation}", seconds)


@contextmanager
def open_journal(settings: Settings) -> Iterator[AnswerJournal]:
    """Open the recorded answers: Redis when it is set, else a file in the data folder.

    On Kafka every new answer also goes to the answers topic. A generation that was made with
    fresh answers sees its own only.
    """
    own = settings.generation_name != MAIN and (
        generation_log(settings).read().get(settings.generation).answers == "fresh"
    )
    with generation_journal(settings, own=own) as journal:
        yield journal


@contextmanager
def generation_journal(settings: Settings, *, own: bool) -> Iterator[AnswerJournal]:
    """Open the recorded answers: all of them, or the generation's ``own``."""
    with _all_answers(settings) as journal:
        yield GenerationAnswers(journal, settings.generation) if own else journal


@contextmanager
def _all_answers(settings: Settings) -> Iterator[AnswerJournal]:
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
def open_unfinished(settings: Settings) -> Iterator[UnfinishedWrites]:
    """Open the notes about writes that have begun: Redis when it is set, else the data folder."""
    if not settings.redis_url:
        with closing(UnfinishedInFiles(settings.generation_dir / "unfinished")) as unfinished:
            yield unfinished
        return
    prefix = f"{settings.topic('l1.atoms')}/unfinished"
    with closing(UnfinishedInRedis(settings.redis_url, prefix)) as shared:
        yield shared


@contextmanager
def open_chat(
    settings: Settings,
    answers: AnswerMode = "missing",
    tally: AnswerTally | None = None,
    *,
    stopping: Callable[[], bool] = never,
) -> Iterator[ChatModel | None]:
    """Make the model client with its recorded answers; ``None`` when no endpoint is configured.

    :arg answers: ``recorded`` asks nobody, and raises ``NoRecordedAnswer`` where none is.
    :arg tally: counts what was asked and what was there already.
    :arg stopping: once true, no call waits for the limits any more.
    """
    if not settings.llm_base_url:  # no journal is made where nothing is recorded
        yield None
        return
    with open_journal(settings) as journal, open_call_gate(settings, stopping) as gate:
        chat: ChatModel | None
        if answers == "recorded":  # the client of a model takes a second to load
            chat = RecordedChat(NobodyToAsk(settings.llm_model), journal)
        else:
            chat = make_chat(settings, journal, gate)
        yield CountedChat(chat, tally) if chat is not None and tally is not None else chat


def recovery_folder(settings: Settings, name: FlowName) -> Path:
    """Give the folder of a flow's recovery store."""
    return settings.generation_dir / "recovery" / name


def log_name(settings: Settings, name: FlowName) -> str:
    """Tell what a flow reads from every other log. See :func:`flows.recovery.check_log`.

    Asks the brokers; raises :class:`~stores.errors.ServiceUnavailable` when none answers.
    """
    if settings.embedded:
        return "the log in files"
    return topic_identity(kafka_connection(settings), settings.topic(source_topic(name)))


def consumer_group(settings: Settings, name: FlowName) -> str:
    """Name the group under which a flow notes how far it has read."""
    if settings.generation_name == MAIN:
        return f"{settings.consumer_group}-{name}"
    return f"{settings.consumer_group}-{settings.generation}-{name}"


def file_log(settings: Settings) -> FileLog:
    """Open the embedded log."""
    return FileLog(settings.data_dir / "log", SystemClock())


def kafka_connection(settings: Settings) -> KafkaConnection:
    """Say how Kafka is reached."""
    return KafkaConnection(settings.brokers, settings.kafka, patience_s=settings.broker_patience_s)

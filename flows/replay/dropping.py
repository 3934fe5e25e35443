"""Everything that is one generation's own, wherever it is kept: listed, and deleted.

What all generations share stays: events, answers that others use too, tombstones, the register.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from connectors.embeddings import make_embedder
from connectors.kafka.topics import TOPICS
from connectors.settings import Settings
from flows.opening import delete_topics_of, drop_store, file_log, open_log
from stores.answers import RedisAnswers, SqliteAnswers
from stores.errors import SettingsError
from stores.generations import MAIN, Generation
from stores.milvus_schema import LAYERS, collection_name
from stores.records import OutRecord
from stores.redis_keys import count_keys, delete_keys

__all__ = ["Belonging", "belongings", "delete_all"]

_FOLDERS = ("recovery", "scenes", "persona", "persona-requests")
"""Of ``main``, whose folder holds everything else as well."""
_REDIS = ("heat", "locks")


@dataclass(frozen=True, slots=True)
class Belonging:
    """One thing that goes.

    :arg kind: ``topic``, ``collection``, ``folder``, ``answers`` or ``redis``.
    :arg count: records, answers or keys in it; ``None`` where that says nothing.
    """

    kind: str
    name: str
    count: int | None = None


def belongings(settings: Settings, generation: Generation) -> list[Belonging]:
    """List what is there of a generation, in the order in which it goes.

    ``settings`` are those of the generation. Raises what log and stores raise.
    """
    reader = open_log(settings).reader
    found = []
    found += [
        Belonging("collection", collection_name(settings.generation_collections, layer))
        for layer in LAYERS
    ]
    for spec in TOPICS:
        if not spec.shared:
            topic = settings.topic(spec.name)
            if settings.embedded and not file_log(settings).has_topic(topic):
                continue  # to ask for its end would make it
            try:
                ends = reader.end_offsets(topic)
            except SettingsError:  # it was never made, or is gone
                continue
            found.append(Belonging("topic", topic, sum(ends.values())))
    if own := _own(generation):
        with _journal(settings) as journal:
            count = len(journal.hashes_of(own)) if journal else 0
        found.append(Belonging("answers", f"{own}:*", count))
    for prefix in _redis_prefixes(settings):
        found.append(Belonging("redis", f"{prefix}*", count_keys(settings.redis_url, prefix)))
    found += [Belonging("folder", str(path)) for path in _folders(settings)]
    return found


def delete_all(settings: Settings, generation: Generation) -> None:
    """Delete all of it. Idempotent: killed on the way, do it again. No flow may be running.

    ``settings`` are those of the generation, which nobody reads any more.
    """
    drop_store(settings, make_embedder(settings))
    delete_topics_of(settings)
    if own := _own(generation):
        _delete_answers(settings, own)
    for prefix in _redis_prefixes(settings):
        delete_keys(settings.redis_url, prefix)
    for path in _folders(settings):
        shutil.rmtree(path)


def _own(generation: Generation) -> str:
    """Name the answers that nobody else uses; empty where there are none."""
    return generation.name if generation.answers == "fresh" else ""


def _delete_answers(settings: Settings, own: str) -> None:
    with _journal(settings) as journal:
        if journal is None:
            return
        doomed = journal.hashes_of(own)
        if doomed and not settings.embedded:  # in the topic first, as when they are forgotten
            topic = settings.topic("answers")
            appender = open_log(settings).appender
            appender.append([OutRecord(topic, one.encode(), None) for one in doomed])
        journal.drop(own)


@contextmanager
def _journal(settings: Settings) -> Iterator[SqliteAnswers | RedisAnswers | None]:
    with ExitStack() as stack:
        journal: SqliteAnswers | RedisAnswers | None = None
        path = settings.data_dir / "answers.sqlite"
        if settings.redis_url:
            journal = RedisAnswers(settings.redis_url, settings.topic("answers"))
        elif path.exists():
            journal = SqliteAnswers(path)
        if journal is not None:
            stack.enter_context(closing(journal))
        yield journal


def _redis_prefixes(settings: Settings) -> list[str]:
    if not settings.redis_url:
        return []
    return [f"{settings.generation_prefix}.{name}:" for name in _REDIS]


def _folders(settings: Settings) -> list[Path]:
    if settings.generation_name == MAIN:
        candidates = [settings.data_dir / name for name in _FOLDERS]
    else:
        candidates = [settings.generation_dir]
    return [path for path in candidates if path.exists()]

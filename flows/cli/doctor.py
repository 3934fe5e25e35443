"""``sediment doctor``: is every dependency there, and if not, what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version

import typer
from rich.table import Table
from rich.text import Text

from connectors.settings import Settings
from flows.cli.common import Brokers, DataDir, Json, out, print_json, settings_from
from stores.errors import InvalidEvent, SedimentError, StoreMismatch, UserError

__all__ = ["Finding", "doctor", "examine"]


_KEYS_LOOKED_AT = 200
"""Newest records of each partition whose keys are looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one dependency.

    :arg detail: version and shape when it is well, else what is wrong.
    :arg remedy: what to do, when something is wrong.
    """

    part: str
    ok: bool
    detail: str
    remedy: str = ""


def doctor(data_dir: DataDir = None, brokers: Brokers = None, json: Json = False) -> None:
    """Look at every dependency: reachable, which version, what is wrong, what to do.

    Exit code 1 when something is wrong.

    Example: sediment doctor --brokers localhost:9092
    """
    settings = settings_from(data_dir=data_dir, brokers=brokers)
    findings = examine(settings)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table(expand=True)
        for column in ("part", "", "found", "what to do"):
            table.add_column(column)
        for finding in findings:
            mark = Text("ok", "green") if finding.ok else Text("wrong", "bold red")
            table.add_row(finding.part, mark, Text(finding.detail), Text(finding.remedy))
        out.print(table)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def examine(settings: Settings) -> list[Finding]:
    """Examine each dependency in turn; one that is broken hides none of the others."""
    looks: list[tuple[str, Callable[[Settings], str], str]] = [
        ("log", _log, "start the broker, or correct SEDIMENT_BROKERS; `sediment topics create`"),
        ("record keys", _keys, "key every record by its scope: docs/produce-events.md"),
        ("embeddings", _embeddings, "correct SEDIMENT_EMBEDDINGS_*, or unset the URL"),
        ("milvus", _milvus, "start Milvus, or correct SEDIMENT_MILVUS_URI"),
        ("answers", _answers, "start Redis, or correct SEDIMENT_REDIS_URL"),
        ("model", _model, "correct SEDIMENT_LLM_*, or unset the URL for rule-based extraction"),
    ]
    return [_look(part, look, remedy, settings) for part, look, remedy in looks]


def _look(part: str, look: Callable[[Settings], str], remedy: str, settings: Settings) -> Finding:
    try:
        return Finding(part, ok=True, detail=look(settings))
    except StoreMismatch as error:
        return Finding(part, ok=False, detail=error.message, remedy="see the left column")
    except SedimentError as error:
        return Finding(part, ok=False, detail=error.message, remedy=remedy)


def _log(settings: Settings) -> str:
    from flows.parts import open_log

    topic = settings.topic("l0.events")
    ends = open_log(settings).reader.end_offsets(topic)
    where = f"file log in {settings.data_dir}" if settings.embedded else f"Kafka {settings.brokers}"
    return f"{where}: {topic} has {len(ends)} partitions, {sum(ends.values())} records"


def _keys(settings: Settings) -> str:
    """Look whether the newest records are keyed by their scope."""
    from connectors.log import EndAt, Place, StartAt
    from flows.decode import decode
    from flows.parts import open_log

    topic = settings.topic("l0.events")
    reader = open_log(settings).reader
    starts = {
        partition: Place("offset", max(0, end - _KEYS_LOOKED_AT))
        for partition, end in reader.end_offsets(topic).items()
    }
    looked = wrong = 0
    for record in reader.read(topic, StartAt(partitions=starts), EndAt.latest()):
        decoded = decode(record, settings.scope_fields)
        if not isinstance(decoded, InvalidEvent):
            looked += 1
            wrong += record.key != decoded.scope.encode()
    if wrong:
        message = (
            f"{wrong} of the newest {looked} events are not keyed by their scope; they are "
            "processed, but their order, and so a replay, is not certain"
        )
        raise UserError(message)
    return f"the newest {looked} events are keyed by their scope"


def _embeddings(settings: Settings) -> str:
    from connectors.embeddings import make_embedder

    embedder = make_embedder(settings)
    vector = asyncio.run(embedder.embed_query("sediment"))
    return f"{embedder.name}, {vector.shape[0]} dimensions"


def _milvus(settings: Settings) -> str:
    from connectors.embeddings import make_embedder
    from flows.parts import open_store

    with open_store(settings, make_embedder(settings), write=False) as store:
        state = store.describe()
    kind = f"milvus-lite {version('milvus-lite')}" if state.embedded else "Milvus"
    search = "dense and keyword" if state.full_text else "dense only (no full-text search)"
    return f"{kind} {state.server_version}: {search}; made with {state.wanted}"


def _answers(settings: Settings) -> str:
    from flows.parts import open_journal

    with open_journal(settings) as journal:
        journal.get("doctor")
    return "Redis" if settings.redis_url else f"file {settings.data_dir / 'answers.sqlite'}"


def _model(settings: Settings) -> str:
    from connectors.llm import OpenAIChat
    from stores.protocols import ChatRequest

    if not settings.llm_base_url:
        return "none: extraction is rule-based"
    chat = OpenAIChat(
        settings.llm_model,
        base_url=settings.llm_base_url,
        api_key=settings.llm_api_key.get_secret_value(),
        timeout_s=settings.llm_timeout_s,
    )
    request = ChatRequest(
        settings.llm_model, (("user", "Answer with the word ok."),), "doctor/1", max_tokens=16
    )
    answer = asyncio.run(chat.complete(request))
    return f"{answer.model} at {settings.llm_base_url}, answered in {answer.latency_s:.1f} s"

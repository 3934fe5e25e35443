"""``sediment doctor``: is every dependency there, and are the memories fit to be told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from connectors.settings import Settings
from flows.cli.common import (
    Agent,
    Brokers,
    DataDir,
    Json,
    Team,
    Tenant,
    User,
    memory_settings_from,
    out,
    print_json,
    progress_bar,
    scope_label,
    scope_of,
    settings_from,
)
from stores.errors import InvalidEvent, SedimentError, StoreMismatch, UserError

if TYPE_CHECKING:
    from flows.gate.recheck import Rechecked

__all__ = ["Finding", "doctor", "examine"]

doctor = typer.Typer(invoke_without_command=True)

_KEYS_LOOKED_AT = 200
"""Newest records of each partition whose keys are looked at."""
_EVENTS_AT_ONCE = 500


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


@doctor.callback()
def dependencies(
    context: typer.Context, data_dir: DataDir = None, brokers: Brokers = None, json: Json = False
) -> None:
    """Look at every dependency: reachable, which version, what is wrong, what to do.

    Exit code 1 when something is wrong.

    Example: sediment doctor --brokers localhost:9092
    """
    if context.invoked_subcommand is not None:
        return
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
    from flows.opening import open_log

    topic = settings.topic("l0.events")
    ends = open_log(settings).reader.end_offsets(topic)
    where = f"file log in {settings.data_dir}" if settings.embedded else f"Kafka {settings.brokers}"
    partitions = "1 partition" if len(ends) == 1 else f"{len(ends)} partitions"
    return f"{where}: {topic} has {partitions}, {sum(ends.values())} records"


def _keys(settings: Settings) -> str:
    """Look whether the newest records are keyed by their scope."""
    from connectors.log import EndAt, Place, StartAt
    from flows.decode import decode
    from flows.opening import open_log

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
    from flows.opening import open_store

    with open_store(settings, make_embedder(settings), write=False) as store:
        state = store.describe()
    kind = f"milvus-lite {version('milvus-lite')}" if state.embedded else "Milvus"
    search = "dense and keyword" if state.full_text else "dense only (no full-text search)"
    return f"{kind} {state.server_version}: {search}; made with {state.wanted}"


def _answers(settings: Settings) -> str:
    from flows.opening import open_journal

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


# --- memories --------------------------------------------------------------------------------


@doctor.command("memories")
def check_memories(
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    rule: Annotated[
        str | None, typer.Option("--rule", help="Only what this rule or warning is about.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Superseded, stale and rejected ones as well.")
    ] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List memories with warnings, and try today's quality rules on all that are stored.

    Changes nothing. Exit code 1 when a memory is listed.

    Example: sediment doctor memories --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir)
    scope = scope_of(settings, tenant, agent, user, team)
    _check_rule(rule)
    checked = _rechecked(settings, scope, only_active=not everything)
    found = [one for one in checked if (rule in one.codes() if rule else one.codes())]
    if json:
        print_json({"items": [_as_json(one) for one in found], "checked": len(checked)})
    else:
        _show_memories(found, len(checked), scope)
    if found:
        raise typer.Exit(1)


def _check_rule(rule: str | None) -> None:
    from flows.gate.policy import REASONS, WARNINGS

    if rule is not None and rule not in {*REASONS, *WARNINGS}:
        message = f"--rule {rule}: there is no such rule; there are {', '.join(REASONS)}"
        raise UserError(message)


def _rechecked(settings: Settings, scope: str, *, only_active: bool) -> list[Rechecked]:
    from connectors.embeddings import make_embedder
    from flows.gate import GatePolicy
    from flows.gate.recheck import judged_by_source, recheck, said_in
    from flows.opening import open_store

    policy = GatePolicy(settings.gate, settings.gate_max_chars)
    with open_store(settings, make_embedder(settings), write=False) as store:
        atoms = store.atoms_of(scope, only_active=only_active)
        sources = (atom.source_event_ids for atom in atoms if judged_by_source(atom))
        wanted = list(dict.fromkeys(event_id for ids in sources for event_id in ids))
        said: dict[str, str] = {}
        for at in range(0, len(wanted), _EVENTS_AT_ONCE):
            said |= said_in(store.get_events(scope, wanted[at : at + _EVENTS_AT_ONCE]))
    with progress_bar() as bar:
        return [recheck(atom, said, policy) for atom in bar.track(atoms, description="memories")]


def _show_memories(found: list[Rechecked], checked: int, scope: str) -> None:
    if not found:
        out.print(f"{scope_label(scope)}: nothing found in {checked} memories")
        return
    table = Table(expand=True)
    for column in ("memory", "noted when it was made", "found now"):
        table.add_column(column, overflow="fold")
    for one in found:
        now = [f"{each.rule} ({each.mode}): {each.detail}" for each in one.findings]
        noted = Text(", ".join(one.atom.warnings))
        table.add_row(Text(_shown(one)), noted, Text("\n".join(now)))
    out.print(table)
    out.print(f"{scope_label(scope)}: {len(found)} of {checked} memories")


def _shown(one: Rechecked) -> str:
    text = "(not shown: it holds a secret)" if one.holds_secret else one.atom.text
    return f"{text}\n{one.atom.type}, {one.atom.status}, {one.atom.atom_id}"


def _as_json(one: Rechecked) -> dict[str, Any]:
    return {
        "atom_id": one.atom.atom_id,
        "type": one.atom.type,
        "status": one.atom.status,
        "text": None if one.holds_secret else one.atom.text,
        "warnings": list(one.atom.warnings),
        "findings": [asdict(finding) for finding in one.findings],
    }

"""``sediment memories`` and ``sediment recall``: what is remembered, and what bears on a question.

Both open the store in the data folder, or reach it through the process that has it open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from connectors.settings import Settings
from flows.cli.common import (
    Agent,
    DataDir,
    Json,
    Team,
    Tenant,
    User,
    local_time,
    memory_settings_from,
    out,
    print_json,
    scope_label,
    scope_of,
)
from stores.errors import UserError
from stores.records import Atom

if TYPE_CHECKING:
    from connectors.query.models import RecallAnswer
    from stores.milvus import MilvusStore

__all__ = ["ask", "memories", "recall", "show_answer", "show_atoms"]

memories = typer.Typer(no_args_is_help=True, help="List memories, or show one with its sources.")


@contextmanager
def _opened(settings: Settings) -> Iterator[MilvusStore]:
    from connectors.embeddings import make_embedder
    from flows.opening import open_store

    with open_store(settings, make_embedder(settings), write=False) as store:
        yield store


@memories.command("list")
def list_memories(
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    active: Annotated[bool, typer.Option("--active", help="Leave out superseded ones.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List the memories of a scope by the time they were said, oldest first.

    Example: sediment memories list --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir)
    scope = scope_of(settings, tenant, agent, user, team)
    with _opened(settings) as store:
        atoms = store.atoms_of(scope, only_active=active)
    if json:
        print_json({"items": [_as_json(atom) for atom in atoms], "total": len(atoms)})
        return
    if not atoms:
        out.print(f"nothing is remembered of {scope_label(scope)}")
        return
    show_atoms(atoms, title=scope_label(scope))


@memories.command("show")
def show_memory(
    memory_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the memory.")],
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show one memory with its validity and the events it came from.

    Example: sediment memories show 3f1c… --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir)
    scope = scope_of(settings, tenant, agent, user, team)
    with _opened(settings) as store:
        atom = store.get_atom(scope, memory_id)
        if atom is None:
            message = f"{scope_label(scope)} has no memory {memory_id}"
            raise UserError(message)
        events = store.get_events(scope, atom.source_event_ids)
    if json:
        found = [
            {
                "event_id": event.event_id,
                "session_id": event.session_id,
                "role": event.role,
                "text": event.text,
                "occurred_at": event.occurred_at.isoformat(),
            }
            for event in events
        ]
        print_json({"memory": _as_json(atom), "events": found})
        return
    table = Table.grid(padding=(0, 2))
    for name, value in _as_json(atom).items():
        table.add_row(Text(name, style="bold"), Text(str(value)))
    out.print(table)
    for event in events:
        out.print(Text(f"\n{event.role}, {local_time(event.occurred_at)}, {event.event_id}", "dim"))
        out.print(Text(event.text))


def recall(
    query: Annotated[str, typer.Argument(help="What to recall.")],
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    limit: Annotated[int | None, typer.Option(min=1, max=100, help="Items at most.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens at most.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Recall what bears on a question, best first.

    Example: sediment recall "where does she live?" --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(
        data_dir=data_dir, recall_limit=limit, budget_tokens=budget_tokens
    )
    scope = scope_of(settings, tenant, agent, user, team)
    (answer,) = ask(settings, [(scope, query)])
    if json:
        print_json(answer.model_dump(mode="json"))
        return
    show_answer(answer)


def ask(settings: Settings, questions: Sequence[tuple[str, str]]) -> list[RecallAnswer]:
    """Answer (scope, question) pairs, one after the other, on one opened store."""
    from connectors.embeddings import make_embedder
    from connectors.query.question import RecallQuery
    from connectors.query.recall import Recall
    from flows.opening import open_store
    from flows.runner import SystemClock

    embedder = make_embedder(settings)

    async def answered(recall: Recall) -> list[RecallAnswer]:
        return [
            await recall.recall(
                RecallQuery(
                    scope=scope,
                    text=text,
                    limit=settings.recall_limit,
                    budget_tokens=settings.budget_tokens,
                )
            )
            for scope, text in questions
        ]

    with open_store(settings, embedder, write=False) as store:
        recall = Recall.of(settings, store, embedder, SystemClock(), full_text=store.full_text)
        try:
            return asyncio.run(answered(recall))
        finally:
            recall.close()


def show_atoms(atoms: Sequence[Atom], title: str) -> None:
    """Print atoms: what, which kind, since when and until when it holds, where from."""
    out.print(Text(title, style="bold"))
    for atom in atoms:
        holds = atom.status == "active"
        said = f"{atom.occurred_at:%Y-%m-%d}"
        if atom.valid_until is not None:
            said += f" until {atom.valid_until:%Y-%m-%d}"
        marks = [atom.type, said, *([] if holds else [atom.status])]
        _show_item("●" if holds else "○", atom.text, marks, atom.source_event_ids, dim=not holds)


def show_answer(answer: RecallAnswer, limit: int | None = None) -> None:
    """Print a recall, best first: score, layer, type or speaker, time, text, sources."""
    for place, item in enumerate(answer.items[:limit], start=1):
        who = " ".join((item.speaker or item.type).split())
        marks = [f"score {item.score:.4f}", item.layer, who, local_time(item.occurred_at)]
        _show_item(f"{place}.", item.text, marks, item.source_event_ids, dim=False)
    if not answer.items:
        out.print("  nothing was found")
    for part in answer.degraded:
        out.print(f"  without {part.part}: {part.reason}", style="yellow")


def _show_item(
    mark: str, text: str, marks: Sequence[str], sources: Sequence[str], *, dim: bool
) -> None:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(overflow="fold")
    grid.add_row(mark, Text(text, style="dim" if dim else ""))
    origin = [f"from {', '.join(sources)}"] if sources else []
    grid.add_row("", Text(" · ".join([*marks, *origin]), style="dim"))
    out.print(grid)


def _as_json(atom: Atom) -> dict[str, object]:
    shown: dict[str, object] = atom.model_dump(mode="json")
    return shown

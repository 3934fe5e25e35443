"""``sediment persona``: the profile of a scope, its history, and asking for a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Annotated

import typer

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
    scope_label,
    scope_of,
)
from flows.cli.resting import hides
from flows.cli.scenes import show_file, show_history
from flows.runner import SystemClock
from stores.errors import UserError
from stores.ids import content_id
from stores.records import PersonaJob
from stores.requests import asked_record
from stores.scenes import ProfileFile, SceneFolder, index_of, with_navigation

__all__ = ["persona", "persona_with_navigation"]

persona = typer.Typer(
    no_args_is_help=True, help="Show the persona of a scope, or ask for a new one."
)

_FILE = "persona.md"


@contextmanager
def _opened(settings: Settings) -> Iterator[tuple[SceneFolder, SceneFolder]]:
    from flows.layer_parts import open_persona_folder, open_scene_folder

    with ExitStack() as stack:
        personas = stack.enter_context(open_persona_folder(settings))
        yield personas, stack.enter_context(open_scene_folder(settings))


def persona_with_navigation(
    personas: SceneFolder,
    scenes: SceneFolder,
    scope: str,
    hidden: Callable[[ProfileFile], bool] = lambda file: False,
) -> ProfileFile | None:
    """Give a scope's persona with the scenes as they are now behind it; ``None`` without one.

    :arg hidden: says which scenes are not to be named.
    """
    file = personas.files(scope).get(_FILE)
    if file is None:
        return None
    named = {name: one for name, one in scenes.files(scope).items() if not hidden(one)}
    return replace(file, body=with_navigation(file.body, index_of(named)))


@persona.command("show")
def show(
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    generation: Annotated[
        int | None, typer.Option(min=1, help="An earlier generation [default: the current one]")
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show the persona, with the navigation of the scenes as they are now behind it.

    The memories that it rests on are in --json.

    Example: sediment persona show --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir)
    scope = scope_of(settings, tenant, agent, user, team)
    hidden = hides(settings, scope)
    with _opened(settings) as (personas, scene_folder):
        if generation is not None:
            files = personas.files(scope, generation)
        else:
            file = persona_with_navigation(personas, scene_folder, scope, hidden)
            files = {_FILE: file} if file is not None else {}
    if not files:
        message = f"{scope_label(scope)} has no persona yet; it is written after the first scenes"
        raise UserError(message)
    told = {name: one for name, one in files.items() if not hidden(one)}
    show_file(_FILE, files, told, scope, json=json, whole=False)


@persona.command("history")
def history(
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show how the persona came about: the generations that are kept, newest first.

    Example: sediment persona history --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir)
    scope = scope_of(settings, tenant, agent, user, team)
    with _opened(settings) as (personas, _):
        kept = personas.history(scope)
    show_history(kept, scope, json=json)


@persona.command("request")
def request(
    tenant: Tenant,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is shown to the model.")],
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Ask for a new persona. A running flow writes it, or the next `sediment run`.

    Example: sediment persona request --reason "new job" --tenant demo --agent companion --user ana
    """
    from flows.opening import open_log

    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    scope = scope_of(settings, tenant, agent, user, team)
    words = " ".join(reason.split())
    if not words:
        message = "--reason: say why, in a few words"
        raise UserError(message)
    now = SystemClock().now()
    job = PersonaJob(
        job_id=content_id("l3-asked", scope, words, now.isoformat()),
        scope=scope,
        reason=words,
        occurred_at=now,
    )
    open_log(settings).appender.append([asked_record(job, settings.topic("l3.jobs"))])
    if json:
        print_json({"job_id": job.job_id, "scope": scope, "reason": words})
        return
    out.print(f"asked for a new persona of {scope_label(scope)}", markup=False, soft_wrap=True)

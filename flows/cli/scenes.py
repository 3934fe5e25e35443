"""``sediment scenes``: the scene files of a scope, their history, and a person's own changes.

The folder is on the machine where the flow that writes scenes runs. Changes take effect for
recall with the next scene run, which is asked for here.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
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
    err,
    local_time,
    memory_settings_from,
    out,
    print_json,
    scope_label,
    scope_of,
)
from flows.cli.resting import hides, shown
from flows.runner import SystemClock
from stores.errors import UserError
from stores.ids import content_id
from stores.records import SceneJob
from stores.requests import asked_record
from stores.scenes import (
    DELETED_MARK,
    Generation,
    ProfileFile,
    SceneFolder,
    index_of,
    normal_name,
    render,
)
from stores.scenes.names import name_key

__all__ = [
    "BEING_REWRITTEN",
    "file_json",
    "generation_json",
    "scenes",
    "show_file",
    "show_history",
    "show_index",
]

scenes = typer.Typer(
    no_args_is_help=True, help="List, show, edit and restore the scene files of a scope."
)
BEING_REWRITTEN = "rests on what was forgotten or rejected, and waits to be rewritten"
Name = Annotated[str, typer.Argument(metavar="NAME", help="File name; `.md` may be left out.")]


@contextmanager
def _opened(settings: Settings) -> Iterator[SceneFolder]:
    from flows.layer_parts import open_scene_folder

    with open_scene_folder(settings) as folder:
        yield folder


@scenes.command("list")
def list_scenes(
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List the scenes of a scope, those that recall came up with most first.

    Example: sediment scenes list --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir)
    scope = scope_of(settings, tenant, agent, user, team)
    with _opened(settings) as folder:
        every, number = folder.files(scope), folder.current(scope).number
    files = shown(settings, scope, every)
    if json:
        items = [file_json(one.path, files[one.path]) for one in index_of(files)]
        print_json({"generation": number, "items": items, "total": len(items)})
        return
    if not every:
        out.print(f"no scenes of {scope_label(scope)}", markup=False)
        return
    out.print(Text(f"{scope_label(scope)}, generation {number}", "bold"))
    show_index(files)
    if len(files) < len(every):
        err.print(f"{len(every) - len(files)} more: {BEING_REWRITTEN}", soft_wrap=True)


@scenes.command("show")
def show_scene(
    name: Name,
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
    """Show one scene file as it is, front matter included.

    Example: sediment scenes show Work-and-study --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir)
    scope = scope_of(settings, tenant, agent, user, team)
    with _opened(settings) as folder:
        every = folder.files(scope, generation)
    show_file(_path(name, every), every, shown(settings, scope, every), scope, json=json)


@scenes.command("history")
def history(
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show how the scenes of a scope came about: every generation that is kept, newest first.

    Example: sediment scenes history --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir)
    scope = scope_of(settings, tenant, agent, user, team)
    with _opened(settings) as folder:
        kept = _history(settings, folder, scope)
    show_history(kept, scope, json=json)


@scenes.command("restore")
def restore(
    generation: Annotated[int, typer.Argument(metavar="GENERATION", help="See its history.")],
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Make the files of an earlier generation the current ones again, as a new generation.

    Example: sediment scenes restore 3 --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    scope = scope_of(settings, tenant, agent, user, team)
    now = SystemClock().now()
    with _opened(settings) as folder:
        made = folder.restore(scope, generation, now)
    _ask_for_run(settings, scope, made, now)
    _told(f"generation {generation} is current again, as generation {made.number}", made, json)


@scenes.command("edit")
def edit(
    name: Name,
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Take the text from this file, `-` for stdin, not an editor."),
    ] = None,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Write a scene yourself: in $EDITOR, or from a file. An empty text takes the scene away.

    Your text is a generation of its own. An agent that is at work meanwhile does not overwrite
    it: it begins again, on top of what you wrote.

    Example: sediment scenes edit Work-and-study --file work.md --tenant demo --agent companion
    --user ana
    """
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    scope = scope_of(settings, tenant, agent, user, team)
    now = SystemClock().now()
    with _opened(settings) as folder:
        base = folder.current(scope).number
        files = folder.files(scope)
        path = _path(name, files)
        known = files.get(path)
        if known is not None and hides(settings, scope)(known):
            message = f"{path}: {BEING_REWRITTEN}; edit it after the next scene run"
            raise UserError(message)
        before = render(known) if known else ""
        text = _read(file) if file is not None else _in_editor(before, path)
        same = text == before
        made = folder.current(scope) if same else folder.edit(scope, path, text, now, base)
    # Also where nothing changed: an edit that was killed here is on disk, and nobody was told.
    _ask_for_run(settings, scope, made, now)
    if same:
        _told("nothing changed", made, json)
        return
    gone = text.strip() in ("", DELETED_MARK)
    _told(f"{path} is {'gone' if gone else 'written'}, generation {made.number}", made, json)


def show_index(files: dict[str, ProfileFile]) -> None:
    """Print a line for each scene and what it is about, the hottest first."""
    for one in index_of(files):
        file = files[one.path]
        number = len(file.atoms)
        atoms = f"{number} atom{'' if number == 1 else 's'}"
        marks = [f"heat {one.heat}", atoms, f"updated {one.updated:%Y-%m-%d}"]
        marks += [f"by {file.generator}"]
        out.print(Text.assemble((one.path, "bold"), (f"  {' · '.join(marks)}", "dim")))
        if one.summary:
            out.print(Padding(Text(one.summary), (0, 0, 0, 3)))


def _history(settings: Settings, folder: SceneFolder, scope: str) -> list[Generation]:
    """Give the kept generations, without the names of files that may not be shown."""
    kept = folder.history(scope)
    hidden = hides(settings, scope)
    names = {
        name
        for made in kept
        for name, file in folder.files(scope, made.number).items()
        if hidden(file)
    }
    return [
        replace(
            made, versions={name: at for name, at in made.versions.items() if name not in names}
        )
        for made in kept
    ]


def show_file(
    path: str,
    every: dict[str, ProfileFile],
    files: dict[str, ProfileFile],
    scope: str,
    *,
    json: bool,
    whole: bool = True,
) -> None:
    """Print one file of a scope. Raises ``UserError`` when it is not there, or not to be shown.

    :arg every: all files; ``files``: those that may be shown.
    :arg whole: with its front matter, which has a line for each memory that it rests on.
    """
    if path in every and path not in files:
        message = f"{path}: {BEING_REWRITTEN}; it is shown after the next scene run"
        raise UserError(message)
    if path not in files:
        there = ", ".join(files) or "none"
        message = f"{scope_label(scope)} has no file {path}; there are: {there}"
        raise UserError(message)
    if json:
        print_json({**file_json(path, files[path]), "text": files[path].body})
        return
    sys.stdout.write(render(files[path]) if whole else files[path].body)
    sys.stdout.flush()


def show_history(kept: list[Generation], scope: str, *, json: bool) -> None:
    """Print the generations of a scope, newest first."""
    if json:
        print_json({"items": [generation_json(one) for one in kept], "total": len(kept)})
        return
    if not kept:
        out.print(f"nothing is written of {scope_label(scope)}", markup=False)
        return
    known = {one.number: one for one in kept}
    for one in kept:
        made = generation_json(one)
        change = one.change
        why = [local_time(change.at), f"by {change.author}", change.reason] if change else []
        marks = [f"from {one.base}", *why]
        head = (f"generation {one.number}", "bold"), (f"  {' · '.join(marks)}", "dim")
        out.print(Text.assemble(*head))
        base = known.get(one.base)
        gone = [name for name in base.versions if name not in one.versions] if base else []
        for what, names in (("written", made["changed"]), ("gone", gone)):
            if names:
                out.print(Padding(Text(f"{what}: {', '.join(names)}"), (0, 0, 0, 3)))


def file_json(path: str, file: ProfileFile) -> dict[str, object]:
    """Give a file's front matter for scripts."""
    return {
        "path": path,
        "title": file.title,
        "summary": file.summary,
        "heat": file.heat,
        "created": file.created.isoformat(),
        "updated": file.updated.isoformat(),
        "generator": file.generator,
        "atoms": list(file.atoms),
        "archived": list(file.archived),
    }


def generation_json(one: Generation) -> dict[str, Any]:
    """Give a generation for scripts."""
    change = one.change
    return {
        "generation": one.number,
        "base": one.base,
        "at": change.at.isoformat() if change else None,
        "author": change.author if change else None,
        "reason": change.reason if change else None,
        "files": list(one.versions),
        "changed": [name for name, at in one.versions.items() if at == one.number],
    }


def _path(name: str, files: Collection[str]) -> str:
    """Give the file that is meant: `Work and study` is Work-and-study.md, as it is written."""
    path = name if name.lower().endswith(".md") else f"{name}.md"
    if path in files:
        return path
    path = normal_name(path)
    return next((one for one in files if name_key(one) == name_key(path)), path)


def _read(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        message = f"--file: cannot read {file}: {why}"
        raise UserError(message) from None


def _in_editor(text: str, path: str) -> str:
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not editor:
        message = "neither VISUAL nor EDITOR names an editor; set one, or give the text with --file"
        raise UserError(message)
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, path)
        draft.write_text(text, "utf-8")
        try:
            done = subprocess.run([*editor, str(draft)], check=False)
        except OSError as error:
            message = f"EDITOR: cannot run {editor[0]}: {error.strerror}"
            raise UserError(message) from None
        if done.returncode:
            message = f"the editor ended with {done.returncode}; nothing was changed"
            raise UserError(message)
        return draft.read_text("utf-8")


def _ask_for_run(settings: Settings, scope: str, made: Generation, now: datetime) -> None:
    """Put a job without atoms into the topic: the flow then tells topic and index."""
    from flows.opening import open_log

    job = SceneJob(
        job_id=content_id("l2-asked", scope, str(made.number), now.isoformat()),
        scope=scope,
        window_id="",
        atom_ids=(),
        repair=True,
        occurred_at=now,
    )
    open_log(settings).appender.append([asked_record(job, settings.topic("l2.jobs"))])


def _told(what: str, made: Generation, json: bool) -> None:
    if json:
        print_json(generation_json(made))
        return
    out.print(what, markup=False, soft_wrap=True)
    err.print("recall sees it after the next scene run (`sediment run` or a running flow)")

"""``sediment export`` and ``sediment import``: memories as files, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    err,
    memory_settings_from,
    out,
    print_json,
    progress_bar,
    scope_of,
)
from flows.cli.rebuild import (
    bring_in,
    open_history,
    profile_history,
    rebuilt_json,
    show_problems,
    unreadable_json,
)
from flows.upkeep.exporting import Exported, check_place, write_export
from flows.upkeep.rebuild import Rebuilt
from stores.errors import UserError

if TYPE_CHECKING:
    from flows.upkeep.export_format import Manifest
    from flows.upkeep.import_profiles import ProfilesDone
    from flows.upkeep.importing import Appended, ImportLog

__all__ = ["export", "import_"]

Generation = Annotated[
    str | None,
    typer.Option("--generation", help="Of this generation [default: the one recall reads]"),
]


def export(
    out_dir: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    tenant: Tenant = "",
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    generation: Generation = None,
    no_scenes: Annotated[
        bool,
        typer.Option(
            "--no-scenes",
            help="Leave scenes and persona out: to compare two histories, as live ones are written "
            "when their time comes.",
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write over an earlier export.")
    ] = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Write events, memories, scenes and persona of a scope, or of all, as JSON Lines and Markdown.

    They come from the topics, in a fixed order, without anything that depends on when or where
    they were made: the same memories give the same bytes. Exit code 1 when a record of the
    atoms topic could not be read.

    Example: sediment export --out ana --tenant demo --agent companion --user ana
    """
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers, generation=generation)
    given = any((tenant, agent, user, team))
    scope = scope_of(settings, tenant, agent, user, team) if given else None
    check_place(out_dir, replace=replace)
    with progress_bar() as bar:
        task = bar.add_task("records read", total=None)
        history = open_history(settings, lambda: bar.update(task, completed=history.records_read))
        # The atoms are read twice: which record is the last, then those records.
        bar.update(task, total=history.event_records() + 2 * history.atom_records())
        profiles = None if no_scenes else profile_history(settings)
        exported = write_export(
            history,
            out_dir,
            scope_fields=settings.scope_fields,
            scope=scope,
            replace=replace,
            profiles=profiles,
        )
    _report(exported, out_dir, json)
    if exported.unreadable:
        raise typer.Exit(1)


def _report(exported: Exported, folder: Path, json: bool) -> None:
    manifest = exported.manifest
    if json:
        print_json(
            {
                "scopes": len(manifest.scopes),
                "events": manifest.events,
                "atoms": manifest.atoms,
                "profiles": manifest.profiles,
                "manifest_sha256": exported.digest,
                "repeated": exported.repeated,
                "refused": exported.refused,
                "forgotten": exported.forgotten,
                "unreadable": [unreadable_json(one) for one in exported.unreadable],
            }
        )
        return
    for one in exported.unreadable:
        err.print(str(one), markup=False, soft_wrap=True)
    out.print(
        f"{len(manifest.scopes)} scopes, {manifest.events} events, {manifest.atoms} atoms, "
        f"{manifest.profiles} scenes and personas in {folder}; left out: {exported.repeated} "
        f"repeated events, {exported.refused} records that are not events, {exported.forgotten} "
        "that were forgotten",
        soft_wrap=True,
    )
    out.print(f"SHA-256 of the manifest: {exported.digest}", soft_wrap=True)


def import_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that an export wrote.", file_okay=False)
    ],
    atoms_only: Annotated[bool, typer.Option("--atoms-only", help="Leave the events out.")] = False,
    events_only: Annotated[
        bool,
        typer.Option("--events-only", help="Leave memories and scenes out: a flow makes them."),
    ] = False,
    generation: Generation = None,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Read an export into the topics and the store. Recall works at once, without the flow.

    What is there already, by its id, stays as it is; importing twice changes nothing. What was
    forgotten or rejected, here or where the export was made, is kept out and counted; so is a
    memory that the quality gate refuses here. A scope that has scenes or a persona of its own
    keeps them, and that is said. Nothing is written unless the whole export is as it was written.
    Stop the flows first.

    Example: sediment import ana
    """
    from connectors.embeddings import make_embedder
    from flows.opening import open_store
    from flows.upkeep.import_profiles import ProfilesDone
    from flows.upkeep.importing import Appended, check_export

    if atoms_only and events_only:
        message = "--atoms-only and --events-only exclude each other"
        raise UserError(message)
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers, generation=generation)
    manifest = check_export(folder, settings.scope_fields)
    made = ["atoms", "profiles"]
    layers = ["events"] if events_only else made if atoms_only else [*made, "events"]
    embedder = make_embedder(settings)
    into, done = _Imported(Appended(), Appended(), ProfilesDone()), Rebuilt()
    scopes = {entry.scope for entry in manifest.scopes}
    with open_store(settings, embedder, write=True) as store:
        _append(settings, folder, manifest, layers, into)
        bring_in(settings, store, embedder, done, layers=layers, wanted=scopes.__contains__)
    if json:
        print_json(
            {
                "events": asdict(into.events),
                "atoms": asdict(into.atoms),
                "profiles": asdict(into.profiles),
                "store": rebuilt_json(done),
            }
        )
    else:
        show_problems(done)
        counted = (("events", into.events), ("atoms", into.atoms), ("scenes", into.profiles))
        for name, one in counted:
            kept = f", {one.forgotten} kept out, forgotten before" if one.forgotten else ""
            kept += f", {one.refused} refused by the quality gate" if one.refused else ""
            out.print(f"{name}: {one.written} written, {one.present} were there{kept}")
        for left in into.profiles.left:
            err.print(str(left), style="yellow", markup=False, soft_wrap=True)
    if not done.complete:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Imported:
    """What an import did, so far, by what it is about."""

    events: Appended
    atoms: Appended
    profiles: ProfilesDone

    @property
    def seen(self) -> int:
        """Count what was looked at."""
        return sum(
            one.written + one.present + one.forgotten + one.refused
            for one in (self.events, self.atoms, self.profiles)
        )


def _append(
    settings: Settings, folder: Path, manifest: Manifest, layers: Sequence[str], done: _Imported
) -> None:
    from connectors.tombstones_topic import TombstonesTopic
    from flows.gate import GatePolicy
    from flows.opening import open_log
    from flows.upkeep.importing import ImportLog

    with progress_bar() as bar:
        task = bar.add_task(
            "records written", total=sum(getattr(manifest, layer) for layer in layers)
        )

        def show() -> None:
            bar.update(task, completed=done.seen)

        log = open_log(settings)
        history = open_history(settings)
        tombstones = TombstonesTopic(
            log.reader, log.appender, settings.topic("tombstones"), history.kept_out
        )
        into = ImportLog(
            folder,
            manifest,
            history,
            log.appender,
            settings.topic,
            show,
            publish=tombstones.publish,
            gate=GatePolicy(settings.gate, settings.gate_max_chars),
        )
        into.tombstones()
        if "events" in layers:
            into.events(done.events)
        if "atoms" in layers:
            into.atoms(done.atoms)
        if "profiles" in layers:
            _append_profiles(settings, folder, manifest, into, done.profiles)
            show()


def _append_profiles(
    settings: Settings, folder: Path, manifest: Manifest, into: ImportLog, done: ProfilesDone
) -> None:
    from flows.layer_parts import open_persona_folder, open_scene_folder
    from flows.opening import open_log
    from flows.upkeep.import_profiles import ImportProfiles
    from flows.upkeep.importing import profiles_in

    log = open_log(settings)
    with open_scene_folder(settings) as scenes, open_persona_folder(settings) as personas:
        profiles = ImportProfiles(
            profile_history(settings).current(),
            {"scene": scenes, "persona": personas},
            log.appender,
            settings.topic("profiles"),
            gone=into.gone,
            kept_out=into.kept_out,
        )
        for entry in manifest.scopes:
            profiles.scope(entry.scope, list(profiles_in(folder, entry)), done)

"""``sediment forget`` and ``sediment reject``: take memory out for good."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ValidationError

from connectors.settings import Settings
from flows.cli.common import (
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
    scope_label,
)
from stores.errors import UserError
from stores.problems import problems_of
from stores.records import ControlRequest, Outcome

if TYPE_CHECKING:
    from flows.forget.preview import Preview
    from flows.opening import Log
    from stores.records import L0Event, Profile
    from stores.requests import Owner

__all__ = ["forget", "reject"]

_LOOK_S = 0.5
_REASON = "Kept for ever with the tombstone: no personal data in it."

Reason = Annotated[str, typer.Option("--reason", help=_REASON)]
AgentOfAll = Annotated[
    str, typer.Option("--agent", help="Agent id; without one, all of the user's.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would go, also when --yes is given.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until a flow has carried it out; none may be running.")
]


def forget(
    tenant: Tenant = "",
    agent: AgentOfAll = "",
    user: User = "",
    team: Team = "",
    session: Annotated[str, typer.Option("--session", help="Forget this session.")] = "",
    event: Annotated[
        list[str] | None, typer.Option("--event", help="Forget this event; may be repeated.")
    ] = None,
    atom: Annotated[
        list[str] | None,
        typer.Option(
            "--atom", help="Forget this memory and the events it stands on; may be repeated."
        ),
    ] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Forget a user, a session, events or memories, for good. Without --yes only show what.

    Appends a request to the log; the flow carries it out: messages leave the index, memories
    that stand on them alone the store, recorded answers about them the journal. It stays that
    way when stores are wiped, history is replayed or an older export imported. What the log
    itself holds stays until its retention takes it. This cannot be undone.

    With --user alone, everything of that user is forgotten, up to now; without --agent in every
    scope of the tenant that the log knows.

    Example: sediment forget --tenant acme --user ana --reason "asked for it" --yes --wait
    """
    events, atoms = tuple(event or ()), tuple(atom or ())
    targets = [name for name, given in _targets(session, events, atoms) if given]
    if len(targets) > 1:
        message = f"--{' and --'.join(targets)}: forget one kind of thing at a time"
        raise UserError(message)
    target = targets[0] if targets else "user"
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    _need(tenant=tenant, user=user)
    request = _request(
        {"target": target, "event_ids": events, "atom_ids": atoms, "reason": reason or None}
    )
    asking = _Asking(settings, json=json, wait=wait, do=yes and not dry_run)
    owners = asking.owners(tenant, agent, user, team, anywhere=target == "user")
    asking.ask("forget", owners, request, session)


def reject(
    atom_id: Annotated[str, typer.Argument(metavar="ATOM", help="Id of the memory.")],
    tenant: Tenant = "",
    agent: AgentOfAll = "",
    user: User = "",
    team: Team = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = False,
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Mark the value of a memory as wrong: it is told no more, and never extracted again.

    Texts that differ in case, white space, invisible or look-alike characters are the same
    value; a paraphrase is another one. What was said stays. Without --yes only show what.

    Example: sediment reject 3f0c... --tenant acme --agent helper --user ana --yes
    """
    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    _need(tenant=tenant, user=user)
    request = _request({"target": "atom", "atom_ids": (atom_id,), "reason": reason or None})
    asking = _Asking(settings, json=json, wait=wait, do=yes and not dry_run)
    asking.ask("reject", asking.owners(tenant, agent, user, team, anywhere=False), request)


def _targets(
    session: str, events: tuple[str, ...], atoms: tuple[str, ...]
) -> list[tuple[str, object]]:
    return [("session", session), ("event", events), ("atom", atoms)]


def _need(**given: str) -> None:
    missing = [f"--{name}" for name, value in given.items() if not value]
    if missing:
        message = f"{' and '.join(missing)}: say whose memory it is"
        raise UserError(message)


def _request(fields: dict[str, object]) -> ControlRequest:
    try:
        return ControlRequest.model_validate(fields)
    except ValidationError as error:
        problem = problems_of(error)[0]
        where = problem.field.partition(".")[0].removesuffix("_ids") or "request"
        message = f"--{where}: {problem.message}"
        raise UserError(message) from None


class _Asking:
    """One run of a command: looks, and asks when it shall."""

    def __init__(self, settings: Settings, *, json: bool, wait: bool, do: bool) -> None:
        from flows.opening import open_log
        from flows.runner import SystemClock

        self._settings = settings
        self._json = json
        self._wait = wait
        self._do = do
        self._log: Log = open_log(settings)
        self._now = SystemClock().now()

    def owners(
        self, tenant: str, agent: str, user: str, team: str, *, anywhere: bool
    ) -> list[Owner]:
        """Give the one scope that the ids name; where some are missing, all that fit."""
        from flows.cli.rebuild import open_history
        from flows.forget.asking import owners_of
        from flows.upkeep.history import Tally
        from stores.requests import Owner

        given = {"tenant": tenant, "team": team, "agent": agent, "user": user}
        if agent and all(given[name] for name in self._settings.scope_fields):
            scope = self._settings.scope_of(**given)
            return [Owner(scope, tenant, agent, user, team)]
        if not anywhere:
            missing = [
                f"--{name}"
                for name in dict.fromkeys((*self._settings.scope_fields, "agent"))
                if not given[name]
            ]
            message = f"{' and '.join(missing)}: say whose memory it is"
            raise UserError(message)
        with progress_bar() as bar:
            task = bar.add_task("events looked at", total=None)
            history = open_history(
                self._settings, lambda: bar.update(task, completed=history.records_read)
            )
            bar.update(task, total=history.event_records())
            found = owners_of(
                history.events(Tally()), tenant=tenant, user=user, agent=agent, team=team
            )
        if not found:
            message = f"--user: the log holds nothing of user {user} of tenant {tenant}"
            raise UserError(message)
        return found

    def ask(
        self,
        kind: Literal["forget", "reject"],
        owners: Sequence[Owner],
        request: ControlRequest,
        session: str = "",
    ) -> None:
        """Show what would go; ask for it, and wait, when that is wanted."""
        from stores.requests import request_event, request_record

        events = [request_event(kind, one, request, self._now, session) for one in owners]
        seen = self._preview(owners, events)
        topic, outcomes = self._settings.topic("l0.events"), self._settings.topic("outcomes")
        done: dict[str, Outcome] = {}
        if self._do:
            before = self._log.reader.end_offsets(outcomes)
            self._log.appender.append(
                [
                    request_record(event, one.scope, topic)
                    for event, one in zip(events, owners, strict=True)
                ]
            )
            if self._wait:
                done = self._waited({event.event_id for event in events}, outcomes, before)
        self._report(kind, owners, events, seen, done)
        if any(one.result != "applied" for one in done.values()):
            raise typer.Exit(1)

    def _preview(self, owners: Sequence[Owner], events: Sequence[L0Event]) -> Preview:
        from flows.cli.rebuild import open_history
        from flows.decode import decode
        from flows.forget.preview import preview
        from stores.errors import InvalidEvent
        from stores.records import LogRecord, Position
        from stores.requests import request_record
        from stores.tombstones import tombstone_of

        topic = self._settings.topic("l0.events")
        tombstones = []
        for event, owner in zip(events, owners, strict=True):
            record = request_record(event, owner.scope, topic)
            nowhere = LogRecord(Position("", 0, -1), 0, record.key, record.value)
            decoded = decode(nowhere, self._settings.scope_fields)
            if isinstance(decoded, InvalidEvent):
                raise UserError(decoded.message)
            tombstones.append(tombstone_of(decoded))
        with progress_bar() as bar:
            task = bar.add_task("records read", total=None)
            history = open_history(
                self._settings, lambda: bar.update(task, completed=history.records_read)
            )
            bar.update(task, total=history.event_records() + 2 * history.atom_records())
            return preview(history, _profiles(self._settings, self._log), tombstones)

    def _waited(self, wanted: set[str], topic: str, read_to: dict[int, int]) -> dict[str, Outcome]:
        from connectors.log import EndAt, Place, StartAt

        def places(offsets: dict[int, int]) -> dict[int, Place]:
            return {part: Place("offset", at) for part, at in offsets.items()}

        err.print("waiting for a flow to carry it out; Ctrl-C ends the waiting, not the request")
        done: dict[str, Outcome] = {}
        while wanted - done.keys():
            time.sleep(_LOOK_S)
            ends = self._log.reader.end_offsets(topic)
            start, end = StartAt(partitions=places(read_to)), EndAt(partitions=places(ends))
            for record in self._log.reader.read(topic, start, end):
                outcome = Outcome.model_validate_json(record.value or b"")
                if outcome.stage == "reconcile" and outcome.kind == "record":
                    done |= {one: outcome for one in outcome.event_ids if one in wanted}
            read_to = ends
        return done

    def _report(
        self,
        kind: str,
        owners: Sequence[Owner],
        events: Sequence[L0Event],
        seen: Preview,
        done: dict[str, Outcome],
    ) -> None:
        if self._json:
            requests = [
                {
                    "event_id": event.event_id,
                    "scope": one.scope,
                    "result": done[event.event_id].result if event.event_id in done else None,
                    "reason": done[event.event_id].reason if event.event_id in done else None,
                }
                for event, one in zip(events, owners, strict=True)
            ]
            print_json({"asked": self._do, "requests": requests, **asdict(seen)})
            return
        for one in owners:
            out.print(f"{kind} in {scope_label(one.scope)}", markup=False, soft_wrap=True)
        out.print(
            f"messages: {seen.events}, memories removed: {seen.atoms_removed}, memories changed: "
            f"{seen.atoms_changed}, scenes and personas to be written anew: {seen.profiles}",
            soft_wrap=True,
        )
        for outcome in done.values():
            why = f" ({outcome.reason})" if outcome.reason else ""
            out.print(f"{outcome.result}{why}", markup=False)
        if not self._do:
            out.print("nothing is done without --yes")
        elif not done:
            out.print("asked for; a flow carries it out in its turn")


def _profiles(settings: Settings, log: Log) -> list[Profile]:
    """Read each scene and persona as it stands."""
    from connectors.log import EndAt, StartAt
    from stores.records import Profile

    found: dict[bytes, Profile] = {}
    for record in log.reader.read(settings.topic("profiles"), StartAt.beginning(), EndAt.latest()):
        if record.key is None:
            continue
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = Profile.model_validate_json(record.value)
    return list(found.values())

"""``sediment edit``: a person puts a memory right."""

from __future__ import annotations

from typing import Annotated

import typer

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
    scope_of,
)
from stores.errors import UserError
from stores.problems import problems_of

__all__ = ["edit"]


def edit(
    atom_id: Annotated[str, typer.Argument(metavar="ATOM", help="Id of the memory.")],
    text: Annotated[str, typer.Argument(help="What it says from now on.")],
    tenant: Tenant,
    agent: Agent = "",
    user: User = "",
    team: Team = "",
    data_dir: DataDir = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Put a memory right: the new text takes its place, and the old one stays in its history.

    The flow does it in its turn, behind what was said before. An edit of a memory that the scope
    does not have changes nothing; its outcome says so.

    Example: sediment edit 3f0c... "User lives in Porto." --tenant acme --agent helper --user ana
    """
    from pydantic import ValidationError

    from flows.opening import open_log
    from flows.runner import SystemClock
    from stores.records import ControlRequest
    from stores.requests import Owner, request_event, request_record

    settings = memory_settings_from(data_dir=data_dir, brokers=brokers)
    scope = scope_of(settings, tenant, agent, user, team)
    if not text.strip():
        message = "TEXT: say what the memory says from now on; to take it out, use sediment forget"
        raise UserError(message)
    owner = Owner(scope, tenant, agent, user, team)
    try:
        request = ControlRequest(target="atom", atom_ids=(atom_id,))
        event = request_event("edit", owner, request, SystemClock().now(), text=text)
    except ValidationError as error:
        raise UserError(str(problems_of(error)[0])) from None
    log = open_log(settings)
    log.appender.append([request_record(event, scope, settings.topic("l0.events"))])
    if json:
        print_json({"event_id": event.event_id, "scope": scope})
        return
    out.print(f"asked for as event {event.event_id}; a flow carries it out in its turn")

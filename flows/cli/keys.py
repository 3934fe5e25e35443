"""``sediment keys``: who may call the query service."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from flows.cli.common import (
    Json,
    Tenant,
    err,
    local_time,
    out,
    print_json,
    settings_from,
)
from flows.runner import SystemClock
from stores.errors import SettingsError, UserError
from stores.problems import problems_of

if TYPE_CHECKING:
    from connectors.query.auth import KeyEntry

__all__ = ["keys"]

keys = typer.Typer(no_args_is_help=True, help="API keys of the query service.")

KeyId = Annotated[str, typer.Argument(metavar="ID", help="Name of the key, for logs.")]


@keys.command("create")
def create(
    key_id: KeyId,
    tenant: Tenant,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", help="Only this agent; may be repeated.")
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option("--user", help="Only this user; may be repeated.")
    ] = None,
    team: Annotated[
        list[str] | None, typer.Option("--team", help="Only this team; may be repeated.")
    ] = None,
    right: Annotated[
        list[str] | None,
        typer.Option(
            "--right",
            help="`read`, `write` or `admin`; may be repeated [default: read and write]",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make an API key, print it once, and add its hash to SEDIMENT_API_KEYS_FILE.

    The key is bound to the tenant, and to the agents, users and teams that are given. `read`
    recalls; `write` adds events, rejects memories, and forgets single ones; `admin` forgets
    whole sessions and users. A service that runs takes the key at once.

    Example: SEDIMENT_API_KEYS_FILE=keys.json sediment keys create app --tenant acme --right read
    """
    from connectors.query.auth import DEFAULT_RIGHTS, RIGHTS, new_key
    from connectors.query.keys_file import changing

    wanted = [one for one in RIGHTS if one in (right or DEFAULT_RIGHTS)]
    unknown = sorted(set(right or ()) - set(RIGHTS))
    if unknown:
        message = f"--right: `{unknown[0]}` is none of {', '.join(RIGHTS)}"
        raise UserError(message)
    path = _keys_file()
    try:
        secret, entry = new_key(
            key_id,
            tenant,
            agent=agent or (),
            user=user or (),
            team=team or (),
            rights=wanted,
            created_at=SystemClock().now().replace(microsecond=0),
        )
    except ValidationError as error:
        problem = problems_of(error)[0]
        name = "ID" if problem.field == "id" else f"--{problem.field.partition('.')[0]}"
        message = f"{name}: {problem.message}"
        raise UserError(message) from None
    with changing(path) as entries:
        if any(known.id == key_id for known in entries):
            message = f"ID: {path} has a key {key_id} already; choose another name"
            raise UserError(message)
        entries.append(entry)
    if json:
        print_json({"key": secret, **_shown(entry)})
    else:
        out.print(secret, markup=False, soft_wrap=True)
    err.print(f"this is the only time the key is shown; its hash is in {path}", soft_wrap=True)


@keys.command("list")
def list_keys(json: Json = False) -> None:
    """List the keys: what each is bound to and what it may do. Never a key itself.

    Example: SEDIMENT_API_KEYS_FILE=keys.json sediment keys list
    """
    from connectors.query.keys_file import read_entries

    entries = read_entries(_keys_file())
    if json:
        print_json([_shown(entry) for entry in entries])
        return
    table = Table(expand=True)
    for column in ("id", "tenant", "agents", "users", "teams", "rights", "created"):
        table.add_column(column)
    for entry in entries:
        table.add_row(
            *(
                Text(one)
                for one in (
                    entry.id,
                    entry.tenant,
                    *(", ".join(_names(one)) for one in (entry.agent, entry.user, entry.team)),
                    ", ".join(entry.rights),
                    _since(entry.created_at),
                )
            )
        )
    out.print(table)


@keys.command("revoke")
def revoke(key_id: KeyId, json: Json = False) -> None:
    """Take a key back. A service that runs refuses it from the next request on.

    Example: SEDIMENT_API_KEYS_FILE=keys.json sediment keys revoke app
    """
    from connectors.query.keys_file import changing

    path = _keys_file()
    with changing(path) as entries:
        gone = [entry for entry in entries if entry.id == key_id]
        if not gone:
            message = f"ID: {path} has no key {key_id}; `sediment keys list` shows which it has"
            raise UserError(message)
        entries.remove(gone[0])
    if json:
        print_json({"revoked": _shown(gone[0])})
    else:
        out.print(f"revoked {key_id}", markup=False)


def _keys_file() -> Path:
    path = settings_from().api_keys_file
    if path is None:
        message = "SEDIMENT_API_KEYS_FILE: not set; name the file that keeps the hashes of keys"
        raise SettingsError(message)
    return path


def _shown(entry: KeyEntry) -> dict[str, object]:
    """Show a key without its hash."""
    return {
        "id": entry.id,
        "tenant": entry.tenant,
        "agents": _names(entry.agent),
        "users": _names(entry.user),
        "teams": _names(entry.team),
        "rights": list(entry.rights),
        "created_at": entry.created_at.isoformat() if entry.created_at else None,
    }


def _names(bound: str | tuple[str, ...] | None) -> list[str]:
    if bound is None:
        return ["*"]
    return [bound] if isinstance(bound, str) else list(bound)


def _since(moment: datetime | None) -> str:
    return local_time(moment) if moment else ""

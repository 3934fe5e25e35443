"""Asking to forget or reject: the event that says so, for one scope or for all of a user."""

from __future__ import annotations

from collections.abc import Iterable

from stores.records import SourcedEvent
from stores.requests import Owner

__all__ = ["owners_of"]


def owners_of(
    events: Iterable[SourcedEvent], *, tenant: str, user: str, agent: str = "", team: str = ""
) -> list[Owner]:
    """Find the scopes in which a user of a tenant said anything, in the order of the log."""
    found: dict[str, Owner] = {}
    for one in events:
        event = one.event
        if (
            one.scope not in found
            and (event.tenant_id, event.user_id) == (tenant, user)
            and agent in ("", event.agent_id)
            and team in ("", event.team_id)
        ):
            found[one.scope] = Owner(one.scope, tenant, event.agent_id, user, event.team_id or "")
    return list(found.values())

"""What is left of what was forgotten or rejected: ids and hashes, never text."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from stores.records.base import Contract
from stores.records.event import ForgetTarget

__all__ = ["Tombstone"]


class Tombstone(Contract):
    """Keeps something out for good, whichever way it comes back.

    Lives in a compacted topic without an end to its retention, under ``tombstone_id``; a large
    one is cut into several. Read before any event is, by everything that writes memory.
    """

    v: Literal[1] = 1
    tombstone_id: str
    kind: Literal["forget", "reject"]
    target: ForgetTarget
    scope: str
    user_id: str | None = Field(default=None, description="Of target `user`.")
    session_id: str | None = Field(default=None, description="Of target `session`.")
    event_keys: tuple[str, ...] = Field(
        default=(), description="Hashes of scope and event id, as of the search index."
    )
    atom_ids: tuple[str, ...] = ()
    text_keys: tuple[str, ...] = Field(
        default=(), description="Hashes of scope and normalised text of a rejected atom."
    )
    reason: str | None = None
    request_id: str = Field(description="Event id of the request.")
    requested_at: AwareDatetime = Field(description="Event time of the request.")
    topic: str
    partition: int
    offset: int = Field(description="Of the request; earlier records of its partition count too.")

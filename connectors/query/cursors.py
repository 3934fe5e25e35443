"""Cursors of pages: a place among a scope's records, as a word that nobody has to read. Pure."""

from __future__ import annotations

from stores.paging import Place

__all__ = ["CURSOR", "read_cursor", "write_cursor"]

CURSOR = r"^-?[0-9]{1,15}-[0-9a-f]{1,64}$"
"""What a cursor looks like: a time and a key."""


def write_cursor(place: Place | None) -> str | None:
    """Write a place; ``None`` behind the last record.

    >>> write_cursor(Place(1767225600000, "00ff"))
    '1767225600000-00ff'
    """
    return None if place is None else f"{place.at_ms}-{place.key}"


def read_cursor(cursor: str | None) -> Place | None:
    """Read a place from what has the form of :data:`CURSOR`.

    >>> read_cursor("1767225600000-00ff")
    Place(at_ms=1767225600000, key='00ff')
    """
    if cursor is None:
        return None
    at_ms, _, key = cursor.rpartition("-")
    return Place(int(at_ms), key)

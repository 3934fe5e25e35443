"""Pages of a scope's records, by event time: which records, and where the next page begins. Pure.

A page is cut from the times and keys of all records, which are small; only the records of the
page itself are then read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Page", "PageRequest", "Place", "cut_page"]

T = TypeVar("T")


class Place(NamedTuple):
    """Where a record stands among those of its scope: by time, then by key.

    :arg at_ms: event time, milliseconds since the epoch.
    :arg key: primary key of its row.
    """

    at_ms: int
    key: str


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page.

    :arg limit: records at most.
    :arg after: the last place of the page before; ``None`` from the beginning.
    :arg skip: records that are passed over behind ``after``.
    :arg newest_first: backwards in time.
    """

    limit: int
    after: Place | None = None
    skip: int = 0
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Records in the order asked for.

    :arg next: place to go on after; ``None`` behind the last record.
    :arg total: records on all pages, as they are now.
    """

    records: Sequence[T]
    next: Place | None
    total: int


def cut_page(places: Iterable[Place], asked: PageRequest) -> Page[str]:
    """Give the keys of a page. What is written or deleted meanwhile moves no other record.

    >>> one, two, three = (Place(at, f"k{at}") for at in (1, 2, 3))
    >>> first = cut_page([three, one, two], PageRequest(limit=2))
    >>> first.records, first.total
    (['k1', 'k2'], 3)
    >>> cut_page([three, one, two], PageRequest(limit=2, after=first.next))
    Page(records=['k3'], next=None, total=3)
    """
    ordered = sorted(places, reverse=asked.newest_first)
    total = len(ordered)
    if asked.after is not None:
        after = asked.after
        ordered = [one for one in ordered if (one < after if asked.newest_first else one > after)]
    left = ordered[asked.skip :]
    page = left[: asked.limit]
    more = len(left) > len(page)
    return Page([one.key for one in page], page[-1] if more else None, total)

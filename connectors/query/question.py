"""One question to a memory, as it is asked of every part. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from connectors.query.fence import clean_text
from connectors.query.models import Layer, SearchLayer
from stores.protocols import Filter
from stores.records import AtomType

__all__ = ["LAYERS", "MAX_QUERY_CHARS", "RecallQuery", "clean_query"]

MAX_QUERY_CHARS = 2048
LAYERS: tuple[Layer, ...] = ("persona", "scenes", "atoms", "events")


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """One question to one scope.

    :arg scope: the scope key, already checked against the caller's credential.
    :arg limit: items at most.
    :arg budget_tokens: tokens of both contexts together at most.
    :arg types: only atoms of these types; other layers are not touched by it.
    :arg session_id: only what was said in this session, or what came from it.
    :arg since: event time, inclusive.
    :arg until: event time, exclusive.
    :arg as_of: answer as things stood at this time; persona and scenes, which are written
        anew all the time, are then left out.
    :arg only_active: leave out atoms that hold no longer.
    :arg explain: give each item the factors of its score.
    """

    scope: str
    text: str
    limit: int = 10
    budget_tokens: int = 1000
    layers: tuple[Layer, ...] = LAYERS
    types: tuple[AtomType, ...] = ()
    session_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    as_of: datetime | None = None
    only_active: bool = True
    explain: bool = False

    def where(self, layer: SearchLayer) -> Filter:
        """Give the filter of one layer's searches."""
        if layer == "scenes":
            return Filter(types=("scene",), only_active=False)
        until = self.until
        if self.as_of is not None and layer == "events":
            until = min(filter(None, (until, self.as_of + timedelta(microseconds=1))))
        return Filter(
            session_id=self.session_id,
            since=self.since,
            until=until,
            only_active=self.only_active and self.as_of is None,
            types=self.types if layer == "atoms" else (),
            as_of=self.as_of if layer == "atoms" else None,
        )

    def searched(self) -> tuple[SearchLayer, ...]:
        """Name the layers to search, each once.

        A scene is about no session and no time, so a question that narrows these has none.
        """
        narrow = self.session_id or self.since or self.until or self.as_of
        unique = dict.fromkeys(self.layers)
        return tuple(
            layer for layer in unique if layer != "persona" and not (layer == "scenes" and narrow)
        )


def clean_query(text: str) -> tuple[str, tuple[str, ...]]:
    r"""Give the question as it is searched for, and notes on what was changed.

    >>> clean_query("where\x00 do I live?\n")
    ('where do I live?', ())
    """
    cleaned = " ".join(clean_text(text).split())
    if len(cleaned) <= MAX_QUERY_CHARS:
        return cleaned, ()
    note = f"the query has {len(cleaned)} characters; only the first {MAX_QUERY_CHARS} were used"
    return cleaned[:MAX_QUERY_CHARS], (note,)

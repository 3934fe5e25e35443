"""What the parts of one recall answered, and what of it may be shown."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from prometheus_client import Histogram

from connectors import tracing
from connectors.metrics import RECALL_SECONDS
from connectors.query.fence import clean_text
from connectors.query.models import Degraded, RecallItem, SearchLayer
from connectors.query.question import RecallQuery
from connectors.query.ranking import Ranked, Record, rank_layer
from connectors.query.relevance import Relevance
from stores.errors import RequestTimedOut, SedimentError
from stores.protocols import Hit, SearchArm, SeenProfile, Vectors
from stores.records import Atom, IndexedEvent, Profile
from stores.speakers import people_of

__all__ = ["ARMS", "Parts", "item_of", "nearest_scenes"]

ARMS: tuple[SearchArm, ...] = ("dense", "keyword")

_log = logging.getLogger(__name__)
_LETTER = re.compile(r"\w")

T = TypeVar("T")


class Parts:
    """What the parts of one recall answered, how long each took, and which did not."""

    def __init__(self, monotonic: Callable[[], float], query: RecallQuery, now: datetime) -> None:
        self.hits: dict[tuple[SearchLayer, SearchArm], list[Hit]] = {}
        self.ranked: dict[SearchLayer, list[Ranked]] = {}
        self.persona = ""
        self.navigation: dict[str, str] = {}
        self.answered = False
        self.degraded: list[Degraded] = []
        self.timings_ms: dict[str, float] = {}
        self._monotonic = monotonic
        self._query = query
        self._now = now

    async def answer_of(self, part: str, answer: Awaitable[T]) -> T | None:
        """Wait for one part; ``None``, and a line in ``degraded``, when it fails or is stopped."""
        started = self._monotonic()
        try:
            return await answer
        except asyncio.CancelledError:
            self._lost(part, RequestTimedOut.reason)
            raise
        except SedimentError as error:
            self._lost(part, error.reason)
        except Exception as error:
            # A fault of ours or of a library: it costs its share like any other. Its text may
            # hold what was asked, so only its class is logged.
            _log.error("recall: %s failed with %s", part, type(error).__name__)
            self._lost(part, "error")
        finally:
            self.timed(part, started)
        return None

    def keep(self, layer: SearchLayer, arm: SearchArm, hits: list[Hit]) -> None:
        """Take the hits of one arm without what must not be shown.

        The store filters already; a stale read or a fault in it must not reach a prompt. And a
        record without visible text, such as a tool call, has nothing to show.
        """
        own = [hit for hit in hits if hit.record.scope == self._query.scope]
        if len(own) < len(hits):
            _log.error("recall: %s.%s gave records of another scope; they are dropped", layer, arm)
            self._lost(f"{layer}.{arm}", "foreign_scope")
        self.hits[layer, arm] = [
            hit for hit in own if _says_something(hit.record.text) and self._holds(hit.record)
        ]

    def take_profiles(self, seen: Sequence[SeenProfile]) -> None:
        """Take the persona's text and a line for each scene, the most recalled first.

        That is an answer by itself where nothing else was asked for.
        """
        self.answered |= set(self._query.searched()) <= {"scenes"}
        profiles = [one.profile for one in seen if one.profile.scope == self._query.scope]
        self.persona = "".join(one.text for one in profiles if one.kind == "persona")
        scenes = [one for one in profiles if one.kind == "scene"]
        scenes.sort(key=lambda one: (-one.heat, one.path))
        self.navigation = {
            one.profile_id: f"{one.path}: {one.summary or one.title}" for one in scenes
        }

    def scenes_of(self, ids: Iterable[str]) -> list[str]:
        """Give the file names of the scenes among what was found."""
        paths = {
            one.id: one.record.path
            for one in self.ranked.get("scenes", ())
            if isinstance(one.record, Profile)
        }
        return [paths[one] for one in ids if one in paths]

    def shown(self, events: Sequence[IndexedEvent]) -> list[IndexedEvent]:
        """Leave out what must not be shown, as :meth:`keep` does."""
        scope = self._query.scope
        return [one for one in events if one.scope == scope and _says_something(one.text)]

    def speakers(self) -> list[str]:
        """Give the names of who said what was found."""
        found = (hit.record for hits in self.hits.values() for hit in hits)
        return people_of(one.said_by if isinstance(one, Atom) else one.name for one in found
                         if isinstance(one, (Atom, IndexedEvent)))  # fmt: skip

    def rank(self, layer: SearchLayer, relevant: Relevance) -> list[Ranked]:
        """Fuse what the arms of a layer gave."""
        arms = {arm: self.hits.get((layer, arm), []) for arm in ARMS}
        self.ranked[layer] = rank_layer(layer, arms, relevant)
        return self.ranked[layer]

    def timed(self, step: str, started: float) -> None:
        """Note that ``step`` took from ``started`` until now."""
        seconds = self._monotonic() - started
        _seconds_of(step).observe(seconds)
        tracing.finished(f"recall.{step}", seconds)
        self.timings_ms[step] = round(seconds * 1000, 3)

    def _holds(self, record: Record) -> bool:
        if not isinstance(record, Atom):
            return True
        if self._query.as_of is not None:
            return record.status != "rejected"
        if not self._query.only_active:
            return True
        ended = record.valid_until is not None and record.valid_until <= self._now
        return record.status == "active" and not ended

    def _lost(self, part: str, reason: str) -> None:
        self.degraded.append(Degraded(part=part, reason=reason))


def _says_something(text: str) -> bool:
    """Say whether there is anything to see; mostly the first letter says so."""
    return _LETTER.search(text) is not None or bool(clean_text(text).strip())


@cache
def _seconds_of(step: str) -> Histogram:
    """Give the metric of a step: looking it up by its name costs more than to count."""
    return RECALL_SECONDS.labels(step)


def nearest_scenes(seen: Sequence[SeenProfile], vector: Vectors, limit: int) -> list[Hit]:
    """Do what a dense search for scenes does, over all profiles of a scope; no index to miss one.

    :arg vector: of the question, shape (dimension,).
    """
    scenes = [one for one in seen if one.profile.kind == "scene"]
    hits = [Hit(one.profile.profile_id, float(one.vector @ vector), one.profile) for one in scenes]
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))[:limit]


def item_of(ranked: Ranked, explain: bool) -> RecallItem:
    """Show a record."""
    record = ranked.record
    shown: dict[str, Any] = {}
    if isinstance(record, Atom):
        shown = {
            "layer": "atom",
            "type": record.type,
            "session_id": record.session_id,
            "source_event_ids": record.source_event_ids,
            "status": record.status,
            "valid_from": record.valid_from,
            "valid_until": record.valid_until,
        }
    elif isinstance(record, IndexedEvent):
        shown = {
            "layer": "event",
            "type": record.role,
            "speaker": clean_text(record.name).strip() or None,
            "session_id": record.session_id,
            "source_event_ids": (record.event_id,),
        }
    else:
        shown = {"layer": "scene", "type": "scene", "session_id": "", "source_event_ids": ()}
    return RecallItem(
        id=ranked.id,
        text=_told(record),
        score=ranked.score,
        ranks=dict(ranked.ranks),
        occurred_at=record.updated_at if isinstance(record, Profile) else record.occurred_at,
        explain=dict(ranked.factors) if explain else None,
        **shown,
    )


def _told(record: Record) -> str:
    text = clean_text(record.text).strip()
    if isinstance(record, Profile):
        title = clean_text(record.title).strip()
        # A scene is long: its summary says what it is about, its name where the rest is.
        return f"{title} ({record.path}): {clean_text(record.summary).strip() or text}"
    return text

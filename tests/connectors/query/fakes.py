"""Stand-ins for the store and the embedder, and short ways to make records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import TypeVar

import numpy as np

from connectors.query.models import RecallItem
from stores.ids import content_id
from stores.paging import Page, PageRequest, Place, cut_page
from stores.protocols import Filter, Hit, SeenProfile, Span, Vectors
from stores.records import (
    Atom,
    AtomStatus,
    IndexedEvent,
    Position,
    Profile,
    ProfileKind,
    profile_id,
)

SCOPE = "acme/helper/ana"
START = datetime(2024, 5, 1, 9, 0, tzinfo=timezone.utc)


def atom(
    name: str,
    text: str = "",
    *,
    sources: tuple[str, ...] = (),
    scope: str = SCOPE,
    day: int = 0,
    status: AtomStatus = "active",
) -> Atom:
    when = START + timedelta(days=day)
    return Atom(
        atom_id=name,
        scope=scope,
        session_id="s1",
        type="persona",
        text=text or f"fact {name}",
        priority=50,
        source_event_ids=sources,
        window_id="w",
        extractor="test/1",
        occurred_at=when,
        valid_from=when,
        status=status,
    )


def event(name: str, text: str = "", *, scope: str = SCOPE, day: int = 0) -> IndexedEvent:
    return IndexedEvent(
        scope=scope,
        event_id=name,
        session_id="s1",
        role="user",
        text=text or f"said {name}",
        occurred_at=START + timedelta(days=day),
        position=Position("sediment.l0.events", 0, 0),
    )


def profile(kind: ProfileKind, path: str, text: str, summary: str = "", heat: int = 0) -> Profile:
    return Profile(
        profile_id=profile_id(SCOPE, kind, path),
        scope=SCOPE,
        kind=kind,
        path=path,
        title=path.removesuffix(".md"),
        summary=summary,
        text=text,
        heat=heat,
        version=1,
        content_hash="h",
        created_at=START,
        updated_at=START,
        generator="test/1",
    )


def hits(*records: Atom | IndexedEvent | Profile) -> list[Hit]:
    return [
        Hit(
            id=_id_of(record),
            score=1.0 / place,
            record=record,
        )
        for place, record in enumerate(records, start=1)
    ]


def _id_of(record: Atom | IndexedEvent | Profile) -> str:
    if isinstance(record, Atom):
        return record.atom_id
    return record.event_id if isinstance(record, IndexedEvent) else record.profile_id


def item(name: str, text: str, *, kind: str = "persona") -> RecallItem:
    return RecallItem(
        id=name,
        layer="atom",
        type=kind,
        text=text,
        score=1.0,
        ranks={"dense": 1},
        occurred_at=START,
        session_id="s1",
        source_event_ids=(),
    )


class FakeSearcher:
    """Gives what each (layer, arm) was set to: hits, an error to raise, or a gate to hang on."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[Hit] | Exception | threading.Event] = {}
        self.asked: list[tuple[str, str, str, int, Filter]] = []
        self.texts: list[str] = []
        self.profiles: list[Profile] = []
        self.around: list[IndexedEvent] = []
        self.spans: list[Span] = []

    def search_dense(
        self, layer: str, scope: str, vector: Vectors, limit: int, where: Filter
    ) -> list[Hit]:
        return self._answer(layer, "dense", scope, limit, where)

    def search_keyword(
        self, layer: str, scope: str, text: str, limit: int, where: Filter
    ) -> list[Hit]:
        self.texts.append(text)
        return self._answer(layer, "keyword", scope, limit, where)

    def _answer(self, layer: str, arm: str, scope: str, limit: int, where: Filter) -> list[Hit]:
        self.asked.append((layer, arm, scope, limit, where))
        answer = self.answers.get((layer, arm), [])
        if isinstance(answer, threading.Event):
            answer.wait(timeout=60)
            return []
        if isinstance(answer, Exception):
            raise answer
        return answer[:limit]

    def profiles_seen(self, scope: str) -> list[SeenProfile]:
        """Give them with vectors the nearer to every question, the earlier they stand."""
        vector = np.full(4, 0.5, dtype=np.float32)
        return [
            SeenProfile(one, vector * np.float32(1 - place / 100))
            for place, one in enumerate(self.profiles)
            if one.scope == scope
        ]

    def events_within(self, scope: str, spans: Sequence[Span], where: Filter) -> list[IndexedEvent]:
        self.spans.extend(spans)
        return self.around


class FakeClock:
    """A month after the records were said."""

    def now(self) -> datetime:
        return START + timedelta(days=30)


class FakeEmbedder:
    """Gives one fixed vector, or raises."""

    name = "fake"
    dimension = 4

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return np.tile(await self.embed_query(""), (len(texts), 1))

    async def embed_query(self, text: str) -> Vectors:
        if self.error is not None:
            raise self.error
        return np.array([1, 0, 0, 0], dtype=np.float32)


class FakeStore:
    """Atoms, events and profiles in memory."""

    def __init__(self) -> None:
        self.atoms: dict[str, Atom] = {}
        self.events: list[IndexedEvent] = []
        self.profiles: list[Profile] = []
        self.asked: list[Filter] = []

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        found = [
            one
            for one in self.atoms.values()
            if one.scope == scope and (one.status == "active" or not only_active)
        ]
        return sorted(found, key=lambda one: (one.occurred_at, one.atom_id))

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        one = self.atoms.get(atom_id)
        return one if one is not None and one.scope == scope else None

    def get_events(self, scope: str, event_ids: Sequence[str]) -> list[IndexedEvent]:
        return [one for one in self.events if one.scope == scope and one.event_id in event_ids]

    def events_of(self, scope: str, session_id: str | None = None) -> Iterator[IndexedEvent]:
        for one in self.events:
            if one.scope == scope and session_id in (None, one.session_id):
                yield one

    def atoms_page(self, scope: str, where: Filter, asked: PageRequest) -> Page[Atom]:
        found = self.atoms_of(scope, only_active=where.only_active)
        return _page([one for one in found if where.session_id in (None, one.session_id)], asked)

    def events_page(self, scope: str, where: Filter, asked: PageRequest) -> Page[IndexedEvent]:
        self.asked.append(where)
        return _page([*self.events_of(scope, where.session_id)], asked)

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        return [one for one in self.profiles if one.scope == scope and kind in (None, one.kind)]

    def get_profile(self, scope: str, kind: ProfileKind, path: str) -> Profile | None:
        found = self.profiles_of(scope, kind)
        return next((one for one in found if one.path == path), None)


R = TypeVar("R", Atom, IndexedEvent)


def _page(records: Sequence[R], asked: PageRequest) -> Page[R]:
    """Cut a page of records, each under a key as a row has one."""
    rows = {
        Place(
            int(one.occurred_at.timestamp() * 1000), content_id("row", one.scope, _id_of(one))
        ): one
        for one in records
    }
    keys = cut_page(rows, asked)
    by_key = {place.key: record for place, record in rows.items()}
    return Page([by_key[key] for key in keys.records], keys.next, keys.total)


def words(text: str) -> int:
    """Count like a tokenizer that a test can foresee."""
    return len(text.split())


CountTokens = Callable[[str], int]

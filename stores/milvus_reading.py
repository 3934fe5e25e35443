"""Reading the collections: strong reads of a scope, and searches of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from stores.errors import Terminal
from stores.ids import event_key
from stores.milvus_base import MilvusBase
from stores.milvus_schema import (
    LAYERS,
    Layer,
    atom_pk,
    filter_expression,
    layer_of,
    profile_pk,
    read_record,
    record_id,
    record_key,
    spans_expression,
)
from stores.paging import Page, PageRequest, Place, cut_page
from stores.protocols import Filter, Hit, SeenProfile, Span, Vectors
from stores.records import Atom, IndexedEvent, Profile, ProfileKind
from stores.terms import query_terms

__all__ = ["MilvusReading"]

_MAX_HITS = 16_384  # what a server gives at most
_PLACES = 10_000  # times and keys read at once: below a megabyte
_MOST_SEEN = 1000  # profiles of a scope; a folder has some fifteen
_MOST_WITHIN = 1000  # events of all spans; a session that says more in minutes is a machine's


class MilvusReading(MilvusBase):
    """Reads and searches. Never another scope's records."""

    # --- atoms ------------------------------------------------------------------------------

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        """Read all atoms of a scope (strong read), by ``occurred_at``, then ``atom_id``."""
        within = filter_expression("atoms", scope, Filter(only_active=only_active))
        with self._calling("atoms_of"):
            rows = [row for page in self._pages("atoms", scope, within) for row in page]
        atoms = [cast(Atom, read_record("atoms", row["record"])) for row in rows]
        return sorted(atoms, key=lambda atom: (atom.occurred_at, atom.atom_id))

    def atoms_page(self, scope: str, where: Filter, asked: PageRequest) -> Page[Atom]:
        """Read one page of the atoms of a scope (strong read), by event time."""
        page = self._page("atoms", scope, where, asked)
        return Page([cast(Atom, record) for record in page.records], page.next, page.total)

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        """Read one atom (strong read), or ``None`` when the scope has no such atom."""
        with self._calling("get_atom"):
            found = self._by_key("atoms", [atom_pk(scope, atom_id)])
        return next((cast(Atom, read_record("atoms", body)) for body in found.values()), None)

    def vectors_of(self, scope: str, atom_ids: Sequence[str]) -> Vectors:
        """Read the vectors of atoms (strong read), of length 1, in the order asked for.

        Raises :class:`~stores.errors.Terminal` naming those that are not there.
        """
        keys = [atom_pk(scope, atom_id) for atom_id in atom_ids]
        with self._calling("vectors_of"):
            found = self._by_key("atoms", keys, field="dense")
        missing = [name for name, key in zip(atom_ids, keys, strict=True) if key not in found]
        if missing:
            message = f"no vectors: the scope has no atoms {', '.join(missing[:5])}"
            raise Terminal(message)
        vectors = np.empty((len(keys), self._dimension), dtype=np.float32)
        for row, key in enumerate(keys):
            vectors[row] = found[key]
        return vectors

    # --- events -----------------------------------------------------------------------------

    def get_events(self, scope: str, event_ids: Sequence[str]) -> list[IndexedEvent]:
        """Read events of a scope by id (strong read), in the order asked for.

        Those that are not indexed are left out.
        """
        keys = [event_key(scope, event_id) for event_id in event_ids]
        with self._calling("get_events"):
            found = self._by_key("events", keys)
        return [
            cast(IndexedEvent, read_record("events", found[key])) for key in keys if key in found
        ]

    def events_of(self, scope: str, session_id: str | None = None) -> Iterator[IndexedEvent]:
        """Read all events of a scope or session, page by page, in no particular order.

        Strong for what was written before the first one is taken. An event written or deleted
        meanwhile may be there or not; all others come exactly once. Nothing is asked, and no
        error is raised, before the first one is taken.
        """
        pages = self._pages(
            "events", scope, filter_expression("events", scope, Filter(session_id=session_id))
        )
        while True:
            with self._calling("events_of"):
                page = next(pages, None)
            if page is None:
                return
            for row in page:
                yield cast(IndexedEvent, read_record("events", row["record"]))

    def events_page(self, scope: str, where: Filter, asked: PageRequest) -> Page[IndexedEvent]:
        """Read one page of the events of a scope or session (strong read), by event time."""
        page = self._page("events", scope, where, asked)
        records = [cast(IndexedEvent, record) for record in page.records]
        return Page(records, page.next, page.total)

    def events_within(self, scope: str, spans: Sequence[Span], where: Filter) -> list[IndexedEvent]:
        """Read events of stretches of sessions, in the order of the log; as fresh as a search.

        One query for all spans: on milvus-lite a query costs about as much as a search.
        """
        if not spans:
            return []
        within = f"{filter_expression('events', scope, where)} and {spans_expression(scope, spans)}"
        with self._calling("events_within"):
            rows = self._query(
                "events", within, limit=_MOST_WITHIN, scope=scope, consistency="Bounded"
            )
        events = [cast(IndexedEvent, read_record("events", row["record"])) for row in rows]
        return sorted(events, key=lambda event: event.position)

    # --- profiles ---------------------------------------------------------------------------

    def profiles_of(self, scope: str, kind: ProfileKind | None = None) -> list[Profile]:
        """Read the profiles of a scope (strong read), by kind and path."""
        where = Filter(types=(kind,) if kind else ())
        within = filter_expression("profiles", scope, where)
        with self._calling("profiles_of"):
            rows = [row for page in self._pages("profiles", scope, within) for row in page]
        profiles = [cast(Profile, read_record("profiles", row["record"])) for row in rows]
        return sorted(profiles, key=lambda profile: (profile.kind, profile.path))

    def profiles_seen(self, scope: str) -> list[SeenProfile]:
        """Read the profiles of a scope in one query, by kind and path; as fresh as a search.

        A strong read waits for all writes (200 ms on a server), and asks three times.
        """
        within = filter_expression("profiles", scope, Filter())
        with self._calling("profiles_seen"):
            rows = self._query(
                "profiles",
                within,
                limit=_MOST_SEEN,
                scope=scope,
                fields=("record", "dense"),
                consistency="Bounded",
            )
        seen = [
            SeenProfile(
                cast(Profile, read_record("profiles", row["record"])),
                np.asarray(row["dense"], dtype=np.float32),
            )
            for row in rows
        ]
        return sorted(seen, key=lambda one: (one.profile.kind, one.profile.path))

    def get_profile(self, scope: str, kind: ProfileKind, path: str) -> Profile | None:
        """Read one profile (strong read), or ``None`` when there is none."""
        with self._calling("get_profile"):
            found = self._by_key("profiles", [profile_pk(scope, kind, path)])
        return next((cast(Profile, read_record("profiles", body)) for body in found.values()), None)

    # --- any layer --------------------------------------------------------------------------

    def holds(
        self, records: Sequence[Atom] | Sequence[IndexedEvent] | Sequence[Profile]
    ) -> list[bool]:
        """Say of each record whether it is there, equal in every field (strong read).

        All records are of one layer.
        """
        if not records:
            return []
        layer = layer_of(records[0])
        keys = [record_key(record) for record in records]
        with self._calling("holds"):
            bodies = self._by_key(layer, keys)
        found = {key: read_record(layer, body) for key, body in bodies.items()}
        return [found.get(key) == record for key, record in zip(keys, records, strict=True)]

    def search_dense(
        self, layer: str, scope: str, vector: Vectors, limit: int, where: Filter
    ) -> list[Hit]:
        """Nearest by cosine, best first; ``score`` is the cosine."""
        (query,) = self._unit_vectors(["query"], vector.reshape(1, -1))
        return self._search(
            "search_dense", _layer(layer), scope, query, limit, where, field="dense"
        )

    def search_keyword(
        self, layer: str, scope: str, text: str, limit: int, where: Filter
    ) -> list[Hit]:
        """Best by BM25, best first; empty on a server without full-text search.

        On milvus-lite word rarity is counted per file, so scores of old and new rows differ
        a little until a compaction joins them.
        """
        terms = query_terms(text)
        if not terms or not self.full_text:
            return []
        return self._search(
            "search_keyword", _layer(layer), scope, terms, limit, where, field="sparse"
        )

    def _page(
        self, layer: Layer, scope: str, where: Filter, asked: PageRequest
    ) -> Page[Atom | IndexedEvent | Profile]:
        """Read the times of all records, then the records of the page.

        A record that is deleted in between is left out of the page.
        """
        within = filter_expression(layer, scope, where)
        with self._calling(f"{layer}_page"):
            pages = self._pages(layer, scope, within, field="occurred_ms", rows=_PLACES)
            # By key: a row that is being rewritten may come twice.
            times = {row["id"]: row["occurred_ms"] for page in pages for row in page}
            keys = cut_page((Place(at_ms, key) for key, at_ms in times.items()), asked)
            bodies = self._by_key(layer, keys.records)
        found = [read_record(layer, bodies[key]) for key in keys.records if key in bodies]
        return Page(found, keys.next, keys.total)

    def _search(
        self,
        operation: str,
        layer: Layer,
        scope: str,
        query: Any,
        limit: int,
        where: Filter,
        *,
        field: str,
    ) -> list[Hit]:
        if limit <= 0 or layer in self._absent:
            return []
        with self._calling(operation):
            found = self._seen().search(
                self._name(layer),
                data=[query],
                anns_field=field,
                filter=filter_expression(layer, scope, where),
                limit=min(limit, _MAX_HITS),
                output_fields=["record"],
                consistency_level="Bounded",
                timeout=self._timeout_s,
                **self._looking_in(scope),
            )
        # milvus-lite gives BM25 negated, a server as it is.
        sign = -1.0 if field == "sparse" and self._server().lite else 1.0
        hits = []
        for hit in found[0]:
            record = read_record(layer, hit["entity"]["record"])
            score = sign * float(hit["distance"])
            hits.append(Hit(id=record_id(record), score=score, record=record))
        return sorted(hits, key=lambda hit: (-hit.score, hit.id))


def _layer(name: str) -> Layer:
    if name not in LAYERS:
        message = f"no layer {name!r}: one of {', '.join(LAYERS)}"
        raise Terminal(message)
    return name

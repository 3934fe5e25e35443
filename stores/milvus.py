"""Events and atoms in Milvus: written by upsert, searched by meaning and by keyword.

One store is an :class:`~stores.protocols.EventIndex`, an :class:`~stores.protocols.AtomStore`
and a :class:`~stores.protocols.Searcher`. It speaks to a Milvus server (2.3.5 and 2.5 or newer)
or to milvus-lite through :func:`stores.embedded.open_embedded`.

**What is visible when.** ``atoms_of`` and ``get_atom`` read strongly: everything whose upsert
returned is there (about 200 ms on a server). Searches read with bounded staleness. On
milvus-lite an upsert is found by the next search; on a Milvus 2.3.5 server it was found 0.2 to
0.4 s after it returned.

**Crashes.** An upsert that returned survives ``kill -9``. One that did not may be there in
part; repeating it writes the same rows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from stores.errors import StoreMismatch, Terminal, UserError
from stores.ids import event_key
from stores.milvus_errors import CALL_ERRORS, translated
from stores.milvus_schema import (
    LAYERS,
    CollectionState,
    Layer,
    Meta,
    ServerKind,
    StoreState,
    atom_pk,
    atom_row,
    build_schema,
    collection_name,
    event_row,
    filter_expression,
    index_params,
    read_record,
    record_key,
    split_requests,
)
from stores.protocols import Filter, Hit, Vectors
from stores.records import Atom, IndexedEvent
from stores.terms import TERMS_VERSION, query_terms

__all__ = ["MilvusStore"]

logger = logging.getLogger(__name__)
# pymilvus logs each failed call with a traceback; every failure reaches our caller as an error.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)

_PAGE_ROWS = 2000  # rows read at once: some MB of ordinary atoms
_SHORTEST = 1e-12  # a shorter vector has no direction
_MAX_HITS = 16_384  # what a server gives at most


class MilvusStore:
    """Milvus or milvus-lite behind the store protocols. Thread-safe.

    Nothing is asked of the server before :meth:`ensure_collections` or :meth:`describe`.
    Every call raises :class:`~stores.errors.ServiceUnavailable` when the store cannot be
    reached, is not ready, or does not answer in time, and :class:`~stores.errors.Terminal` when
    it refuses the call itself.

    :arg uri: ``http://host:port`` of the server.
    :arg token: ``user:password``, or the token of the embedded store.
    :arg prefix: what the collection names begin with.
    :arg dimension: length of every vector.
    :arg embedding_name: the model that makes the vectors; another one may not write here.
    :arg analyzer: ``jieba`` (Chinese and English) or ``standard`` (languages with spaces).
    :arg timeout_s: seconds after which a call is given up.
    :arg refuse_writes: why this store may not write, shown to the user; empty when it may.
    :arg observe: told the operation and its seconds after every call that succeeded.
    """

    def __init__(
        self,
        uri: str,
        *,
        prefix: str,
        dimension: int,
        embedding_name: str,
        analyzer: str = "jieba",
        token: str = "",
        timeout_s: float = 10.0,
        refuse_writes: str = "",
        observe: Callable[[str, float], None] | None = None,
    ) -> None:
        self._uri = uri
        self._token = token
        self._prefix = prefix
        self._dimension = dimension
        self._embedding_name = embedding_name
        self._analyzer = analyzer
        self._timeout_s = timeout_s
        self._refuse_writes = refuse_writes
        self._observe = observe
        self._connecting = threading.Lock()
        self._connected: tuple[Any, ServerKind] | None = None

    # --- life -------------------------------------------------------------------------------

    @property
    def full_text(self) -> bool:
        """False when the server has no BM25: keyword search then finds nothing."""
        return self._server().full_text

    def ensure_collections(self) -> None:
        """Create the collections, or verify that they were made with these settings.

        Raises :class:`~stores.errors.StoreMismatch` naming both sides when they were not, and
        :class:`~stores.errors.UserError` when they are missing and this store may not write.
        """
        client, server = self._client(), self._server()
        if not server.full_text:
            logger.warning(
                "Milvus %s has no full-text search: recall uses vectors only; "
                "Milvus 2.5 or newer has it",
                server.version,
            )
        wanted = self._wanted()
        for layer in LAYERS:
            name = collection_name(self._prefix, layer)
            with self._calling(f"open collection {name}"):
                if not client.has_collection(name, timeout=self._timeout_s):
                    self._require_write(f"collection {name} does not exist yet")
                    self._create(client, server, layer, name)
                self._verify(name, self._meta_of(client, name), wanted)
                if not client.list_indexes(name):
                    # Not waited for here: loading waits where a server builds in the background.
                    client.create_index(
                        name, index_params(wanted, server), timeout=self._timeout_s, sync=False
                    )
                client.load_collection(name, timeout=self._timeout_s)

    def drop_collections(self) -> None:
        """Delete the collections of this prefix with all rows; missing ones are no error.

        Until the next :meth:`ensure_collections`, reads and writes fail.
        """
        self._require_write("cannot drop collections")
        client = self._client()
        for layer in LAYERS:
            name = collection_name(self._prefix, layer)
            with self._calling(f"drop collection {name}"):
                client.drop_collection(name, timeout=self._timeout_s)

    def describe(self) -> StoreState:
        """Say what is there, without changing anything."""
        client, server = self._client(), self._server()
        states = []
        for layer in LAYERS:
            name = collection_name(self._prefix, layer)
            with self._calling(f"describe collection {name}"):
                exists = bool(client.has_collection(name, timeout=self._timeout_s))
                meta = self._meta_of(client, name) if exists else None
            states.append(CollectionState(name, exists, meta))
        return StoreState(
            server_version=server.version,
            embedded=server.lite,
            full_text=server.full_text,
            wanted=self._wanted(),
            collections=tuple(states),
        )

    def close(self) -> None:
        """Close the connection. The store cannot be used afterwards."""
        with self._connecting:
            if self._connected is not None:
                self._connected[0].close()
                self._connected = None

    # --- write ------------------------------------------------------------------------------

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        """Write events, idempotent by (scope, event id); of equal ids the last one stays.

        Raises :class:`~stores.errors.Terminal` naming the row when a vector is of the wrong
        length, not finite or all zero; then nothing of the batch is written.
        """
        units = self._unit_vectors([event.event_id for event in events], vectors)
        with_text = self.full_text
        rows = [
            event_row(event, vector, with_text=with_text)
            for event, vector in zip(events, units, strict=True)
        ]
        self._upsert("events", rows)

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        """Write atoms, idempotent by (scope, atom id); of equal ids the last one stays.

        Raises as :meth:`upsert_events` does.
        """
        units = self._unit_vectors([atom.atom_id for atom in atoms], vectors)
        with_text = self.full_text
        rows = [
            atom_row(atom, vector, with_text=with_text)
            for atom, vector in zip(atoms, units, strict=True)
        ]
        self._upsert("atoms", rows)

    # --- read -------------------------------------------------------------------------------

    def atoms_of(self, scope: str, *, only_active: bool = False) -> list[Atom]:
        """Read all atoms of a scope (strong read), by ``occurred_at``, then ``atom_id``."""
        within = filter_expression("atoms", scope, Filter(only_active=only_active))
        atoms: list[Atom] = []
        with self._calling("atoms_of"):
            if not self._server().lite:
                # A page is not a strong read on Milvus 2.3.5: of rows just written it gave none.
                # A plain strong read waits until the server has them; then pages have them too.
                self._query("atoms", within, limit=1)
            last = ""
            while True:
                after = f'{within} and id > "{last}"'
                rows = self._query("atoms", after, limit=_PAGE_ROWS, by_key=True)
                if not rows:
                    break
                atoms += [cast(Atom, read_record("atoms", row["record"])) for row in rows]
                last = max(row["id"] for row in rows)
        return sorted(atoms, key=lambda atom: (atom.occurred_at, atom.atom_id))

    def get_atom(self, scope: str, atom_id: str) -> Atom | None:
        """Read one atom (strong read), or ``None`` when the scope has no such atom."""
        within = filter_expression("atoms", scope, Filter(only_active=False))
        with self._calling("get_atom"):
            rows = self._query("atoms", f'{within} and id == "{atom_pk(scope, atom_id)}"', limit=1)
        return cast(Atom, read_record("atoms", rows[0]["record"])) if rows else None

    def get_events(self, scope: str, event_ids: Sequence[str]) -> list[IndexedEvent]:
        """Read events of a scope by id (strong read), in the order asked for.

        Those that are not indexed are left out.
        """
        if not event_ids:
            return []
        keys = [event_key(scope, event_id) for event_id in event_ids]
        within = filter_expression("events", scope, Filter())
        wanted = ", ".join(f'"{key}"' for key in keys)
        with self._calling("get_events"):
            rows = self._query("events", f"{within} and id in [{wanted}]", limit=len(keys))
        found = [cast(IndexedEvent, read_record("events", row["record"])) for row in rows]
        by_id = {event.event_id: event for event in found}
        return [by_id[event_id] for event_id in event_ids if event_id in by_id]

    def holds(self, records: Sequence[Atom] | Sequence[IndexedEvent]) -> list[bool]:
        """Say of each record whether it is there, equal in every field (strong read).

        All records are of one layer.
        """
        if not records:
            return []
        layer: Layer = "atoms" if isinstance(records[0], Atom) else "events"
        keys = [record_key(record) for record in records]
        wanted = ", ".join(f'"{key}"' for key in keys)
        with self._calling("holds"):
            rows = self._query(layer, f"id in [{wanted}]", limit=len(keys))
        found = {row["id"]: read_record(layer, row["record"]) for row in rows}
        return [found.get(key) == record for key, record in zip(keys, records, strict=True)]

    def search_dense(
        self, layer: str, scope: str, vector: Vectors, limit: int, where: Filter
    ) -> list[Hit]:
        """Nearest by cosine, best first; ``score`` is the cosine."""
        query = self._unit_vectors(["query"], vector.reshape(1, -1))[0]
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

    # --- inside -----------------------------------------------------------------------------

    def _client(self) -> Any:
        return self._connect()[0]

    def _server(self) -> ServerKind:
        return self._connect()[1]

    def _connect(self) -> tuple[Any, ServerKind]:
        with self._connecting:
            if self._connected is None:
                with self._calling("connect"):
                    client = MilvusClient(self._uri, token=self._token, timeout=self._timeout_s)
                    version = str(client.get_server_version(timeout=self._timeout_s))
                self._connected = (client, ServerKind(version))
            return self._connected

    def _wanted(self) -> Meta:
        analyzer = f"{self._analyzer}/{TERMS_VERSION}" if self.full_text else "none"
        return Meta(self._embedding_name, self._dimension, analyzer)

    def _create(self, client: Any, server: ServerKind, layer: Layer, name: str) -> None:
        wanted = self._wanted()
        try:
            client.create_collection(
                name,
                schema=build_schema(layer, wanted, server),
                consistency_level="Bounded",
                properties=wanted.properties(),
                timeout=self._timeout_s,
            )
        except MilvusException:
            # Another worker may have made it meanwhile; verifying it comes next.
            if not client.has_collection(name, timeout=self._timeout_s):
                raise

    def _meta_of(self, client: Any, name: str) -> Meta | None:
        description = client.describe_collection(name, timeout=self._timeout_s)
        return Meta.of(description.get("properties") or {})

    def _verify(self, name: str, found: Meta | None, wanted: Meta) -> None:
        if found == wanted:
            return
        message = (
            f"collection {name} was made with {found or 'no settings of Sediment'}; "
            f"the settings now say {wanted}. Go back to the old settings, or fill another "
            "collection prefix with `sediment rebuild --collection-prefix NEW` and set "
            "SEDIMENT_COLLECTION_PREFIX=NEW"
        )
        raise StoreMismatch(message)

    def _require_write(self, why: str) -> None:
        if self._refuse_writes:
            message = f"{why}: {self._refuse_writes}"
            raise UserError(message)

    def _unit_vectors(self, ids: Sequence[str], vectors: Vectors) -> Vectors:
        """Check vectors and bring them to length 1."""
        if vectors.ndim != 2 or len(vectors) != len(ids):  # noqa: PLR2004
            message = f"{len(ids)} rows need as many vectors; got shape {vectors.shape}"
            raise Terminal(message)
        if not ids:
            return vectors
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        for row, length in enumerate(lengths):
            problem = ""
            if vectors.shape[1] != self._dimension:
                problem = f"has {vectors.shape[1]} numbers, the collection takes {self._dimension}"
            elif not np.isfinite(length):
                problem = "holds a number that is not finite"
            elif length < _SHORTEST:
                problem = "is all zero"
            if problem:
                message = f"the vector of row {row} ({ids[row]}) {problem}"
                raise Terminal(message)
        return cast(Vectors, (vectors / lengths[:, np.newaxis]).astype(np.float32))

    def _upsert(self, layer: Layer, rows: list[dict[str, Any]]) -> None:
        self._require_write("cannot write")
        if not rows:
            return
        # By key: a server refuses, or doubles, a key that comes twice in one request.
        unique = {row["id"]: row for row in rows}
        client = self._client()
        name = collection_name(self._prefix, layer)
        with self._calling(f"upsert_{layer}"):
            for request in split_requests(list(unique.values())):
                client.upsert(name, request, timeout=self._timeout_s)

    def _query(
        self, layer: Layer, expression: str, *, limit: int, by_key: bool = False
    ) -> list[dict[str, Any]]:
        """Read rows; ``by_key`` makes them the ones with the smallest keys."""
        # The flags of pymilvus' own iterator. That one is of no use here: on old servers it
        # reads at a time of the client's clock and misses rows just written.
        flags = {"iterator": "True", "reduce_stop_for_best": "True"} if by_key else {}
        rows = self._client().query(
            collection_name(self._prefix, layer),
            filter=expression,
            limit=limit,
            output_fields=["record"],
            consistency_level="Strong",
            timeout=self._timeout_s,
            **flags,
        )
        return list(rows)

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
        if limit <= 0:
            return []
        with self._calling(operation):
            found = self._client().search(
                collection_name(self._prefix, layer),
                data=[query],
                anns_field=field,
                filter=filter_expression(layer, scope, where),
                limit=min(limit, _MAX_HITS),
                output_fields=["record"],
                consistency_level="Bounded",
                timeout=self._timeout_s,
            )
        # milvus-lite gives BM25 negated, a server as it is.
        sign = -1.0 if field == "sparse" and self._server().lite else 1.0
        hits = []
        for hit in found[0]:
            record = read_record(layer, hit["entity"]["record"])
            own_id = record.atom_id if isinstance(record, Atom) else record.event_id
            hits.append(Hit(id=own_id, score=sign * float(hit["distance"]), record=record))
        return sorted(hits, key=lambda hit: (-hit.score, hit.id))

    @contextmanager
    def _calling(self, operation: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except CALL_ERRORS as error:
            raise translated(operation, error) from error
        if self._observe is not None:
            self._observe(operation, time.perf_counter() - started)


def _layer(name: str) -> Layer:
    if name not in LAYERS:
        message = f"no layer {name!r}: one of {', '.join(LAYERS)}"
        raise Terminal(message)
    return name

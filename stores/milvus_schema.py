"""How events and atoms lie in Milvus: columns, rows, filters, and what a server can do.

No text that anybody chose ever enters a filter expression. Scopes, sessions and ids are
compared through their content ids (32 hex digits), so that quotes, backslashes and the rest of
Unicode cannot change what a filter means on any engine. The readable values are in ``record``.

``record`` holds the whole record as JSON, cut into an array of strings: a Milvus string ends at
65,535 bytes, an event may have 1 MiB. ``text`` is there for keyword search alone: the terms of
:mod:`stores.terms`, their first 65,535 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from pydantic import TypeAdapter
from pymilvus import DataType, Function, FunctionType, MilvusClient

from stores.ids import content_id, event_key
from stores.protocols import Filter
from stores.records import Atom, IndexedEvent
from stores.terms import index_terms

__all__ = [
    "LAYERS",
    "MAX_TEXT_BYTES",
    "CollectionState",
    "Layer",
    "Meta",
    "ServerKind",
    "StoreState",
    "atom_pk",
    "atom_row",
    "build_schema",
    "collection_name",
    "cut_text",
    "event_row",
    "filter_expression",
    "index_params",
    "read_record",
    "record_key",
    "scope_id",
    "split_requests",
]

Layer = Literal["events", "atoms"]
LAYERS: tuple[Layer, ...] = ("events", "atoms")

MAX_TEXT_BYTES = 65_535  # the longest string a Milvus column takes
_CHUNK_CHARS = 16_000  # at most 4 bytes each in UTF-8, so below MAX_TEXT_BYTES
_MAX_CHUNKS = 512  # 8 million characters: an event of 1 MiB with every character escaped
_REQUEST_ROWS = 1000
_REQUEST_BYTES = 16 * 1024 * 1024  # a server takes 64 MiB; long events must not add up to it
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FOREVER_MS = 2**62  # `valid_until` of an atom that still holds

# Both engines take a stop list, so both drop the same marks; a search for "?" finds nothing.
_MARKS = [*"，。！？；：、（）《》“”‘’【】…—～·", *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
_ANALYZERS: dict[str, dict[str, Any]] = {
    "jieba": {
        "tokenizer": "jieba",
        "filter": ["lowercase", {"type": "stop", "stop_words": _MARKS}],
    },
    "standard": {"tokenizer": "standard", "filter": ["lowercase"]},
}
_EVENTS: TypeAdapter[IndexedEvent] = TypeAdapter(IndexedEvent)


@dataclass(frozen=True, slots=True)
class ServerKind:
    """What the server at the other end is and can do.

    :arg version: as the server says it, e.g. ``v2.6.4`` or ``milvus_lite-3.2.2``.
    """

    version: str

    @property
    def lite(self) -> bool:
        """True for milvus-lite."""
        return self.version.startswith("milvus_lite")

    @property
    def full_text(self) -> bool:
        """True when the server has BM25: milvus-lite 3 and Milvus 2.5 or newer."""
        return self.lite or self._number() >= (2, 5)

    @property
    def partition_key(self) -> bool:
        """True when the scope becomes the partition key.

        Not on milvus-lite: every flush would write up to 16 files instead of one. Not before
        Milvus 2.5: on 2.3.5 a filter on the partition key found 308 of 18,000 upserted rows.
        """
        return not self.lite and self._number() >= (2, 5)

    def _number(self) -> tuple[int, int]:
        found = re.match(r"v?(\d+)\.(\d+)", self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


@dataclass(frozen=True, slots=True)
class Meta:
    """What a collection was made with, kept in its properties.

    :arg analyzer: ``jieba`` or ``standard``, and the version of our own terms; ``none`` on a
        server without full-text search.
    """

    embedding: str
    dimension: int
    analyzer: str

    def properties(self) -> dict[str, str]:
        """Give the collection properties that hold it."""
        return {
            "sediment.embedding": self.embedding,
            "sediment.dimension": str(self.dimension),
            "sediment.analyzer": self.analyzer,
        }

    @classmethod
    def of(cls, properties: dict[str, Any]) -> Meta | None:
        """Read it back; ``None`` when the collection is not one of Sediment's."""
        try:
            return cls(
                embedding=str(properties["sediment.embedding"]),
                dimension=int(properties["sediment.dimension"]),
                analyzer=str(properties["sediment.analyzer"]),
            )
        except (KeyError, ValueError):
            return None

    def __str__(self) -> str:
        return (
            f"embedding model {self.embedding}, dimension {self.dimension}, "
            f"analyzer {self.analyzer}"
        )


@dataclass(frozen=True, slots=True)
class CollectionState:
    """One collection as it is on the server; ``meta`` is ``None`` when it is missing or alien."""

    name: str
    exists: bool
    meta: Meta | None


@dataclass(frozen=True, slots=True)
class StoreState:
    """What ``sediment doctor`` shows of the store.

    :arg wanted: what the settings ask for, to be compared with each collection's ``meta``.
    """

    server_version: str
    embedded: bool
    full_text: bool
    wanted: Meta
    collections: tuple[CollectionState, ...]


def collection_name(prefix: str, layer: Layer) -> str:
    """Name the collection of a layer."""
    return f"{prefix}_{layer}"


# --- schema ----------------------------------------------------------------------------------


def build_schema(layer: Layer, meta: Meta, server: ServerKind) -> Any:
    """Build the pymilvus schema of a layer's collection."""
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field(
        "scope_id", DataType.VARCHAR, max_length=64, is_partition_key=server.partition_key
    )
    schema.add_field("session_key", DataType.VARCHAR, max_length=64)
    schema.add_field("occurred_ms", DataType.INT64)
    if layer == "atoms":
        schema.add_field("type", DataType.VARCHAR, max_length=32)
        schema.add_field("status", DataType.VARCHAR, max_length=32)
        schema.add_field("valid_until_ms", DataType.INT64)
    schema.add_field(
        "record",
        DataType.ARRAY,
        element_type=DataType.VARCHAR,
        max_capacity=_MAX_CHUNKS,
        max_length=MAX_TEXT_BYTES,
    )
    schema.add_field("dense", DataType.FLOAT_VECTOR, dim=meta.dimension)
    if meta.analyzer != "none":
        schema.add_field(
            "text",
            DataType.VARCHAR,
            max_length=MAX_TEXT_BYTES,
            enable_analyzer=True,
            analyzer_params=_ANALYZERS[meta.analyzer.partition("/")[0]],
        )
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(Function("bm25", FunctionType.BM25, ["text"], ["sparse"]))
    return schema


def index_params(meta: Meta, server: ServerKind) -> Any:
    """Build the pymilvus index parameters.

    Vectors are brought to length 1 before they are written, so that the inner product is the
    cosine; milvus-lite would compute every row's length anew in each search. It gets exact
    search: its work per search is linear in the rows anyway, and a graph would be built anew
    after every compaction.
    """
    params = MilvusClient.prepare_index_params()
    params.add_index(
        "dense",
        index_name="dense",
        index_type="FLAT" if server.lite else "AUTOINDEX",
        metric_type="IP",
    )
    if meta.analyzer != "none":
        params.add_index(
            "sparse",
            index_name="sparse",
            index_type="SPARSE_INVERTED_INDEX",
            metric_type="BM25",
        )
    return params


# --- rows ------------------------------------------------------------------------------------


def scope_id(scope: str) -> str:
    """Give the column value that stands for a scope."""
    return content_id("scope", scope)


def atom_pk(scope: str, atom_id: str) -> str:
    """Give the primary key of an atom: a scope can never overwrite another scope's atom."""
    return content_id("atom", scope, atom_id)


def record_key(record: Atom | IndexedEvent) -> str:
    """Give the primary key of a record's row."""
    if isinstance(record, Atom):
        return atom_pk(record.scope, record.atom_id)
    return event_key(record.scope, record.event_id)


def event_row(event: IndexedEvent, vector: Any, *, with_text: bool) -> dict[str, Any]:
    """Make the row of an event."""
    return _row(event, _EVENTS.dump_json(event).decode(), vector, with_text=with_text)


def atom_row(atom: Atom, vector: Any, *, with_text: bool) -> dict[str, Any]:
    """Make the row of an atom."""
    row = _row(atom, atom.model_dump_json(), vector, with_text=with_text)
    row["type"] = atom.type
    row["status"] = atom.status
    row["valid_until_ms"] = _ms(atom.valid_until) if atom.valid_until else _FOREVER_MS
    return row


def _row(record: Atom | IndexedEvent, body: str, vector: Any, *, with_text: bool) -> dict[str, Any]:
    row = {
        "id": record_key(record),
        "scope_id": scope_id(record.scope),
        "session_key": _session_key(record.scope, record.session_id),
        "occurred_ms": _ms(record.occurred_at),
        "record": [body[at : at + _CHUNK_CHARS] for at in range(0, len(body), _CHUNK_CHARS)],
        "dense": vector,
    }
    if with_text:
        row["text"] = cut_text(index_terms(record.search_text()))
    return row


def split_requests(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split rows so that no request is larger than a server takes."""
    request: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        # Text and record hold nearly the same; a character has at most four bytes.
        bytes_at_most = 8 * sum(map(len, row["record"]))
        full = len(request) >= _REQUEST_ROWS or size + bytes_at_most > _REQUEST_BYTES
        if request and full:
            yield request
            request, size = [], 0
        request.append(row)
        size += bytes_at_most
    yield request


def read_record(layer: Layer, chunks: Sequence[str]) -> Atom | IndexedEvent:
    """Rebuild the record from its column, equal to the one that was written."""
    body = "".join(chunks)
    if layer == "atoms":
        return Atom.model_validate_json(body)
    return _EVENTS.validate_json(body)


def cut_text(text: str) -> str:
    """Cut a text to what a column takes, never inside a character.

    >>> len(cut_text("好" * 30_000).encode())
    65535
    """
    if len(text) * 4 <= MAX_TEXT_BYTES:
        return text
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def _session_key(scope: str, session_id: str) -> str:
    return content_id("session", scope, session_id)


def _ms(value: datetime) -> int:
    # Integer arithmetic: timestamp() is a float and wrong in the last millisecond.
    return (value - _EPOCH) // timedelta(milliseconds=1)


# --- filters ---------------------------------------------------------------------------------


def filter_expression(layer: Layer, scope: str, where: Filter) -> str:
    """Write the filter: always the scope, then what narrows it.

    ``since`` is inclusive, ``until`` exclusive, both to the millisecond.

    >>> filter_expression("events", 'a" or 1 == 1', Filter())
    'scope_id == "591aeaadd64a6b09f6a561dbfaff719a"'
    """
    parts = [f'scope_id == "{scope_id(scope)}"']
    if where.session_id is not None:
        parts.append(f'session_key == "{_session_key(scope, where.session_id)}"')
    if where.since is not None:
        parts.append(f"occurred_ms >= {_ms(where.since)}")
    if where.until is not None:
        parts.append(f"occurred_ms < {_ms(where.until)}")
    if layer == "atoms" and where.only_active:
        parts.append('status == "active"')
    return " and ".join(parts)

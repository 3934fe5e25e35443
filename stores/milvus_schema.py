"""How events, atoms and profiles lie in Milvus: columns, rows, filters.

No text that anybody chose ever enters a filter expression. Scopes, sessions and ids are
compared through their content ids (32 hex digits), so that quotes, backslashes and the rest of
Unicode cannot change what a filter means on any engine. The readable values are in ``record``.

``record`` holds the whole record as JSON, cut into an array of strings: a Milvus string ends at
65,535 bytes, an event may have 1 MiB. ``text`` is there for keyword search alone: the terms of
:mod:`stores.terms`, their first 65,535 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, get_args
from zlib import crc32

from pydantic import TypeAdapter
from pymilvus import DataType, Function, FunctionType, MilvusClient

from stores.ids import content_id, event_key
from stores.milvus_meta import Meta, ServerKind
from stores.protocols import Filter, Span
from stores.records import ATOM_TYPES, Atom, IndexedEvent, Profile, ProfileKind
from stores.terms import index_terms

__all__ = [
    "LAYERS",
    "MAX_TEXT_BYTES",
    "PARTITIONS",
    "Layer",
    "Record",
    "atom_pk",
    "atom_row",
    "build_schema",
    "collection_name",
    "cut_text",
    "event_row",
    "filter_expression",
    "index_params",
    "layer_of",
    "partition_name",
    "profile_pk",
    "profile_row",
    "read_record",
    "record_id",
    "record_key",
    "scope_id",
    "spans_expression",
    "split_requests",
]

Layer = Literal["events", "atoms", "profiles"]
LAYERS: tuple[Layer, ...] = ("events", "atoms", "profiles")
Record = Atom | IndexedEvent | Profile

PARTITIONS = tuple(f"scopes_{number}" for number in range(16))
"""Where the store spreads scopes itself. As many as Milvus makes by itself for a partition key."""

MAX_TEXT_BYTES = 65_535  # the longest string a Milvus column takes
_CHUNK_CHARS = 16_000  # at most 4 bytes each in UTF-8, so below MAX_TEXT_BYTES
_MAX_CHUNKS = 512  # 8 million characters: an event of 1 MiB with every character escaped
_REQUEST_ROWS = 1000
_REQUEST_BYTES = 16 * 1024 * 1024  # a server takes 64 MiB; long events must not add up to it
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FOREVER_MS = 2**62  # `valid_until` of an atom that still holds
_KINDS: tuple[str, ...] = get_args(ProfileKind)
_NOTHING = 'id == ""'  # a filter that no row passes

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
    schema.add_field("occurred_ms", DataType.INT64)
    if layer != "profiles":
        schema.add_field("session_key", DataType.VARCHAR, max_length=64)
    if layer != "events":
        schema.add_field("type", DataType.VARCHAR, max_length=32)
    if layer == "atoms":
        schema.add_field("status", DataType.VARCHAR, max_length=32)
        schema.add_field("valid_from_ms", DataType.INT64)
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
    after every compaction. So does a server that cannot keep scopes apart by partition key: in
    a graph over all of them a filter on a small scope finds next to nothing (1 of 10 rows
    beside 17,000, on 2.3.5).
    """
    params = MilvusClient.prepare_index_params()
    params.add_index(
        "dense",
        index_name="dense",
        index_type="AUTOINDEX" if server.partition_key else "FLAT",
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


def partition_name(scope: str) -> str:
    """Give the one of :data:`PARTITIONS` that holds a scope.

    Counted as the lanes of the L0 index are, so that a batch of one lane goes to few of them.
    """
    return PARTITIONS[crc32(scope.encode()) % len(PARTITIONS)]


def atom_pk(scope: str, atom_id: str) -> str:
    """Give the primary key of an atom: a scope can never overwrite another scope's atom."""
    return content_id("atom", scope, atom_id)


def profile_pk(scope: str, kind: str, path: str) -> str:
    """Give the primary key of a profile: one row for each file of a scope."""
    return content_id("profile", scope, kind, path)


def layer_of(record: Record) -> Layer:
    """Give the layer a record belongs to."""
    if isinstance(record, Atom):
        return "atoms"
    return "profiles" if isinstance(record, Profile) else "events"


def record_id(record: Record) -> str:
    """Give the id by which users know the record."""
    if isinstance(record, Atom):
        return record.atom_id
    return record.profile_id if isinstance(record, Profile) else record.event_id


def record_key(record: Record) -> str:
    """Give the primary key of a record's row."""
    if isinstance(record, Atom):
        return atom_pk(record.scope, record.atom_id)
    if isinstance(record, Profile):
        return profile_pk(record.scope, record.kind, record.path)
    return event_key(record.scope, record.event_id)


def event_row(event: IndexedEvent, vector: Any, *, with_text: bool) -> dict[str, Any]:
    """Make the row of an event."""
    body = _EVENTS.dump_json(event).decode()
    row = _row(event, event.occurred_at, body, vector, with_text=with_text)
    row["session_key"] = _session_key(event.scope, event.session_id)
    return row


def atom_row(atom: Atom, vector: Any, *, with_text: bool) -> dict[str, Any]:
    """Make the row of an atom."""
    row = _row(atom, atom.occurred_at, atom.model_dump_json(), vector, with_text=with_text)
    row["session_key"] = _session_key(atom.scope, atom.session_id)
    row["type"] = atom.type
    row["status"] = atom.status
    row["valid_from_ms"] = _ms(atom.valid_from)
    row["valid_until_ms"] = _ms(atom.valid_until) if atom.valid_until else _FOREVER_MS
    return row


def profile_row(profile: Profile, vector: Any, *, with_text: bool) -> dict[str, Any]:
    """Make the row of a profile; its time is that of its last change."""
    body = profile.model_dump_json()
    row = _row(profile, profile.updated_at, body, vector, with_text=with_text)
    row["type"] = profile.kind
    return row


def _row(
    record: Record, occurred_at: datetime, body: str, vector: Any, *, with_text: bool
) -> dict[str, Any]:
    row = {
        "id": record_key(record),
        "scope_id": scope_id(record.scope),
        "occurred_ms": _ms(occurred_at),
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


def read_record(layer: Layer, chunks: Sequence[str]) -> Record:
    """Rebuild the record from its column, equal to the one that was written."""
    body = "".join(chunks)
    if layer == "atoms":
        return Atom.model_validate_json(body)
    if layer == "profiles":
        return Profile.model_validate_json(body)
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

    ``since`` is inclusive, ``until`` exclusive, both to the millisecond. A profile is dated by
    its last change and belongs to no session.

    >>> filter_expression("events", 'a" or 1 == 1', Filter())
    'scope_id == "591aeaadd64a6b09f6a561dbfaff719a"'
    """
    parts = [f'scope_id == "{scope_id(scope)}"']
    if where.session_id is not None:
        by_session = f'session_key == "{_session_key(scope, where.session_id)}"'
        parts.append(_NOTHING if layer == "profiles" else by_session)
    if where.since is not None:
        parts.append(f"occurred_ms >= {_ms(where.since)}")
    if where.until is not None:
        parts.append(f"occurred_ms < {_ms(where.until)}")
    if where.types and layer != "events":
        parts.append(_of_types(where.types, ATOM_TYPES if layer == "atoms" else _KINDS))
    if layer == "atoms" and where.as_of is not None:
        at = _ms(where.as_of)
        parts.append(f'valid_from_ms <= {at} and valid_until_ms > {at} and status != "rejected"')
    elif layer == "atoms" and where.only_active:
        parts.append('status == "active"')
    return " and ".join(parts)


def spans_expression(scope: str, spans: Sequence[Span]) -> str:
    """Write the filter for events inside any of ``spans``; those of one session are joined."""
    joined: dict[str, list[tuple[int, int]]] = {}
    for span in sorted(spans):
        key = _session_key(scope, span.session_id)
        first, last = _ms(span.since), _ms(span.until)
        parts = joined.setdefault(key, [])
        if parts and first <= parts[-1][1]:
            parts[-1] = (parts[-1][0], max(last, parts[-1][1]))
        else:
            parts.append((first, last))
    either = " or ".join(
        f'(session_key == "{key}" and occurred_ms >= {first} and occurred_ms <= {last})'
        for key, parts in joined.items()
        for first, last in parts
    )
    return f"({either})"


def _of_types(asked: Sequence[str], known: Sequence[str]) -> str:
    # Only our own words may enter the expression; no row has another type.
    wanted = ", ".join(f'"{name}"' for name in known if name in asked)
    return f"type in [{wanted}]" if wanted else _NOTHING

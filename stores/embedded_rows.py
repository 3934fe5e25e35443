"""Which rows of a milvus-lite collection a read sees, found without a look at each in Python.

milvus-lite's own search and query walk over all rows of a collection, whosever they are, to tell
which version of a row counts, and make every column of each row they give. Both are done here a
column at a time. Its files, filters and indexes are used as they are, so what is found, its
scores and its order are the same.

This stands on inner parts of milvus-lite, which change between patch releases. So its release is
pinned, and a test compares the two ways row for row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from milvus_lite.analyzer.sparse import bytes_to_sparse
from milvus_lite.engine.collection import Collection
from milvus_lite.index.brute_force import BruteForceIndex
from milvus_lite.index.sparse_factory import create_sparse_index
from milvus_lite.search.filter import evaluate_mask
from milvus_lite.storage.segment import Segment
from numpy.typing import NDArray

__all__ = ["matching", "nearest"]

Mask = NDArray[np.bool_]

_KEYWORD = "BM25"  # the metric of the field that keyword search goes by; the other's is "IP"


def matching(
    collection: Collection, expression: str, fields: Sequence[str], limit: int
) -> list[dict[str, Any]]:
    """Give rows that pass the filter: files first, then what is still in memory."""
    found: list[dict[str, Any]] = []
    for segment, mask in _visible(collection, expression):
        rows = np.flatnonzero(mask)[: limit - len(found)]
        found += segment.table.select(["id", *fields]).take(rows).to_pylist()
    return found


def nearest(
    collection: Collection,
    query: Any,
    field: str,
    expression: str,
    fields: Sequence[str],
    limit: int,
) -> list[dict[str, Any]]:
    """Give the best rows that pass the filter: those nearest to a vector, or best for a text.

    As milvus-lite gives them: ``distance`` is the inner product, or the score negated.
    """
    metric = collection.resolve_search_metric(field)
    if metric == _KEYWORD:
        asked = collection._prepare_sparse_queries([query], field)
    else:
        asked = np.asarray([query], dtype=np.float32)
    found = []
    for segment, mask in _visible(collection, expression):
        if not mask.any():
            continue
        if metric == _KEYWORD:
            index = _keyword_index(segment, field, mask)
        else:
            vectors, _ = segment.vector_data(field)
            index = segment.indexes.get(field) or BruteForceIndex.build(vectors, metric)
        rows, distances = index.search(asked, limit, valid_mask=mask)
        found += [
            (float(distance), segment, row)
            for distance, row in zip(distances[0], rows[0].tolist(), strict=True)
            if row >= 0
        ]
    found.sort(key=lambda one: one[0])
    sign = 1 if metric == _KEYWORD else -1
    return [
        {
            "id": segment.pks[row],
            "distance": sign * distance,
            "entity": {name: segment.table.column(name)[row].as_py() for name in fields},
        }
        for distance, segment, row in found[:limit]
    ]


def _visible(collection: Collection, expression: str) -> list[tuple[Segment, Mask]]:
    """Give all segments, each with which of its rows pass the filter and are not outdated."""
    compiled = collection._compile_filter(expression)
    files, deleted = collection._read_snapshot()
    memory, deleted_in_memory = _in_memory(collection)
    deletions = (deleted.snapshot, deleted_in_memory)
    segments = [
        (one, evaluate_mask(compiled, one.table)) for one in (*files, memory) if one.num_rows
    ]
    for (one, mask), newer in product(segments, deletions):
        _hide(one, mask, newer)
    for (one, mask), (other, other_mask) in combinations(segments, 2):
        both = one.pk_to_row.keys() & other.pk_to_row.keys()
        _hide(one, mask, {key: other.seqs[other.pk_to_row[key]] for key in both})
        _hide(other, other_mask, {key: one.seqs[one.pk_to_row[key]] for key in both})
    return segments


def _hide(segment: Segment, mask: Mask, newer: Mapping[str, int]) -> None:
    """Hide rows of which something newer is known: another version, or that they are deleted."""
    for key in segment.pk_to_row.keys() & newer.keys():
        row = segment.pk_to_row[key]
        if segment.seqs[row] < newer[key]:
            mask[row] = False


def _in_memory(collection: Collection) -> tuple[Segment, dict[str, int]]:
    """Give the rows that are in no file yet, and when which keys were deleted; of one moment."""
    memory = collection._memtable
    with memory._lock:
        keys, seqs, _, _, table = memory.to_search_snapshot(None, include_table=True)
        deleted = memory.delete_index_snapshot()
    segment = Segment("", "", "id", "", keys, seqs, np.zeros((0, 0), np.float32), table)
    return segment, {key: seq for key, (seq, _) in deleted.items()}


def _keyword_index(segment: Segment, field: str, mask: Mask) -> Any:
    """Give the index of a file, made once; of rows in memory, for those that pass the filter.

    So does milvus-lite, and how rare a word is is counted over the rows of an index.
    """
    index = segment.sparse_indexes.get(field)
    if index is None:
        rows = segment.table.column(field).to_pylist()
        index = create_sparse_index(_KEYWORD, {})
        counted = None if segment.file_path else mask
        index.build([bytes_to_sparse(row) for row in rows], counted)
        segment.sparse_indexes[field] = index
    return index

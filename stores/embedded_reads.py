"""Reads of the process that owns the embedded store: milvus-lite asked directly.

milvus-lite runs in the owner's process. Asking it through its server packs every row for the way
and unpacks it again: about 4 ms of processor time for a search of thirty rows, a third of all it
costs. What is asked and what comes back are the same as there; how the rows are found is
:mod:`stores.embedded_rows`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from milvus_lite import MilvusLite
from milvus_lite.adapter.grpc.errors import to_status_kwargs
from pymilvus.exceptions import MilvusException

from stores.embedded_guard import Gate, Space
from stores.embedded_rows import matching, nearest

__all__ = ["OwnReads"]


class OwnReads:
    """Searches and queries, with the signature of pymilvus' own client. Thread-safe.

    None of its options has a meaning here: every read sees every write. Both raise
    ``MilvusException`` when milvus-lite refuses, and ``ConnectionError`` when the store is closed
    or may not be used.
    """

    def __init__(self, db: MilvusLite, gates: defaultdict[str, Gate], space: Space) -> None:
        self._db = db
        self._gates = gates
        self._space = space
        self._closed = False

    def search(
        self,
        name: str,
        /,
        *,
        data: Sequence[Any],
        anns_field: str,
        filter: str,
        limit: int,
        output_fields: list[str],
        **options: Any,
    ) -> list[list[dict[str, Any]]]:
        """Give the nearest rows, best first, for each of ``data``."""
        with self._inside(name) as collection:
            return [
                nearest(collection, one, anns_field, filter, output_fields, limit) for one in data
            ]

    def query(
        self, name: str, /, *, filter: str, limit: int, output_fields: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """Give rows that pass the filter."""
        with self._inside(name) as collection:
            return matching(collection, filter, output_fields, limit)

    def close(self) -> None:
        """Take no further reads, and wait for those that run."""
        self._closed = True
        for gate in list(self._gates.values()):
            with gate.exclusive():
                pass

    @contextmanager
    def _inside(self, name: str) -> Iterator[Any]:
        with self._gates[name].shared():
            if self._closed or self._space.refusal(write=False):
                raise ConnectionError(self._space.broken or "the embedded store is closed")
            try:
                yield self._db.get_collection(name)
            except Exception as error:
                status = to_status_kwargs(error)  # what its server would say of it
                raise MilvusException(status["code"], status["reason"]) from error

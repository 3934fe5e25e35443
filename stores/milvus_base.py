"""What every part of the Milvus store stands on: the connection, a call, and reading rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import numpy as np
from pymilvus import MilvusClient

from stores.errors import Terminal, UserError
from stores.milvus_errors import CALL_ERRORS, translated
from stores.milvus_meta import ServerKind
from stores.milvus_schema import Layer, collection_name, partition_name
from stores.protocols import Vectors

__all__ = ["MilvusBase", "Reads"]

# pymilvus logs each failed call with a traceback; every failure reaches our caller as an error.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)

_PAGE_ROWS = 2000  # rows read at once: some MB of ordinary atoms
_KEYS = 1000  # keys asked for at once: an expression of 35 kB
_SHORTEST = 1e-12  # a shorter vector has no direction
_OWN_CONNECTION = {"grpc.use_local_subchannel_pool": 1}
"""gRPC lets channels to one address share a connection, and with it the pause of up to two minutes
after a failed attempt: a new client would be refused without a try, though the server is there."""


class Reads(Protocol):
    """Reads that need not be strong; what pymilvus' client has of it."""

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
        ...

    def query(
        self, name: str, /, *, filter: str, limit: int, output_fields: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """Give rows that pass the filter."""
        ...


class MilvusBase:
    """A connection that is opened by the first call, and how calls go through it.

    Its arguments are those of :class:`~stores.milvus.MilvusStore`.
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
        reads: Reads | None = None,
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
        self._reads = reads
        self._observe = observe
        self._connecting = threading.Lock()
        self._connected: tuple[Any, ServerKind] | None = None
        self._absent: frozenset[Layer] = frozenset()  # read as empty

    @property
    def full_text(self) -> bool:
        """False when the server has no BM25: keyword search then finds nothing."""
        return self._server().full_text

    def close(self) -> None:
        """Close the connection. The store cannot be used afterwards."""
        with self._connecting:
            if self._connected is not None:
                self._connected[0].close()
                self._connected = None

    # --- for the parts ----------------------------------------------------------------------

    def _client(self) -> Any:
        return self._connect()[0]

    def _seen(self) -> Reads:
        """Give what reads that need not be strong go through."""
        return self._reads or cast(Reads, self._client())

    def _server(self) -> ServerKind:
        return self._connect()[1]

    def _connect(self) -> tuple[Any, ServerKind]:
        with self._connecting:
            if self._connected is None:
                with self._calling("connect"):
                    client = MilvusClient(
                        self._uri,
                        token=self._token,
                        timeout=self._timeout_s,
                        dedicated=True,  # a shared one stays open when its client is closed
                        grpc_options=_OWN_CONNECTION,
                    )
                    version = str(client.get_server_version(timeout=self._timeout_s))
                self._connected = (client, ServerKind(version))
            return self._connected

    def _name(self, layer: Layer) -> str:
        return collection_name(self._prefix, layer)

    def _partition(self, scope: str) -> str:
        """Name the partition of a scope; empty where that is the server's own affair."""
        return partition_name(scope) if self._server().partitions else ""

    def _looking_in(self, scope: str) -> dict[str, Any]:
        """Say in which partition a read of a scope looks."""
        partition = self._partition(scope)
        return {"partition_names": [partition]} if partition else {}

    def _require_write(self, why: str) -> None:
        if self._refuse_writes:
            message = f"{why}: {self._refuse_writes}"
            raise UserError(message)

    @contextmanager
    def _calling(self, operation: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except CALL_ERRORS as error:
            raise translated(operation, error) from error
        if self._observe is not None:
            self._observe(operation, time.perf_counter() - started)

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

    def _query(
        self,
        layer: Layer,
        expression: str,
        *,
        limit: int,
        scope: str | None = None,
        fields: Sequence[str] = ("record",),
        consistency: str = "Strong",
        paged: bool = False,
    ) -> list[dict[str, Any]]:
        """Read rows; ``paged`` makes them the ones with the smallest keys.

        ``scope`` says whose rows ``expression`` asks for, if only one's.
        """
        if layer in self._absent:
            return []
        # The flags of pymilvus' own iterator. That one is of no use here: on old servers it
        # reads at a time of the client's clock and misses rows just written.
        flags = {"iterator": "True", "reduce_stop_for_best": "True"} if paged else {}
        options = flags | (self._looking_in(scope) if scope is not None else {})
        reads = self._client() if consistency == "Strong" else self._seen()
        rows = reads.query(
            self._name(layer),
            filter=expression,
            limit=limit,
            output_fields=list(fields),
            consistency_level=consistency,
            timeout=self._timeout_s,
            **options,
        )
        return list(rows)

    def _wait_for_writes(self, layer: Layer, within: str, scope: str | None = None) -> None:
        """Wait until what was written before is there for pages.

        Neither kind of read is enough on Milvus 2.3.5. A page is not a strong read: of rows just
        written it gave none. A plain strong read waits for them, but misses a row that is
        written once more at that moment: up to 7 reads of 10 while a writer did nothing else.
        """
        if not self._server().lite:
            self._query(layer, within, limit=1, scope=scope)

    def _pages(
        self,
        layer: Layer,
        scope: str,
        within: str,
        *,
        field: str = "record",
        rows: int | None = None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Read one column of all rows of a scope that pass ``within``, page by page, by key.

        What was written before the first page is there.
        """
        self._wait_for_writes(layer, within, scope)
        limit = rows or _PAGE_ROWS
        last = ""
        while found := self._query(
            layer,
            f'{within} and id > "{last}"',
            limit=limit,
            scope=scope,
            fields=[field],
            paged=True,
        ):
            yield found
            # A page may be a little short and not the last: of a row that is being written two
            # versions may count. One that is half empty is the last.
            if len(found) < limit // 2:
                return
            last = max(row["id"] for row in found)

    def _by_key(
        self, layer: Layer, keys: Sequence[str], *, field: str = "record"
    ) -> dict[str, Any]:
        """Read one column of the rows with these keys (strong); missing rows are left out."""
        found: dict[str, Any] = {}
        for at in range(0, len(keys), _KEYS):
            wanted = ", ".join(f'"{key}"' for key in keys[at : at + _KEYS])
            expression = f"id in [{wanted}]"
            self._wait_for_writes(layer, expression)
            # milvus-lite looks keys up only when nothing else is asked for.
            paged = not self._server().lite
            # Twice the keys: while a row is being written, its old version counts as well.
            rows = self._query(layer, expression, limit=2 * _KEYS, fields=[field], paged=paged)
            found.update((row["id"], row[field]) for row in rows)
        return found

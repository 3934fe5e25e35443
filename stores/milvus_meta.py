"""What a server can do, and what a collection was made with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["SCHEMA_VERSION", "CollectionState", "Meta", "ServerKind", "StoreState"]

SCHEMA_VERSION = 2
"""Grows when a column is added or means something else; 1 had no ``valid_from_ms`` for
atoms, and no profiles."""


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
        Milvus 2.5: on 2.3.5 a filter on the partition key found 308 of 18,000 upserted rows, since
        upserts take another column for it (milvus-io/milvus#30607).
        """
        return not self.lite and self._number() >= (2, 5)

    @property
    def partitions(self) -> bool:
        """True when the store itself spreads scopes over partitions: a server without the key.

        There every search and query that finds anything walks over all unsealed rows it looks
        at, whosever they are: on 2.3.5 some 5 ms for 50,000, in a partition a sixteenth of it.
        """
        return not self.lite and not self.partition_key

    def _number(self) -> tuple[int, int]:
        found = re.match(r"v?(\d+)\.(\d+)", self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


@dataclass(frozen=True, slots=True)
class Meta:
    """What a collection was made with, kept in its properties.

    :arg analyzer: ``jieba`` or ``standard``, and the version of our own terms; ``none`` on a
        server without full-text search.
    :arg schema: the columns, as :data:`SCHEMA_VERSION` counts them.
    :arg partitions: how many the store spreads scopes over; 0 where it leaves that to the server.
    """

    embedding: str
    dimension: int
    analyzer: str
    schema: int = SCHEMA_VERSION
    partitions: int = 0

    def properties(self) -> dict[str, str]:
        """Give the collection properties that hold it."""
        kept = {
            "sediment.embedding": self.embedding,
            "sediment.dimension": str(self.dimension),
            "sediment.analyzer": self.analyzer,
            "sediment.schema": str(self.schema),
        }
        return kept | ({"sediment.partitions": str(self.partitions)} if self.partitions else {})

    @classmethod
    def of(cls, properties: dict[str, Any]) -> Meta | None:
        """Read it back; ``None`` when the collection is not one of Sediment's."""
        try:
            return cls(
                embedding=str(properties["sediment.embedding"]),
                dimension=int(properties["sediment.dimension"]),
                analyzer=str(properties["sediment.analyzer"]),
                schema=int(properties.get("sediment.schema", 1)),  # the first did not say
                partitions=int(properties.get("sediment.partitions", 0)),
            )
        except (KeyError, ValueError):
            return None

    def __str__(self) -> str:
        return (
            f"embedding model {self.embedding}, dimension {self.dimension}, "
            f"analyzer {self.analyzer}, schema {self.schema}"
        ) + (f", {self.partitions} partitions" if self.partitions else "")


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

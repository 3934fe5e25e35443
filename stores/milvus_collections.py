"""The life of the collections: made, verified, described, dropped."""

from __future__ import annotations

import logging
from typing import Any

from pymilvus.exceptions import MilvusException

from stores.errors import StoreMismatch
from stores.milvus_base import MilvusBase
from stores.milvus_meta import SCHEMA_VERSION, CollectionState, Meta, StoreState
from stores.milvus_schema import LAYERS, PARTITIONS, Layer, build_schema, index_params
from stores.terms import TERMS_VERSION

__all__ = ["MilvusCollections"]

logger = logging.getLogger(__name__)


class MilvusCollections(MilvusBase):
    """One collection for each layer, made with the settings of this store."""

    def ensure_collections(self) -> None:
        """Create the collections, or verify that they were made with these settings.

        Nothing is created unless all that are there agree. A missing collection beside others
        is made, empty; only where this store may not write and ``profiles`` alone is missing,
        that layer reads as empty.

        Raises :class:`~stores.errors.StoreMismatch` naming both sides when they do not agree,
        and :class:`~stores.errors.UserError` when they are missing and this store may not write.
        """
        server = self._server()
        if not server.full_text:
            logger.warning(
                "Milvus %s has no full-text search: recall uses vectors only; "
                "Milvus 2.5 or newer has it",
                server.version,
            )
        self._absent = frozenset()
        missing = [layer for layer in LAYERS if not self._verified(layer)]
        if self._refuse_writes and missing == ["profiles"]:
            # Whoever owns the store is of an older release; memories can be recalled all the same.
            logger.warning(
                "collection %s does not exist yet: no scene or persona is found until the "
                "process that owns the store has been updated",
                self._name("profiles"),
            )
            self._absent = frozenset(missing)
            missing = []
        for layer in missing:
            self._create(layer)
        for layer in LAYERS:
            if layer not in self._absent:
                self._load(layer)

    def drop_collections(self) -> None:
        """Delete the collections of this prefix with all rows; missing ones are no error.

        Until the next :meth:`ensure_collections`, reads and writes fail.
        """
        self._require_write("cannot drop collections")
        client = self._client()
        for layer in LAYERS:
            name = self._name(layer)
            with self._calling(f"drop collection {name}"):
                client.drop_collection(name, timeout=self._timeout_s)

    def describe(self) -> StoreState:
        """Say what is there, without changing anything."""
        server = self._server()
        states = []
        for layer in LAYERS:
            with self._calling(f"describe collection {self._name(layer)}"):
                exists = self._exists(layer)
                meta = self._meta_of(layer) if exists else None
            states.append(CollectionState(self._name(layer), exists, meta))
        return StoreState(
            server_version=server.version,
            embedded=server.lite,
            full_text=server.full_text,
            wanted=self._wanted(),
            collections=tuple(states),
        )

    # --- inside -----------------------------------------------------------------------------

    def _wanted(self) -> Meta:
        analyzer = f"{self._analyzer}/{TERMS_VERSION}" if self.full_text else "none"
        partitions = len(PARTITIONS) if self._server().partitions else 0
        return Meta(self._embedding_name, self._dimension, analyzer, partitions=partitions)

    def _exists(self, layer: Layer) -> bool:
        return bool(self._client().has_collection(self._name(layer), timeout=self._timeout_s))

    def _meta_of(self, layer: Layer) -> Meta | None:
        client: Any = self._client()
        description = client.describe_collection(self._name(layer), timeout=self._timeout_s)
        return Meta.of(description.get("properties") or {})

    def _verified(self, layer: Layer) -> bool:
        """Say whether the collection is there; refuse it when it was made otherwise."""
        name = self._name(layer)
        with self._calling(f"open collection {name}"):
            if not self._exists(layer):
                return False
            found = self._meta_of(layer)
        wanted = self._wanted()
        if found == wanted:
            return True
        elsewhere = (
            "fill another collection prefix with `sediment rebuild --collection-prefix NEW` and "
            "set SEDIMENT_COLLECTION_PREFIX=NEW"
        )
        anew = (
            "Fill it anew from the topics with `sediment rebuild --drop-first --yes`, or "
            f"{elsewhere}"
        )
        message = (
            f"collection {name} was made with {found or 'no settings of Sediment'}; "
            f"the settings now say {wanted}. Go back to the old settings, or {elsewhere}"
        )
        if found is not None and found.schema > SCHEMA_VERSION:
            message = (
                f"collection {name} was made by a newer release of Sediment (schema "
                f"{found.schema}; this one knows {SCHEMA_VERSION}). Update Sediment"
            )
        elif found is not None and found.schema < SCHEMA_VERSION:
            message = (
                f"collection {name} was made by an older release of Sediment (schema "
                f"{found.schema}; this one needs {SCHEMA_VERSION}). {anew}"
            )
        elif found is not None and found.partitions < wanted.partitions:
            message = (
                f"collection {name} was made by an older release of Sediment, without partitions "
                f"for scopes. {anew}"
            )
        raise StoreMismatch(message)

    def _create(self, layer: Layer) -> None:
        name = self._name(layer)
        self._require_write(f"collection {name} does not exist yet")
        wanted = self._wanted()
        with self._calling(f"create collection {name}"):
            try:
                self._client().create_collection(
                    name,
                    schema=build_schema(layer, wanted, self._server()),
                    consistency_level="Bounded",
                    properties=wanted.properties(),
                    timeout=self._timeout_s,
                )
            except MilvusException:
                # Another worker may have made it meanwhile; verifying it comes next.
                if not self._exists(layer):
                    raise
        self._verified(layer)

    def _load(self, layer: Layer) -> None:
        client, name = self._client(), self._name(layer)
        with self._calling(f"load collection {name}"):
            # One by one, all of them: a process that was killed between two has left the first.
            if self._server().partitions:
                there = client.list_partitions(name, timeout=self._timeout_s)
                for partition in set(PARTITIONS) - set(there):
                    client.create_partition(name, partition, timeout=self._timeout_s)
            for index in index_params(self._wanted(), self._server()):
                if not client.list_indexes(name, field_name=index.field_name):
                    # Not waited for here: loading waits where a server builds in the background.
                    one = client.prepare_index_params()
                    one.append(index)
                    client.create_index(name, one, timeout=self._timeout_s, sync=False)
            client.load_collection(name, timeout=self._timeout_s)

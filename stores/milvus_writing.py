"""Writing to the collections: upserts and deletions, idempotent by key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from stores.errors import Terminal
from stores.ids import event_key
from stores.milvus_base import MilvusBase
from stores.milvus_schema import (
    Layer,
    atom_pk,
    atom_row,
    event_row,
    profile_row,
    record_key,
    split_requests,
)
from stores.protocols import Vectors
from stores.records import Atom, IndexedEvent, Profile

__all__ = ["MilvusWriting"]

_DELETE_KEYS = 1000  # keys of one request: an expression of 35 kB


class MilvusWriting(MilvusBase):
    """Upserts and deletions. A crash leaves each request done or not; repeat the call."""

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
        self._upsert("events", [event.scope for event in events], rows)

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        """Write atoms, idempotent by (scope, atom id); of equal ids the last one stays.

        Raises as :meth:`upsert_events` does. Up to 1,000 atoms of a scope, and some megabytes, are
        one request: give an atom and the one it supersedes together.
        """
        units = self._unit_vectors([atom.atom_id for atom in atoms], vectors)
        with_text = self.full_text
        rows = [
            atom_row(atom, vector, with_text=with_text)
            for atom, vector in zip(atoms, units, strict=True)
        ]
        self._upsert("atoms", [atom.scope for atom in atoms], rows)

    def upsert_profiles(self, profiles: Sequence[Profile], vectors: Vectors) -> None:
        """Write profiles and take out the deleted ones, idempotent by (scope, kind, path).

        Of equal ones the last one counts. First all is written, then the rest is taken out: a
        crash between may show a merged scene beside those it came from, never none of them.
        Raises as :meth:`upsert_events` does; the vector of a deleted one is not looked at.
        """
        if len(vectors) != len(profiles):
            message = f"{len(profiles)} rows need as many vectors; got shape {vectors.shape}"
            raise Terminal(message)
        last = {record_key(profile): at for at, profile in enumerate(profiles)}
        kept = [at for at in last.values() if not profiles[at].deleted]
        units = self._unit_vectors([profiles[at].profile_id for at in kept], vectors[kept])
        with_text = self.full_text
        rows = [
            profile_row(profiles[at], vector, with_text=with_text)
            for at, vector in zip(kept, units, strict=True)
        ]
        self._upsert("profiles", [profiles[at].scope for at in kept], rows)
        self._delete("profiles", [key for key, at in last.items() if profiles[at].deleted])

    def delete_events(self, scope: str, event_ids: Sequence[str]) -> None:
        """Delete events with text and vectors; those that are not there are no error.

        They are gone for the next strong read, and for searches as soon as a write is.
        """
        self._delete("events", [event_key(scope, event_id) for event_id in event_ids])

    def delete_atoms(self, scope: str, atom_ids: Sequence[str]) -> None:
        """Delete atoms; as :meth:`delete_events`."""
        self._delete("atoms", [atom_pk(scope, atom_id) for atom_id in atom_ids])

    # --- inside -----------------------------------------------------------------------------

    def _upsert(self, layer: Layer, scopes: Sequence[str], rows: list[dict[str, Any]]) -> None:
        """Write rows, each of the scope beside it."""
        self._require_write("cannot write")
        if not rows:
            return
        # By key: a server refuses, or doubles, a key that comes twice in one request.
        by_partition: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for scope, row in zip(scopes, rows, strict=True):
            by_partition[self._partition(scope)][row["id"]] = row
        with self._calling(f"upsert_{layer}"):
            for partition, unique in by_partition.items():
                for request in split_requests(list(unique.values())):
                    self._client().upsert(
                        self._name(layer),
                        request,
                        partition_name=partition,
                        timeout=self._timeout_s,
                    )

    def _delete(self, layer: Layer, keys: Sequence[str]) -> None:
        self._require_write("cannot delete")
        if not keys:
            return
        with self._calling(f"delete_{layer}"):
            for at in range(0, len(keys), _DELETE_KEYS):
                part = list(keys[at : at + _DELETE_KEYS])
                self._client().delete(self._name(layer), ids=part, timeout=self._timeout_s)

"""Several rows as one write: all of them in the end, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import orjson

from stores.ids import scope_hash
from stores.protocols import AtomStore, Embedder, UnfinishedWrites, Vectors
from stores.records import Atom

__all__ = ["scope_atoms", "to_finish", "write_whole"]

_VERSION = 1
_log = logging.getLogger(__name__)


def write_whole(
    store: AtomStore,
    unfinished: UnfinishedWrites,
    scope: str,
    atoms: Sequence[Atom],
    vectors: Vectors,
) -> None:
    """Write atoms of one scope, so that :func:`scope_atoms` can end it after a crash. Blocking.

    One row alone is there or not, and needs no note. Raises what the parts raise; the scope
    must then be read anew before anything else is decided about it.
    """
    if len(atoms) == 1:
        store.upsert_atoms(atoms, vectors)
        return
    rows = ",".join(atom.model_dump_json() for atom in atoms)
    unfinished.put(scope, f'{{"v":{_VERSION},"atoms":[{rows}]}}'.encode())
    store.upsert_atoms(atoms, vectors)
    unfinished.clear(scope)


async def scope_atoms(
    store: AtomStore, unfinished: UnfinishedWrites, embedder: Embedder, scope: str
) -> list[Atom]:
    """Read a scope's atoms; before that, end the write that was cut, if there is one.

    Raises what the parts raise; then it can be called again.
    """
    held, note = await asyncio.to_thread(_read, store, unfinished, scope)
    if note is None:
        return held
    said = orjson.loads(note)
    rows = [Atom.model_validate(row) for row in said["atoms"]] if said["v"] == _VERSION else []
    left = to_finish(held, rows)
    if left:
        _log.info("scope %s: writing %d of %d rows of a write that was cut", scope_hash(scope),
                  len(left), len(rows))  # fmt: skip
        vectors = await embedder.embed_passages([atom.search_text() for atom in left])
        await asyncio.to_thread(store.upsert_atoms, left, vectors)
        held = await asyncio.to_thread(store.atoms_of, scope)
    await asyncio.to_thread(unfinished.clear, scope)
    return held


def _read(
    store: AtomStore, unfinished: UnfinishedWrites, scope: str
) -> tuple[list[Atom], bytes | None]:
    return store.atoms_of(scope), unfinished.get(scope)


def to_finish(held: Sequence[Atom], rows: Sequence[Atom]) -> list[Atom]:
    """Give the rows of a cut write that the store does not have.

    None when it has none of them, for then nothing was done, and what is asked again gives the
    same. None when a row is neither as it was before the write nor as it is after it: then the
    note is of another time, such as of a store that was emptied since.
    """
    now = {atom.atom_id: atom for atom in held}
    left = [row for row in rows if now.get(row.atom_id) != row]
    before = all(
        row.version == (now[row.atom_id].version if row.atom_id in now else 0) + 1 for row in left
    )
    return left if before and len(left) < len(rows) else []

"""Several rows as one write: all of them in the end, whatever happens in between.

Writes of several scopes go to the store together; each stays whole by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from stores.errors import Transient
from stores.ids import scope_hash
from stores.protocols import AtomStore, Embedder, UnfinishedWrites, Vectors
from stores.records import Atom

__all__ = ["Write", "scope_atoms", "to_finish", "write_whole"]

_VERSION = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Write:
    """What one window writes: atoms of one scope, one with those it supersedes, and their vectors.

    One row alone is there or not. Several need a note, so that :func:`scope_atoms` can end the
    write after a crash; whoever asked must then read the scope anew before anything else is
    decided about it.
    """

    atoms: Sequence[Atom]
    vectors: Vectors

    @property
    def scope(self) -> str:
        """Whose atoms they are."""
        return self.atoms[0].scope


def write_whole(
    store: AtomStore, unfinished: UnfinishedWrites, writes: Sequence[Write]
) -> list[Exception | None]:
    """Write what windows of different scopes ask for, in one call. Blocking.

    Gives for each the error that the parts raised. One that waiting may mend is that of all;
    else each is tried by itself, so that a row which is refused harms its own window alone.
    """
    try:
        _write_at_once(store, unfinished, writes)
    except Transient as error:
        return [error] * len(writes)
    except Exception as error:
        if len(writes) == 1:
            return [error]
        return [failed for one in writes for failed in write_whole(store, unfinished, [one])]
    return [None] * len(writes)


def _write_at_once(store: AtomStore, unfinished: UnfinishedWrites, writes: Sequence[Write]) -> None:
    notes = {one.scope: _note(one.atoms) for one in writes if len(one.atoms) > 1}
    if notes:
        unfinished.put(notes)
    atoms = [atom for one in writes for atom in one.atoms]
    store.upsert_atoms(atoms, np.concatenate([one.vectors for one in writes]))
    if notes:
        unfinished.clear(list(notes))


def _note(atoms: Sequence[Atom]) -> bytes:
    rows = ",".join(atom.model_dump_json() for atom in atoms)
    return f'{{"v":{_VERSION},"atoms":[{rows}]}}'.encode()


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
    await asyncio.to_thread(unfinished.clear, [scope])
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

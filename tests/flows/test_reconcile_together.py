"""Windows of several scopes that are ready at once: one call of the store, and each by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flows.reconcile import NewAtoms, Reconciler, StoredAtoms
from flows.reconcile.whole import scope_atoms
from stores.errors import OversizedInput, ServiceUnavailable
from stores.protocols import Vectors
from stores.records import Atom
from stores.unfinished_files import UnfinishedInFiles
from tests.flows.reconcile_rig import MemoryStore, Words, down, item
from tests.rig.events import atom
from tests.rig.still import StillClock

SCOPES = tuple(f"acme/helper/u{number}" for number in range(20))


def _windows() -> list[NewAtoms]:
    windows = []
    for scope in SCOPES:
        atoms = [
            atom(f"{name} of {scope}", f"User likes {name}", sources=("e1",), scope=scope)
            for name in ("tea", "rice")
        ]
        one = item(*atoms)
        windows.append(replace(one, window=replace(one.window, scope=scope)))
    return windows


def _at_once(work: Reconciler, windows: Sequence[NewAtoms]) -> list[StoredAtoms | BaseException]:
    async def all_of_them() -> list[StoredAtoms | BaseException]:
        for one in windows:  # what is read before comes back at moments of its own
            await work([replace(one, atoms=())], None)
        asked = (work([one], None) for one in windows)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [one if isinstance(one, BaseException) else one[0] for one in found]

    return asyncio.run(all_of_them())


class Picky(MemoryStore):
    """Refuses a write with a row of one scope in it, or is away after the first rows of it."""

    refused = ""
    rows_left: int | None = None

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        if self.refused and any(one.scope == self.refused for one in atoms):
            message = "too large"
            raise OversizedInput(message)
        left, self.rows_left = self.rows_left, None
        super().upsert_atoms(atoms[:left], vectors[:left])
        if left is not None:
            raise down()


def test_writes_of_several_scopes_go_to_the_store_together() -> None:
    store = Picky()
    results = _at_once(Reconciler(store, Words(), StillClock()), _windows())
    assert [isinstance(one, StoredAtoms) for one in results] == [True] * 20
    assert (store.writes, len(store.atoms)) == (2, 40)
    for one in store.atoms.values():
        assert (store.vectors[one.atom_id] == asyncio.run(Words().embed_query(one.text))).all()


def test_a_row_that_the_store_refuses_harms_its_own_window_alone() -> None:
    store = Picky()
    store.refused = SCOPES[3]
    results = _at_once(Reconciler(store, Words(), StillClock()), _windows())
    assert [number for number, one in enumerate(results) if isinstance(one, OversizedInput)] == [3]
    assert {one.scope for one in store.atoms.values()} == set(SCOPES) - {SCOPES[3]}


@pytest.mark.parametrize("rows", range(6))
def test_killed_in_a_write_of_several_scopes_each_is_whole_again(rows: int, tmp_path: Path) -> None:
    store, notes = Picky(), UnfinishedInFiles(tmp_path / "unfinished")
    store.rows_left = rows
    windows = _windows()[:3]
    failed = _at_once(Reconciler(store, Words(), StillClock(), unfinished=notes), windows)
    assert [type(one) for one in failed] == [ServiceUnavailable] * 3
    for place, scope in enumerate(SCOPES[:3]):
        held = asyncio.run(scope_atoms(store, notes, Words(), scope))
        # Of a scope of which nothing was written nothing is: its window comes again.
        assert len(held) == (2 if rows > 2 * place else 0)
        assert notes.get(scope) is None
    again = _at_once(Reconciler(store, Words(), StillClock(), unfinished=notes), windows)
    assert [len(one.touched) for one in again if isinstance(one, StoredAtoms)] == [2, 2, 2]
    assert len(store.atoms) == 6

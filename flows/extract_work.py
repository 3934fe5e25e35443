"""Work of the extract stage: one window, one extraction, atoms that are not yet reconciled."""

from __future__ import annotations

from collections.abc import Sequence

from flows.extract import atoms_of_extraction
from flows.reconcile import NewAtoms
from stores.protocols import Extractor
from stores.records import Window

__all__ = ["ExtractWork"]


class ExtractWork:
    """Runs an extractor on windows. Depends on each window alone, so any number may run at once."""

    def __init__(self, extractor: Extractor) -> None:
        """``extractor`` decides how long one call takes and what can go wrong."""
        self._extractor = extractor

    async def __call__(self, items: Sequence[Window], previous_error: str | None) -> list[NewAtoms]:
        """Extract from each window, in order. Raises what the extractor raises."""
        return [await self._one(window, previous_error) for window in items]

    async def _one(self, window: Window, previous_error: str | None) -> NewAtoms:
        extraction = await self._extractor.extract(window, previous_error)
        atoms = atoms_of_extraction(window, extraction, self._extractor.version)
        return NewAtoms(window, atoms, extraction.refused, attempts=1)

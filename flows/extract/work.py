"""Work of the extract stage: one window, one extraction, atoms that are not yet reconciled."""

from __future__ import annotations

from collections.abc import Sequence

from flows.reconcile import NewAtoms
from stores.ids import content_id
from stores.protocols import Extractor
from stores.records import Atom, Extraction, Window

__all__ = ["ExtractWork", "atoms_of_extraction"]


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


def atoms_of_extraction(
    window: Window, extraction: Extraction, extractor_version: str
) -> tuple[Atom, ...]:
    """Turn what an extractor found in ``window`` into atoms, in the extractor's order.

    Ids come from the window, the ordinal and the extractor's version: the same extraction gives
    the same atoms. An atom holds from when its newest source was said. Raises ``KeyError`` when
    a memory names a source that is not an event of the window.
    """
    said_at = {sourced.event.event_id: sourced.occurred_at for sourced in window.events}
    atoms: list[Atom] = []
    for ordinal, memory in enumerate(extraction.memories):
        occurred_at = max(said_at[event_id] for event_id in memory.source_event_ids)
        atoms.append(
            Atom(
                atom_id=content_id("atom", window.window_id, str(ordinal), extractor_version),
                scope=window.scope,
                session_id=window.session_id,
                type=memory.type,
                text=memory.text,
                priority=memory.priority,
                slot=memory.slot,
                source_event_ids=memory.source_event_ids,
                window_id=window.window_id,
                extractor=extractor_version,
                occurred_at=occurred_at,
                activity_start=memory.activity_start,
                activity_end=memory.activity_end,
                valid_from=occurred_at,
            )
        )
    return tuple(atoms)

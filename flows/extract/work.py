"""Work of the extract stage: one window, one extraction, atoms that are not yet reconciled."""

from __future__ import annotations

from collections.abc import Sequence

from flows.forget.request import Forgetting, is_edit, without_forgotten
from flows.gate import Gate, Passed
from flows.gate.naming import named
from flows.reconcile import Leaving, NewAtoms
from stores.ids import content_id
from stores.protocols import Extractor, KeptOut
from stores.records import Atom, Extraction, Memory, Window
from stores.requests import PERSON
from stores.tombstones import NothingKeptOut

__all__ = ["ExtractWork", "atoms_of_extraction", "atoms_of_memories"]


class ExtractWork:
    """Runs an extractor on windows. Depends on each window alone, so any number may run at once."""

    def __init__(
        self, extractor: Extractor, gate: Gate | None = None, kept_out: KeptOut | None = None
    ) -> None:
        """``extractor`` decides how long one call takes and what can go wrong.

        :arg gate: what its memories pass before they are atoms; the default one when not given.
        :arg kept_out: what is taken out of a window before it is looked at.
        """
        self._extractor = extractor
        self._gate = gate or Gate()
        self._kept_out = NothingKeptOut() if kept_out is None else kept_out

    async def __call__(
        self, items: Sequence[Window | Forgetting | Leaving], previous_error: str | None
    ) -> list[NewAtoms | Forgetting | Leaving]:
        """Extract from each window, in order; requests, and windows that leave, pass as they are.

        Raises what the extractor and the gate raise. Of a window that was forgotten as a whole
        nobody is asked: the result has a window without events.
        """
        return [
            item
            if isinstance(item, (Forgetting, Leaving))
            else await self._one(item, previous_error)
            for item in items
        ]

    async def _one(self, window: Window, previous_error: str | None) -> NewAtoms:
        window = without_forgotten(window, self._kept_out)
        if not window.events:
            return NewAtoms(window, (), (), attempts=1)
        if is_edit(window):
            version, extraction = PERSON, _edited(window)
        else:
            version = self._extractor.version
            extraction = await self._extractor.extract(window, previous_error)
        gated = await self._gate.check(window, extraction)
        atoms = atoms_of_memories(window, gated.passed, version)
        return NewAtoms(window, atoms, gated.refused, attempts=1)


def _edited(window: Window) -> Extraction:
    """Give the text of a person's edit; type, slot and priority become those of the edited atom."""
    event = window.events[0].event
    text = " ".join(event.text().split())
    return Extraction((Memory(text, "persona", 50, (event.event_id,)),))


def atoms_of_extraction(
    window: Window, extraction: Extraction, extractor_version: str
) -> tuple[Atom, ...]:
    """Turn what an extractor found in ``window`` into atoms, without a gate between."""
    passed = [Passed(memory, str(place)) for place, memory in enumerate(extraction.memories)]
    return atoms_of_memories(window, passed, extractor_version)


def atoms_of_memories(
    window: Window, passed: Sequence[Passed], extractor_version: str
) -> tuple[Atom, ...]:
    """Turn the memories of ``window`` that passed the gate into atoms, in their order.

    Ids come from the window, the ordinal and the version of what made the memory: the same
    extraction gives the same atoms. An atom holds from when its newest source was said. Raises
    ``KeyError`` when a memory names a source that is not an event of the window.
    """
    said_at = {sourced.event.event_id: sourced.occurred_at for sourced in window.events}
    atoms: list[Atom] = []
    for one in passed:
        memory = one.memory
        version = f"{extractor_version}+{one.made_by}" if one.made_by else extractor_version
        occurred_at = max(said_at[event_id] for event_id in memory.source_event_ids)
        atoms.append(
            Atom(
                atom_id=content_id("atom", window.window_id, one.ordinal, version),
                scope=window.scope,
                session_id=window.session_id,
                type=memory.type,
                text=named(memory.text, memory.said_by),
                priority=memory.priority,
                slot=memory.slot,
                source_event_ids=memory.source_event_ids,
                window_id=window.window_id,
                extractor=version,
                occurred_at=occurred_at,
                activity_start=memory.activity_start,
                activity_end=memory.activity_end,
                valid_from=occurred_at,
                valid_until=memory.valid_until,
                said_by=memory.said_by,
                scene=memory.scene,
                details=dict(memory.details),
                warnings=memory.warnings,
            )
        )
    return tuple(atoms)

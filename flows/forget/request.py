"""A forget or reject request inside the flow, and the tombstone that it becomes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stores.protocols import KeptOut
from stores.records import SourcedEvent, Tombstone, Window

__all__ = ["Forgetting", "is_edit", "is_request", "without_forgotten"]


def is_request(sourced: SourcedEvent) -> bool:
    """Say whether an event asks to forget or to reject."""
    return sourced.event.type in ("forget", "reject")


def is_edit(window: Window) -> bool:
    """Say whether a window is a person's edit of an atom: one event, whose content counts."""
    return bool(window.events) and window.events[0].event.type == "edit"


def without_forgotten(window: Window, kept_out: KeptOut) -> Window:
    """Give a window without the events and background that were forgotten since it was cut."""
    events = tuple(one for one in window.events if not kept_out.covers_event(one))
    background = tuple(one for one in window.background if not kept_out.covers_event(one))
    if (len(events), len(background)) == (len(window.events), len(window.background)):
        return window
    return replace(window, events=events, background=background)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """A request on its way through the stages, in the order of its scope.

    :arg sourced: the request itself, an event of type ``forget`` or ``reject``.
    :arg tombstone: what it keeps out. When it reaches the reconcile stage it is complete: of a
        ``forget``, ``event_keys`` holds the key of every event that goes, ``atom_ids`` every atom
        that nothing is left to stand on; of a ``reject``, ``text_keys`` holds the value.
    """

    sourced: SourcedEvent
    tombstone: Tombstone

    @property
    def scope(self) -> str:
        """Whose memory it is about."""
        return self.sourced.scope

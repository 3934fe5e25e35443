"""What goes into the reconcile stage and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from flows.async_stage import Failed
from stores.records import Atom, RefusedMemory, Tombstone, Window

__all__ = [
    "ACTIONS",
    "REFUSALS",
    "Action",
    "Applied",
    "Decision",
    "Leaving",
    "NewAtoms",
    "StoredAtoms",
]

REFUSALS: dict[str, str] = {
    "rejected_value": "a person marked the value as wrong; it landed on what was rejected",
    "forgotten": "everything the memory stands on was forgotten meanwhile",
    "unknown_atom": "an edit names an atom that the scope does not have, or that was rejected",
}
"""Why a new atom can be refused here, by reason code."""

Action = Literal["store", "skip", "update", "merge", "retract"]
ACTIONS: tuple[Action, ...] = ("store", "skip", "update", "merge", "retract")


@dataclass(frozen=True, slots=True)
class NewAtoms:
    """What extraction gave for one window, on its way into the store."""

    window: Window
    atoms: tuple[Atom, ...]
    refused: tuple[RefusedMemory, ...]
    attempts: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """A window that has ended already, and waits behind those before it with its outcome.

    Stages pass it on as it is: so the outcomes of a scope keep the order of its windows.

    :arg failed: why extraction gave it up; ``None`` when no user said anything in it.
    """

    window: Window
    failed: Failed[Any] | None = None


@dataclass(frozen=True, slots=True)
class StoredAtoms:
    """A window whose atoms are in the store, or a forget or reject request carried out.

    :arg touched: every atom it made or changed, older ones included, as they are now.
    :arg newer: see :class:`Applied`.
    :arg removed: ids of the atoms that are gone, of a forget request.
    :arg refused: new atoms that were refused here; reasons are those of :data:`REFUSALS`.
    :arg tombstone: of a forget or reject request: its tombstone, with the atoms that were
        removed and the keys of the values that were rejected.
    """

    touched: tuple[Atom, ...]
    removed: tuple[str, ...] = ()
    refused: tuple[RefusedMemory, ...] = ()
    tombstone: Tombstone | None = None
    newer: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one new atom.

    :arg targets: ids of the atoms it is about.
    :arg text: the text that takes the place of new atom and targets; ``None``: the atom's own.
    """

    action: Action
    targets: tuple[str, ...] = ()
    text: str | None = None


class Applied(NamedTuple):
    """What a window's atoms did, each atom once and in its final state.

    :arg touched: every atom the window makes, adds to or supersedes; the same ones when it was
        applied before. These are produced.
    :arg changed: those of them that the store does not hold like this yet.
    :arg refused: new atoms that were refused.
    :arg results: what became of the new atoms, in words of the metric ``sediment_reconciled``.
    :arg newer: ids of touched atoms that other windows put in the place of this one's. Who applies
        a window again after a kill may find more of them than there were, so what is made of a
        window does not name them.
    """

    touched: tuple[Atom, ...]
    changed: tuple[Atom, ...]
    refused: tuple[RefusedMemory, ...] = ()
    results: tuple[str, ...] = ()
    newer: frozenset[str] = frozenset()

"""What two generations remember differently. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.reconcile import normalised
from stores.records import Atom

__all__ = ["Changed", "Difference", "compare"]

_IDS = frozenset({"atom_id", "window_id", "extractor", "superseded_by", "supersedes"})
"""Fields that differ wherever an atom has another id, and say nothing about what it tells."""
_BOOKKEEPING = frozenset({"version"})


@dataclass(frozen=True, slots=True)
class Changed:
    """The same statement in both, told differently. ``fields`` are named in a fixed order."""

    before: Atom
    after: Atom
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """What it takes to get from one generation's atoms to another's, by scope and time.

    :arg same: atoms that stand in both, equal in all that they tell.
    """

    added: tuple[Atom, ...]
    gone: tuple[Atom, ...]
    changed: tuple[Changed, ...]
    same: int


def compare(before: Iterable[Atom], after: Iterable[Atom]) -> Difference:
    """Match atoms by id, the rest by scope, type and normalised text, in order of time.

    An atom found by its text has other ids by nature: those are not counted as a change.
    """
    old = {atom.atom_id: atom for atom in before}
    new = {atom.atom_id: atom for atom in after}
    pairs = [(old.pop(one), new.pop(one)) for one in sorted(old.keys() & new.keys())]
    changed, same = _judge(pairs, _BOOKKEEPING)
    by_text, unmatched_old, unmatched_new = _pair_by_text(old, new)
    told_otherwise, same_text = _judge(by_text, _BOOKKEEPING | _IDS)
    return Difference(
        added=_ordered(unmatched_new),
        gone=_ordered(unmatched_old),
        changed=tuple(sorted((*changed, *told_otherwise), key=lambda one: _order(one.before))),
        same=same + same_text,
    )


def _pair_by_text(
    old: Mapping[str, Atom], new: Mapping[str, Atom]
) -> tuple[list[tuple[Atom, Atom]], list[Atom], list[Atom]]:
    waiting: dict[tuple[str, str, str], list[Atom]] = defaultdict(list)
    for atom in reversed(_ordered(old.values())):
        waiting[_statement(atom)].append(atom)
    pairs, added = [], []
    for atom in _ordered(new.values()):
        if candidates := waiting[_statement(atom)]:
            pairs.append((candidates.pop(), atom))
        else:
            added.append(atom)
    return pairs, [atom for left in waiting.values() for atom in left], added


def _statement(atom: Atom) -> tuple[str, str, str]:
    return atom.scope, atom.type, normalised(atom.text)


def _judge(
    pairs: Iterable[tuple[Atom, Atom]], passed_over: frozenset[str]
) -> tuple[list[Changed], int]:
    changed, same = [], 0
    for before, after in pairs:
        fields = tuple(
            name
            for name in Atom.model_fields
            if name not in passed_over and getattr(before, name) != getattr(after, name)
        )
        if fields:
            changed.append(Changed(before, after, fields))
        else:
            same += 1
    return changed, same


def _order(atom: Atom) -> tuple[object, ...]:
    return atom.scope, atom.occurred_at, atom.atom_id


def _ordered(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
    return tuple(sorted(atoms, key=_order))

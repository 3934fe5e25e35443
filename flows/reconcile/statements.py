"""What an atom stands on, and what two of them come to when they become one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, product

from stores.ids import content_id
from stores.records import Atom

__all__ = ["composed", "is_composed", "said_again", "statements_of"]

_COMPOSER = "reconcile/"
_MOST_STATEMENTS = 32


def statements_of(atom: Atom) -> tuple[tuple[str, ...], ...]:
    """Give the event ids of each time it was said; it stands on any one of them.

    The first one is that of the window which made the atom.
    """
    return atom.statements or (atom.source_event_ids,)


def said_again(unit: Atom, atom: Atom) -> Atom:
    """Let ``unit`` stand for ``atom`` as well.

    It then holds from the first statement to at least the newest. One that has ended, or that a
    person rejected, gets the statement and nothing else.
    """
    known = statements_of(unit)
    new = tuple(said for said in statements_of(atom) if said not in known)
    if not new:
        return unit
    changed: dict[str, object] = {
        "statements": known + new,
        "source_event_ids": _in_order((*unit.source_event_ids, *atom.source_event_ids)),
    }
    if unit.status != "rejected":
        changed["occurred_at"] = max(unit.occurred_at, atom.occurred_at)
        changed["valid_from"] = min(unit.valid_from, atom.valid_from)
    if unit.status == "active":
        ends = [one.valid_until for one in (unit, atom) if one.valid_until is not None]
        changed["valid_until"] = max(ends, default=None)
        changed["slot"] = unit.slot or atom.slot
    return unit.model_copy(update=changed)


def composed(
    atom: Atom, targets: Sequence[Atom], text: str, *, composer: str, merged: bool
) -> Atom:
    """Make the atom that says what ``atom`` and ``targets`` say together, in a model's words.

    Its text may hold something of each, so it stands only as long as a statement of every one
    of them does: each of its statements joins one of each. The parts keep their own rows, and
    take over again when it goes. Its id comes from theirs.

    :arg composer: version of the prompt, and the model.
    :arg merged: they hold side by side; otherwise ``atom`` takes the place of the targets.
    """
    parts = [*targets, atom]
    slots = {part.slot for part in targets if part.slot}
    joined = (
        _in_order(event_id for said in chosen for event_id in said)
        for chosen in product(*(statements_of(part) for part in parts))
    )
    ends = [part.valid_until for part in parts if part.valid_until is not None]
    return atom.model_copy(
        update={
            "atom_id": content_id("composed", *(part.atom_id for part in parts), text, composer),
            "text": text,
            "extractor": f"{_COMPOSER}{composer.removeprefix(_COMPOSER)}",
            "priority": _priority(parts) if merged else atom.priority,
            "slot": atom.slot or (slots.pop() if len(slots) == 1 else None),
            "source_event_ids": _in_order(
                event_id for part in parts for event_id in part.source_event_ids
            ),
            # Capped: fewer ways to stand means that it goes earlier, never later.
            "statements": tuple(islice(dict.fromkeys(joined), _MOST_STATEMENTS)),
            "details": {key: part.details[key] for part in parts for key in part.details},
            "activity_start": atom.activity_start or _first(targets, "activity_start", merged),
            "activity_end": atom.activity_end or _first(targets, "activity_end", merged),
            "valid_until": (max(ends) if len(ends) == len(parts) else None)
            if merged
            else atom.valid_until,
            "status": "active",
            "superseded_by": None,
            "supersedes": tuple(part.atom_id for part in reversed(parts)),
            "version": 1,
        }
    )


def is_composed(atom: Atom) -> bool:
    """Say whether reconcile made it out of others."""
    return atom.extractor.startswith(_COMPOSER)


def _priority(parts: Sequence[Atom]) -> int:
    given = [part.priority for part in parts]
    return -1 if -1 in given else max(given)  # a strict instruction stays strict


def _first(targets: Sequence[Atom], name: str, merged: bool) -> object:
    given = [getattr(target, name) for target in targets]
    return next((value for value in given if value is not None), None) if merged else None


def _in_order(event_ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(event_ids))

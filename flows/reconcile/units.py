"""The atoms of one scope in memory: how they are found, and who takes whose place when.

What ends an atom is one of four things:

- **A value that was said later.** Atoms with the same slot, or of which one denies the other,
  stand in one timeline, by the time they were last said. Each ends where the next one of the same
  person begins: what Bo says of his home is nothing to Ana's. Who gives no name may be either.
  The timeline is a function of the atoms in it, so it does not matter in which order they came.
- **A decision of the model.** The atom that took the place lists it in ``supersedes``. It stays
  ended for as long as that one is there.
- **Its own end** (``valid_until``) lies behind the scope's event time: ``stale``.
- **A person** rejected it. Nothing brings it back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import TypeVar

from flows.reconcile.sameness import polarity, same_key
from flows.reconcile.statements import is_composed, statements_of
from stores.records import Atom
from stores.speakers import people_of
from stores.value_keys import value_keys

__all__ = ["Units", "is_void"]

K = TypeVar("K")
_LAST_ID = "\U0010ffff"


def is_void(atom: Atom) -> bool:
    """Say whether it is a bare retraction: it holds for no time, and only ends others."""
    return (
        atom.status == "stale"
        and atom.superseded_by is None
        and atom.valid_until is not None
        and atom.valid_until <= atom.valid_from
    )


class Units:
    """Atoms with their indexes. Changes are collected between :meth:`begin` and :meth:`finish`."""

    def __init__(self, atoms: Iterable[Atom] = ()) -> None:
        """Begin with what the store holds."""
        self.clock: datetime | None = None
        self._by_id: dict[str, Atom] = {}
        self._same: dict[tuple[str, str], list[str]] = {}
        self._timelines: dict[str, dict[str, None]] = {}
        self._retired: dict[str, dict[str, None]] = {}
        self._listing: dict[str, dict[str, None]] = {}
        self._said_again: dict[tuple[str, ...], list[str]] = {}
        self._rejected: dict[str, str] = {}
        self._ends: list[tuple[datetime, str]] = []
        self._before: dict[str, Atom | None] = {}
        for atom in atoms:
            self.put(atom)
        self._before.clear()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Atom]:
        return iter(self._by_id.values())

    def get(self, atom_id: str) -> Atom | None:
        """Give an atom as it is now."""
        return self._by_id.get(atom_id)

    # --- finding ----------------------------------------------------------------------------

    def home_of(self, atom: Atom) -> Atom | None:
        """Give the atom that says the same and may stand for ``atom`` too; ``None`` without one.

        One that has ended stands for what was said before its end, and for nothing later: a
        value that comes back is a new atom.
        """
        same = [
            unit
            for unit in self.same_text(atom)
            if unit.slot == atom.slot or unit.slot is None or atom.slot is None
        ]
        if not same:
            return None
        said = statements_of(atom)
        for unit in same:
            if set(said) <= set(statements_of(unit)):
                return unit  # taken in before, by a run that was killed after it
        for unit in same:
            if unit.status == "rejected":
                return unit
        # First the one with the very slot; then in order of time.
        same.sort(key=lambda unit: (unit.slot != atom.slot, unit.valid_from, unit.atom_id))
        for unit in same:
            if unit.status == "active":
                return (
                    unit if atom.occurred_at >= unit.valid_from else self._ended(same, atom, unit)
                )
        return self._ended(same, atom, None)

    def _ended(self, same: list[Atom], atom: Atom, otherwise: Atom | None) -> Atom | None:
        for unit in same:
            ended = unit.status != "active" and unit.valid_until is not None
            if ended and not is_void(unit) and atom.occurred_at < unit.valid_until:  # type: ignore[operator]
                return unit
        return otherwise

    def rejected_as(self, text: str) -> Atom | None:
        """Give the rejected atom with this value, whatever it is disguised as."""
        if not self._rejected:
            return None
        for key in value_keys("", text):
            if key in self._rejected:
                return self._by_id[self._rejected[key]]
        return None

    def same_text(self, atom: Atom) -> list[Atom]:
        """Give the atoms with the type and the text of ``atom``, ended ones included."""
        return [self._by_id[other] for other in self._same.get(_sameness(atom), ())]

    def with_value(self, text: str) -> list[Atom]:
        """Give all atoms with this value. Looks at every atom: for what people ask, not flows."""
        wanted = set(value_keys("", text))
        key = same_key(text)
        return [
            unit
            for unit in self
            if same_key(unit.text) == key or wanted.intersection(value_keys("", unit.text))
        ]

    def absorbed_by(self, atom: Atom) -> list[Atom]:
        """Give the atoms that others of a window were added to, with the sources of ``atom``."""
        holders = self._said_again.get(statements_of(atom)[0], ())
        return [self._by_id[holder] for holder in holders]

    def retired_by(self, atom_id: str) -> list[Atom]:
        """Give the atoms whose place it took."""
        return [self._by_id[other] for other in self._retired.get(atom_id, ())]

    def listing(self, atom_id: str) -> list[Atom]:
        """Give the atoms that say they took its place."""
        return [self._by_id[other] for other in self._listing.get(atom_id, ())]

    # --- changing ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to collect changes."""
        self._before.clear()

    def changes(self) -> list[Atom]:
        """End a change: give the atoms that are not as they were, each a version further."""
        for atom_id, before in list(self._before.items()):
            if before is not None and before.status == "active":
                self._list_at_the_end(atom_id)
        changed = []
        for atom_id, before in list(self._before.items()):
            now = self._by_id.get(atom_id)
            if now is None or (before is not None and now == before):
                continue
            if before is not None:
                now = now.model_copy(update={"version": before.version + 1})
                self._by_id[atom_id] = now
            changed.append(now)
        self._before.clear()
        return changed

    def _list_at_the_end(self, atom_id: str) -> None:
        """Let the active atom at the end of the chain list one that was active until now.

        A reader who sees the end of it and not yet the rest then shows only one of them.
        """
        unit = end = self._by_id.get(atom_id)
        seen: set[str] = set()
        while end is not None and end.status != "active" and end.atom_id not in seen:
            seen.add(end.atom_id)
            end = self._by_id.get(end.superseded_by or "")
        if end is None or end is unit or end.status != "active" or atom_id in end.supersedes:
            return
        self.put(end.model_copy(update={"supersedes": (*end.supersedes, atom_id)}))

    def put(self, atom: Atom) -> None:
        """Write an atom, new or changed."""
        old = self._by_id.get(atom.atom_id)
        if old is not None and old == atom:
            return
        self._before.setdefault(atom.atom_id, old)
        if old is not None:
            self._take_out(old)
        self._by_id[atom.atom_id] = atom
        self._same.setdefault(_sameness(atom), []).append(atom.atom_id)
        name = _timeline_of(atom)
        if name is not None:
            self._timelines.setdefault(name, {})[atom.atom_id] = None
        if atom.superseded_by is not None:
            self._retired.setdefault(atom.superseded_by, {})[atom.atom_id] = None
        for other in atom.supersedes:
            self._listing.setdefault(other, {})[atom.atom_id] = None
        for said in statements_of(atom)[1:]:
            self._said_again.setdefault(said, []).append(atom.atom_id)
        if atom.status == "rejected":
            for key in value_keys("", atom.text):
                self._rejected.setdefault(key, atom.atom_id)
        if atom.valid_until is not None and atom.status == "active":
            insort(self._ends, (atom.valid_until, atom.atom_id))
        self.clock = max(self.clock or atom.occurred_at, atom.occurred_at)

    def drop(self, atom_ids: Iterable[str]) -> None:
        """Take atoms out, with every mention of their ids in others."""
        for atom_id in atom_ids:
            for other in self.listing(atom_id):
                left = tuple(one for one in other.supersedes if one != atom_id)
                self.put(other.model_copy(update={"supersedes": left}))
            atom = self._by_id.pop(atom_id)
            self._take_out(atom)
            self._before.setdefault(atom_id, atom)
        self.clock = max((unit.occurred_at for unit in self), default=None)

    def _take_out(self, atom: Atom) -> None:
        _discard(self._same, _sameness(atom), atom.atom_id)
        for said in statements_of(atom)[1:]:
            _discard(self._said_again, said, atom.atom_id)
        name = _timeline_of(atom)
        if name is not None:
            self._timelines[name].pop(atom.atom_id)
        if atom.superseded_by is not None:
            self._retired[atom.superseded_by].pop(atom.atom_id)
        for other in atom.supersedes:
            self._listing[other].pop(atom.atom_id)
        if atom.status == "rejected":
            for key in value_keys("", atom.text):
                if self._rejected.get(key) == atom.atom_id:
                    del self._rejected[key]
        if atom.valid_until is not None and atom.status == "active":
            at = bisect_left(self._ends, (atom.valid_until, atom.atom_id))
            del self._ends[at]

    def expire(self, now: datetime) -> None:
        """Make ``stale`` what has come to its own end."""
        behind = self._ends[: bisect_right(self._ends, (now, _LAST_ID))]
        for _, atom_id in behind:
            self.put(self._by_id[atom_id].model_copy(update={"status": "stale"}))

    def came_to_their_end(self, since: datetime | None, now: datetime) -> list[Atom]:
        """Give what came to its own end between two times. Looks at every atom."""
        return [
            unit
            for unit in self
            if unit.status == "stale"
            and unit.superseded_by is None
            and unit.valid_until is not None
            and (since is None or since < unit.valid_until)
            and unit.valid_until <= now
        ]

    # --- who takes whose place --------------------------------------------------------------

    def retire(self, unit: Atom, newer: Atom) -> None:
        """Let ``newer`` take the place of ``unit``, for good; ``newer`` lists it already."""
        self.put(self._ended_by(unit, newer))

    def retime(self, atom: Atom) -> None:
        """Put every atom of the timeline that ``atom`` stands in where its date belongs."""
        name = _timeline_of(atom)
        members = [
            unit
            for unit in map(self._by_id.__getitem__, self._timelines.get(name or "", ()))
            if unit.status != "rejected"
        ]
        members.sort(key=_when)
        new: list[Atom] = []
        takes: dict[str, list[str]] = {}
        for at, unit in enumerate(members):
            later = next((other for other in members[at + 1 :] if _excludes(unit, other)), None)
            settled = self._settled(unit, later)
            if settled.superseded_by is not None:
                takes.setdefault(settled.superseded_by, []).append(settled.atom_id)
            if settled is not unit and settled != unit:
                new.append(settled)
        for settled in new:
            self.put(settled)
        for unit in members:
            now = self._by_id[unit.atom_id]
            listed = dict.fromkeys((*now.supersedes, *takes.get(unit.atom_id, ())))
            if len(listed) != len(now.supersedes):
                self.put(now.model_copy(update={"supersedes": tuple(listed)}))

    def release(self, unit: Atom, gone: Collection[str]) -> None:
        """Take the successor of an atom away. Call it while the successor is still there.

        Another atom that took its place takes over, if there is one; else it holds again,
        unless its own end lies behind it. Nothing releases what a person rejected.
        """
        others = [
            other
            for other in self.listing(unit.atom_id)
            if other.atom_id not in gone and other.status != "rejected"
        ]
        if unit.status == "rejected":
            return
        self.put(
            self._ended_by(unit, max(others, key=_when)) if others else self._begun_again(unit)
        )

    def reject(self, unit: Atom) -> None:
        """Mark an atom as wrong, for good. What it alone had superseded holds again.

        Of one that was made out of others the part that was new is marked too, for it says the
        same; parts that it only took in do not come back, for it says them as well.
        """
        rejected = unit.model_copy(update={"status": "rejected"})
        self.put(rejected)
        for other in self.retired_by(unit.atom_id):
            if not is_composed(unit):
                self.release(other, {unit.atom_id})
            elif other.window_id == unit.window_id and other.status != "rejected":
                self.reject(other)
        for other in (rejected, *self.listed_by(rejected)):
            self.retime(other)

    def listed_by(self, atom: Atom) -> list[Atom]:
        """Give the atoms that ``atom`` says it took the place of, as far as they are there."""
        return [self._by_id[other] for other in atom.supersedes if other in self._by_id]

    def _settled(self, unit: Atom, later: Atom | None) -> Atom:
        by = self._by_id.get(unit.superseded_by or "")
        # A timeline decides about its own members only. What was made out of others stands for
        # them even when it was rejected.
        decided = (
            by is not None
            and not _excludes(unit, by)
            and (by.status != "rejected" or is_composed(by))
        )
        if decided or is_void(unit):
            return unit
        if later is not None:
            return self._ended_by(unit, later)
        return unit if unit.superseded_by is None else self._begun_again(unit)

    def _ended_by(self, unit: Atom, newer: Atom) -> Atom:
        own = self._own_end(unit)
        since = _taken_over(unit, newer)
        return unit.model_copy(
            update={
                "status": "stale" if is_void(newer) else "superseded",
                "superseded_by": newer.atom_id,
                "valid_until": since if own is None else min(own, since),
            }
        )

    def _begun_again(self, unit: Atom) -> Atom:
        own = self._own_end(unit)
        if own is None and unit.activity_end is not None and unit.activity_end > unit.valid_from:
            own = unit.activity_end  # the end it had of its own was overwritten
        over = own is not None and self.clock is not None and own <= self.clock
        return unit.model_copy(
            update={
                "status": "stale" if over else "active",
                "superseded_by": None,
                "valid_until": own,
            }
        )

    def _own_end(self, unit: Atom) -> datetime | None:
        """Give the end an atom has of its own, not the one that its successor gave it."""
        by = self._by_id.get(unit.superseded_by or "")
        if by is None or unit.valid_until is None or unit.valid_until < by.valid_from:
            return unit.valid_until
        return None


def _sameness(atom: Atom) -> tuple[str, str]:
    return atom.type, same_key(atom.text)


def _timeline_of(atom: Atom) -> str | None:
    """Name the timeline an atom stands in: its slot's, or the one of what it says or denies."""
    if atom.slot is not None:
        return f"slot {atom.slot}"
    said = polarity(atom.text)
    return None if said is None else f"{atom.type} {said.core}"


def _excludes(unit: Atom, other: Atom) -> bool:
    """Say whether not both can hold at once."""
    if unit.slot != other.slot or _of_different_people(unit, other):
        return False
    if unit.slot is not None:
        return True
    said, said_otherwise = polarity(unit.text), polarity(other.text)
    if said is None or said_otherwise is None:
        return False
    return said.core == said_otherwise.core and said.negated != said_otherwise.negated


def _of_different_people(unit: Atom, other: Atom) -> bool:
    """Say whether both have a name, and another one. Who is not named may be either."""
    return unit.said_by != other.said_by and len(people_of((unit.said_by, other.said_by))) > 1


def _when(atom: Atom) -> tuple[datetime, bool, str, str]:
    # What was made out of others comes after them, though it is of the same time.
    return atom.occurred_at, is_composed(atom), atom.text, atom.atom_id


def _taken_over(old: Atom, newer: Atom) -> datetime:
    # The newer value may have been said again since: it took over when it was first said.
    return newer.valid_from if newer.valid_from >= old.occurred_at else newer.occurred_at


def _discard(index: dict[K, list[str]], key: K, atom_id: str) -> None:
    left = index[key]
    left.remove(atom_id)
    if not left:
        del index[key]

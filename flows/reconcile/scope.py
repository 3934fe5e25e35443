"""What the atoms of one window do to the ones that their scope already has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from flows.reconcile.items import Applied, Decision
from flows.reconcile.sameness import same_key
from flows.reconcile.statements import composed, is_composed, said_again, statements_of
from flows.reconcile.units import Units
from stores.records import Atom, RefusedMemory

__all__ = ["ScopeAtoms"]

_STORE = Decision("store")


def _nothing(text: str) -> bool:
    del text
    return False


class ScopeAtoms(Units):
    """All atoms of one scope, in memory, and what new ones do to them."""

    def open_questions(
        self,
        incoming: Sequence[Atom],
        rejects: Callable[[str], bool] = _nothing,
    ) -> list[Atom]:
        """Give the atoms that no rule settles: neither said before nor rejected.

        None at all when the window was applied before.
        """
        folded = _folded(incoming)
        homes = self.homes_of(folded)
        return [
            atom
            for atom in folded
            if self.known(atom) is None
            and not self.absorbers(atom, homes)
            and self.rejected_as(atom.text) is None
            and not rejects(atom.text)
        ]

    def apply(
        self,
        incoming: Sequence[Atom],
        *,
        at: datetime | None = None,
        decisions: Mapping[str, Decision] | None = None,
        rejects: Callable[[str], bool] = _nothing,
        composer: str = "",
    ) -> Applied:
        """Take in one window's atoms.

        :arg at: event time of the window's newest event; moves the scope's clock for expiry.
        :arg decisions: what a model decided, by atom id; an atom without one is stored, unless
            a rule settles it.
        :arg rejects: whether a person marked a value as wrong.
        :arg composer: version of the prompt and the model that decided.
        """
        now = self.time_at(incoming, at)
        if now is None:
            return Applied((), ())
        return _Run(self, incoming, now, decisions or {}, rejects, composer).apply()

    def time_at(self, incoming: Sequence[Atom], at: datetime | None) -> datetime | None:
        """Give the scope's event time once a window is applied; ``None`` when nothing tells.

        :arg at: event time of the window's newest event.
        """
        times = (self.clock, at, *(atom.occurred_at for atom in incoming))
        return max((time for time in times if time is not None), default=None)

    def known(self, atom: Atom) -> Atom | None:
        """Give the atom itself, or the one that says the same and stands for it."""
        return self.get(atom.atom_id) or self.home_of(atom)

    def homes_of(self, atoms: Sequence[Atom]) -> set[str]:
        """Give the ids of those that are known for any of ``atoms``."""
        return {home.atom_id for atom in atoms if (home := self.known(atom)) is not None}

    def absorbers(self, atom: Atom, homes: set[str]) -> list[Atom]:
        """Give the atoms that a decision of the model added ``atom`` to, the time before.

        An event is in one window, so who has its statement has it from there; unless another
        atom of the window, which says the same, brought it.
        """
        return [unit for unit in self.absorbed_by(atom) if unit.atom_id not in homes]

    def beside(self, atom_id: str) -> list[Atom]:
        """Give an atom, those whose place it took, and those that took its place.

        An atom that was made into another one comes with the other parts of it.
        """
        unit = self.get(atom_id)
        if unit is None:
            return []
        found = [unit, *self.retired_by(atom_id), *self.listing(atom_id)]
        by = self.get(unit.superseded_by or "")
        if by is not None:
            found.append(by)
            if is_composed(by):
                found += self.retired_by(by.atom_id)
        return found


def _folded(incoming: Sequence[Atom]) -> list[Atom]:
    """Make one of the atoms of a window that say the same."""
    if len({(atom.type, same_key(atom.text)) for atom in incoming}) == len(incoming):
        return list(incoming)
    folded: dict[tuple[str, str, str], Atom] = {}
    for atom in incoming:
        key = (atom.type, same_key(atom.text))
        slots = [slot for slot in (atom.slot or "", "") if (*key, slot) in folded]
        at = (*key, slots[0] if slots else atom.slot or "")
        folded[at] = said_again(folded[at], atom) if at in folded else atom
    return list(folded.values())


class _Run:
    """One window on its way into its scope."""

    def __init__(
        self,
        scope: ScopeAtoms,
        incoming: Sequence[Atom],
        now: datetime,
        decisions: Mapping[str, Decision],
        rejects: Callable[[str], bool],
        composer: str,
    ) -> None:
        self._scope = scope
        self._incoming = _folded(incoming)
        self._now = now
        self._decisions = decisions
        self._rejects = rejects
        self._composer = composer
        self._landed: dict[str, None] = {}
        self._refused: list[RefusedMemory] = []
        self._results: list[str] = []

    def apply(self) -> Applied:
        scope, incoming = self._scope, self._incoming
        homes = scope.homes_of(incoming)
        before = bool(incoming) and all(
            scope.known(atom) or scope.absorbers(atom, homes) for atom in incoming
        )
        since = self._clock_before() if before else None
        scope.begin()
        scope.expire(self._now)
        for number, atom in enumerate(incoming, start=1):
            self._settle(atom, homes, number)
        changed = {atom.atom_id: atom for atom in scope.changes()}
        touched: dict[str, Atom] = {}
        for atom_id in self._landed:
            for unit in scope.beside(atom_id):
                touched.setdefault(unit.atom_id, unit)
        for unit in (
            *changed.values(),
            *(scope.came_to_their_end(since, self._now) if before else ()),
        ):
            touched.setdefault(unit.atom_id, unit)
        return Applied(
            tuple(touched.values()),
            tuple(atom for atom in touched.values() if atom.atom_id in changed),
            tuple(self._refused),
            tuple(self._results),
            self._newer(touched),
        )

    def _newer(self, touched: Mapping[str, Atom]) -> frozenset[str]:
        windows = {atom.window_id for atom in self._incoming}
        in_their_place = {
            by.atom_id
            for unit in touched.values()
            if (by := touched.get(unit.superseded_by or "")) is not None
            and by.window_id not in windows
        } - self._landed.keys()
        return frozenset(
            unit.atom_id
            for unit in touched.values()
            if unit.atom_id not in self._landed
            and (unit.atom_id in in_their_place or unit.superseded_by in in_their_place)
        )

    def _clock_before(self) -> datetime | None:
        """Give a time no later than the clock was before this window, which was applied before.

        What came to its end since then is named again, for a run that was killed before it
        produced it.
        """
        windows = {atom.window_id for atom in self._incoming}
        return max(
            (unit.valid_from for unit in self._scope if unit.window_id not in windows),
            default=None,
        )

    def _settle(self, atom: Atom, homes: set[str], number: int) -> None:
        scope = self._scope
        known = scope.get(atom.atom_id)
        if known is not None:
            if known.status == "rejected":
                self._refuse(number)
            self._results.append("again")
            self._landed[known.atom_id] = None
            return
        home = scope.home_of(atom)
        wrong = scope.rejected_as(atom.text)
        if wrong is None and self._rejects(atom.text):
            wrong = home or atom
        if wrong is not None or (home is not None and home.status == "rejected"):
            self._results.append("rejected_value")
            self._refuse(number)
            self._land_rejected(wrong or home or atom, atom)
            return
        if home is not None:
            again = set(statements_of(atom)) <= set(statements_of(home))
            self._results.append("again" if again else "repeated")
            self._land(home, atom)
            return
        absorbers = scope.absorbers(atom, homes)
        if absorbers:
            self._results.append("again")
            self._landed.update((unit.atom_id, None) for unit in absorbers)
            return
        self._decide(atom, self._decisions.get(atom.atom_id, _STORE))

    def _refuse(self, number: int) -> None:
        self._refused.append(RefusedMemory("rejected_value", f"memory {number}"))

    def _land(self, home: Atom, atom: Atom) -> None:
        scope = self._scope
        scope.put(said_again(home, atom))
        self._give_slot(home, atom)
        scope.retime(scope.get(home.atom_id) or home)
        self._landed[home.atom_id] = None

    def _land_rejected(self, unit: Atom, atom: Atom) -> None:
        scope = self._scope
        if unit.status != "rejected":
            scope.put(unit)
            scope.reject(unit)
        if unit.atom_id != atom.atom_id:
            scope.put(said_again(scope.get(unit.atom_id) or unit, atom))
        self._landed[unit.atom_id] = None

    def _add(self, atom: Atom) -> None:
        """Store an atom as one of its own; its slot may still put it behind a newer value."""
        slots = sorted({unit.slot for unit in self._scope.same_text(atom) if unit.slot})
        if atom.slot is None and slots:
            atom = atom.model_copy(update={"slot": slots[0]})
        over = atom.valid_until is not None and atom.valid_until <= self._now
        self._results.append("stored")
        self._scope.put(atom.model_copy(update={"status": "stale"}) if over else atom)
        self._give_slot(atom, atom)
        self._scope.retime(atom)
        self._landed[atom.atom_id] = None

    def _give_slot(self, home: Atom, atom: Atom) -> None:
        """Let the same text have the same slot, whichever statement of it came with one."""
        slot = atom.slot or home.slot
        if slot is None:
            return
        for unit in self._scope.same_text(atom):
            if unit.slot is None and unit.status != "rejected":
                given = unit.model_copy(update={"slot": slot})
                self._scope.put(given)
                self._scope.retime(given)

    # --- a model's decision -----------------------------------------------------------------

    def _decide(self, atom: Atom, decision: Decision) -> None:
        scope = self._scope
        found = [scope.get(target) for target in dict.fromkeys(decision.targets)]
        named = [unit for unit in found if unit is not None and unit.status != "rejected"]
        if decision.action == "skip" and named:
            self._results.append("repeated")
            self._land(named[0], atom)
            return
        # An earlier decision of the same answer may have retired it.
        targets = [unit for unit in named if unit.status == "active"]
        if not targets or decision.action in {"store", "skip"}:
            self._add(atom)
            return
        older = [unit for unit in targets if unit.occurred_at <= atom.occurred_at]
        newer = [unit for unit in targets if unit.occurred_at > atom.occurred_at]
        if decision.action == "retract":
            self._results.append("retracted")
            self._retract(atom, older)
        elif newer:
            self._results.append("history")
            self._behind(atom, older if decision.action == "update" else [], newer)
        else:
            self._replace(atom, older, decision)

    def _retract(self, atom: Atom, targets: Sequence[Atom]) -> None:
        void = atom.model_copy(
            update={
                "status": "stale",
                "valid_until": atom.valid_from,
                "supersedes": tuple(unit.atom_id for unit in targets),
            }
        )
        self._write(void, targets, void)

    def _behind(self, atom: Atom, older: Sequence[Atom], newer: Sequence[Atom]) -> None:
        """Store what is older than what it was to replace: it is history already."""
        over = max(newer, key=lambda unit: (unit.occurred_at, unit.atom_id))
        listed = dict.fromkeys((*over.supersedes, atom.atom_id))
        over = over.model_copy(update={"supersedes": tuple(listed)})
        self._scope.put(over)
        atom = atom.model_copy(update={"supersedes": tuple(unit.atom_id for unit in older)})
        self._write(atom, older, atom)
        self._scope.retire(self._scope.get(atom.atom_id) or atom, over)

    def _replace(self, atom: Atom, targets: Sequence[Atom], decision: Decision) -> None:
        scope = self._scope
        merged = decision.action == "merge"
        text = decision.text
        if text is not None and same_key(text) == same_key(atom.text) and not merged:
            text = None
        if text is not None and (scope.rejected_as(text) or self._rejects(text)):
            text = None  # the model's words for it say what a person rejected
        if text is None and merged:
            self._add(atom)
            return
        self._results.append("merged" if merged else "updated")
        update = {"supersedes": tuple(unit.atom_id for unit in targets)}
        if text is None:
            replaced = atom.model_copy(update=update)
            self._write(replaced, targets, replaced)
            return
        whole = composed(atom, targets, text, composer=self._composer, merged=merged)
        home = scope.home_of(whole)
        if home is not None:  # its words are those of an atom that is there: nothing new is said
            self._land(home, atom)
            return
        scope.put(whole)
        part = atom if merged else atom.model_copy(update=update)
        self._write(part, targets, whole if merged else part)
        scope.retire(scope.get(part.atom_id) or part, whole)
        scope.retime(whole)
        self._landed[whole.atom_id] = None

    def _write(self, atom: Atom, targets: Sequence[Atom], successor: Atom) -> None:
        scope = self._scope
        scope.put(atom)
        for unit in targets:
            scope.retire(scope.get(unit.atom_id) or unit, successor)
        for unit in (atom, *targets):
            scope.retime(scope.get(unit.atom_id) or unit)
        self._landed[atom.atom_id] = None

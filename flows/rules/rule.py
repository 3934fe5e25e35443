"""What a rule is: a named line of a table, the same for every language."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flows.extract.slots import normal_slot
from stores.records import AtomType

__all__ = ["SHORT_THING_CHARS", "Rule"]

SHORT_THING_CHARS = 40
"""A value longer than this names no single thing, so it makes no slot."""

_GROUP = re.compile(r"\{([\w|]+)\}")
_NOT_IN_A_SLOT = re.compile(r"[^\w]+")


@dataclass(frozen=True, slots=True)
class Rule:
    """One way in which people state a fact about themselves.

    A rule is tried at the start of a clause; the first rule of the table that matches takes the
    clause, unless it is not ``final``: then the rules after it may add a fact of their own.

    :arg pattern: matched at the start of the clause; its named groups fill ``slot`` and ``text``.
    :arg slot: name of the single-valued thing, may hold ``{group}``, or ``{this|that}`` for the
        one of two groups that matched; ``None`` when there may be many. A group that is missing
        or too long for a name leaves the memory without a slot.
    :arg text: sentence with ``{group}`` in it; ``None`` takes the clause itself in third person.
    :arg unless: the rule is off when this is found anywhere in the clause.
    :arg dated: the rule needs a date that can be resolved, and gives the memory its times.
    :arg expires: the rule needs an end that can be resolved and is still to come.
    :arg whole: matched against the whole sentence before it is cut into clauses, and takes it.
    """

    name: str
    pattern: re.Pattern[str]
    type: AtomType
    priority: int
    slot: str | None = None
    text: str | None = None
    unless: re.Pattern[str] | None = None
    dated: bool = False
    expires: bool = False
    whole: bool = False
    final: bool = True

    def match(self, clause: str) -> re.Match[str] | None:
        """Match the rule against a clause, or give ``None`` when it is off or does not fit."""
        found = self.pattern.match(clause)
        if found is None or (self.unless is not None and self.unless.search(clause)):
            return None
        return found

    def slot_of(self, found: re.Match[str]) -> str | None:
        """Fill the slot's name from a match; the same name in every language."""
        if self.slot is None:
            return None
        slot = self.slot
        for groups in _GROUP.findall(slot):
            value = next((found[group] for group in groups.split("|") if found[group]), None)
            if not value or len(value) > SHORT_THING_CHARS:
                return None
            slot = slot.replace(f"{{{groups}}}", _NOT_IN_A_SLOT.sub("-", value.lower()).strip("-"))
        return normal_slot(slot)

    def text_of(self, found: re.Match[str]) -> str | None:
        """Fill the sentence from a match; ``None`` when the clause itself is the sentence."""
        if self.text is None:
            return None
        return _GROUP.sub(lambda group: (found[group[1]] or "").strip(" .,"), self.text)

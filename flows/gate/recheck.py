"""The rules as they are now, tried on atoms that are stored already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.extract.text import clean_text
from flows.gate.policy import Finding, GatePolicy, examine, verdict
from flows.gate.subject import Subject
from stores.records import Atom, IndexedEvent, Memory
from stores.speakers import told_of_user

__all__ = ["Rechecked", "judged_by_source", "recheck", "refused_alone", "said_in"]


@dataclass(frozen=True, slots=True)
class Rechecked:
    """A stored atom and what the rules say of it today. Its warnings are those of its day."""

    atom: Atom
    findings: tuple[Finding, ...]

    @property
    def holds_secret(self) -> bool:
        """True when its text must not be shown."""
        return any(finding.rule == "secret" for finding in self.findings)

    def codes(self) -> tuple[str, ...]:
        """Name what was found then and now, each once."""
        found = (finding.rule for finding in self.findings)
        return tuple(dict.fromkeys((*self.atom.warnings, *found)))


def judged_by_source(atom: Atom | Memory) -> bool:
    """Say whether a rule needs to see what the user said to judge this."""
    return atom.type == "instruction"


def said_in(events: Iterable[IndexedEvent]) -> dict[str, str]:
    """Give what the user said, by event id, as the extractors saw it."""
    return {event.event_id: clean_text(event.text) for event in events if event.role == "user"}


def recheck(atom: Atom, said: Mapping[str, str], policy: GatePolicy) -> Rechecked:
    """Try every rule on a stored atom. Changes nothing."""
    memory = Memory(
        text=told_of_user(atom.text, atom.said_by),
        type=atom.type,
        priority=atom.priority,
        source_event_ids=atom.source_event_ids,
        scene=atom.scene,
        details=atom.details,
    )
    heard = tuple(said[one] for one in atom.source_event_ids if one in said)
    return Rechecked(atom, examine(Subject.of(memory, heard), policy))


def refused_alone(atom: Atom, policy: GatePolicy) -> bool:
    """Say whether a stored atom is refused by what it says itself, without its sources.

    What a rule would find in the words of the user is left out: where an atom comes back to, they
    may not be.
    """
    findings = recheck(atom, {}, policy).findings
    alone = tuple(one for one in findings if one.rule != "generalised_instruction")
    return verdict(alone).refusal is not None

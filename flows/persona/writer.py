"""The rule-based persona writer: atoms in, a draft that fits out. Pure.

It infers nothing: every sentence is an atom's, sorted into the sections. Where not all fits, what
weighs least is left out first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from flows.persona.draft import LIMITS, Draft, Mode, render_draft
from flows.scenes.topics import NAMED, OTHER, TOPICS, topics_of
from flows.scenes.writer import language_of, sentence_of, topic_title
from stores.records import Atom
from stores.speakers import people_of

__all__ = ["draft_by_rules", "persona_by_rules"]

_BASIC = ("identity", "work", "family")
_SECTION_OF_TYPE = {
    "work_fact": "principles",
    "work_task": "decisions",
    "work_method": "procedures",
    "work_artifact": "principles",
}
_TASTES = ("favourite", "taste")
_MUST = ("diet", "allergy", "health")
_DECIDE = re.compile(
    r"\b(?:never|don't|do not|avoid|suggest|recommend|propose|book|order|buy)\b"
    r"|不要|别|推荐|建议|避免|决定",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"^(?:[^:]{1,64}'s standing request:|[^:：]{1,64}的长期要求[：:])\s*[\"“「]?(.*?)[\"”」]?\s*$"
)
_NAME = re.compile(
    r"(?:name is|is called|goes by) ([^.,;!]{1,40})|(?:名叫|名字叫|名字是|叫)([^。，,；]{1,20})"
)
_MOST_TAGS = 7
_MOST_NAMED = 4
_SUMMED_UP = ("job.title", "home.city")
_LEAST_LINE_CHARS = 20
_PLAN_DAYS = (7, 60)  # ahead: nearer ones are over before anybody reads of them


def persona_by_rules(atoms: Sequence[Atom], mode: Mode, at: datetime) -> str:
    """Write a persona's body from a scope's active atoms, within its limit."""
    language = language_of(atoms)
    kept = sorted(atoms, key=lambda atom: (-_weight(atom), atom.occurred_at, atom.atom_id))
    del kept[LIMITS[mode] // _LEAST_LINE_CHARS :]  # more could not fit
    while True:
        body = render_draft(draft_by_rules(kept, mode, at), mode, language)
        if len(body) <= LIMITS[mode] or not kept:
            return body
        kept.pop()


def draft_by_rules(atoms: Sequence[Atom], mode: Mode, at: datetime) -> Draft:
    """Sort atoms into the sections of a persona."""
    ordered = sorted(atoms, key=lambda atom: (atom.occurred_at, atom.atom_id))
    people = people_of(atom.said_by for atom in ordered)
    topics = topics_of(ordered)
    sections: dict[str, list[str]] = {}
    for atom in ordered:
        section = _section(atom, topics[atom.atom_id], at)
        if section:
            sections.setdefault(section, []).append(_line(atom, whole=len(people) > 1))
    if mode == "chat":
        sections["tags"] = _tags(ordered, topics)
    own = next((_name(one.text) for one in reversed(ordered) if one.slot == "name"), "")
    name = ", ".join(people[:_MOST_NAMED]) if len(people) > 1 else own
    summary = _archetype(ordered, apart=len(people) > 1)
    return Draft(name, summary, {key: tuple(one) for key, one in sections.items()})


def _section(atom: Atom, topic: str, at: datetime) -> str:
    if atom.type in _SECTION_OF_TYPE:
        return _SECTION_OF_TYPE[atom.type]
    if atom.type == "instruction":
        return "decide" if _DECIDE.search(atom.text) else "speak"
    if atom.type == "episodic":  # a passing event is no part of a person, a plan is for a while
        end = atom.activity_end or atom.activity_start
        nearest, farthest = _PLAN_DAYS
        return "interests" if end and nearest <= (end - at).days <= farthest else ""
    slot = (atom.slot or "").split(".")[0]
    if slot in _MUST or topic in _BASIC:
        return "basics"
    if slot in _TASTES or topic == "food":
        return "preferences"
    return "interests"


def _line(atom: Atom, *, whole: bool) -> str:
    text = " ".join(atom.text.split())
    found = None if whole else _REQUEST.match(text)  # of several people: whose request it is
    said = found[1] if found else text
    return f"{said[:1].upper()}{said[1:]} ({atom.occurred_at:%Y-%m-%d})"


def _archetype(atoms: Sequence[Atom], *, apart: bool) -> str:
    """Sum people up by what they do and where they live, in their own atoms' words.

    :arg apart: they are several: each is summed up.
    """
    told: dict[str, dict[str, Atom]] = {}
    for atom in atoms:
        if atom.slot in _SUMMED_UP:
            who = atom.said_by.casefold() if apart else ""
            told.setdefault(who, {})[atom.slot] = atom
    return " ".join(
        sentence_of(slots[one]) for slots in told.values() for one in _SUMMED_UP if one in slots
    )


def _tags(atoms: Sequence[Atom], topics: dict[str, str]) -> list[str]:
    language = language_of(atoms)
    skipped = {"requests", "plans", "identity", OTHER.key}
    counts = Counter(topics[atom.atom_id] for atom in atoms if topics[atom.atom_id] not in skipped)
    order = {topic.key: at for at, topic in enumerate(TOPICS)}
    ranked = sorted(counts, key=lambda key: (-counts[key], order.get(key, len(order)), key))
    titles = [topic_title(key, language) for key in ranked[:_MOST_TAGS]]
    return [one.removeprefix(NAMED).lower() for one in titles]


def _name(text: str) -> str:
    found = _NAME.search(text)
    return (found[1] or found[2]).strip() if found else ""


def _weight(atom: Atom) -> int:
    return 100 if atom.priority < 0 else atom.priority

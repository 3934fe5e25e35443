"""The rule-based scene writer: all atoms of a scope in, scene files out. Pure.

It looks at everything each time, so it needs no memory of its own: the same atoms give the same
files, and running it again changes nothing. Files that a person or a model wrote are left as
they are, and what they tell is not told again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from flows.scenes.topics import (
    NAMED,
    OTHER,
    TOPICS,
    Language,
    is_chinese,
    topics_of,
)
from stores.records import Atom
from stores.scenes import ProfileFile, normal_name, unique_names

__all__ = [
    "RULES",
    "compose",
    "language_of",
    "line_of",
    "sentence_of",
    "settled",
    "topic_title",
    "write_by_rules",
]

RULES = "rules/1"
"""Generator of what the rules wrote, in front matter: change it when they write otherwise."""

_TOPIC = "topic"
_SUMMARY_CHARS = 200
_MOST_LINES = 60
_TITLES = {topic.key: topic for topic in (*TOPICS, OTHER)}
_EARLIER = {"en": "## Earlier", "zh": "## 以前"}
_UNTIL = {"en": "until {}", "zh": "到 {} 为止"}
_RELATIVE = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|\w+ ago|(?:last|next|this|coming) (?:night|morning"
    r"|evening|week|weekend|month|year|spring|summer|autumn|fall|winter|(?:mon|tues|wednes|thurs"
    r"|fri|satur|sun)day))\b|昨天|今天|明天|后天|前天|今晚|昨晚|[上下这本]周|[上下这]个月|去年|明年|今年",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ORDER = {topic.key: at for at, topic in enumerate(TOPICS)}


def language_of(atoms: Sequence[Atom]) -> Language:
    """Give the language to write headings in: that of most atoms."""
    return "zh" if is_chinese(atom.text for atom in atoms) else "en"


def write_by_rules(
    atoms: Sequence[Atom], before: Mapping[str, ProfileFile], capacity: int
) -> dict[str, ProfileFile]:
    """Give the scope's files as they should be now.

    A name that a topic has is kept. Topics beyond the capacity are told together, in one file
    of other things.

    :arg atoms: all of the scope, rejected and forgotten ones left out.
    :arg before: files as they are; those by another generator stay word for word.
    """
    kept = {name: settled(file, atoms) for name, file in before.items() if not _by_rules(file)}
    told = {one for file in kept.values() for one in (*file.atoms, *file.archived)}
    groups = _groups([atom for atom in atoms if atom.atom_id not in told], capacity - len(kept))
    language = language_of(atoms)
    names = _names(groups, before, kept, language)
    files = dict(kept)
    for key, name in names.items():
        file = compose(groups[key], topic_title(key, language), language, key)
        files[name] = _as_before(file, before.get(name))
    return dict(sorted(files.items()))


def compose(atoms: Sequence[Atom], title: str, language: Language, topic: str) -> ProfileFile:
    """Write one file from its atoms: what holds, then what held earlier.

    The newest lines stand when there are too many; atoms without a line are archived. It is dated
    by the newest of them, so it does not matter in which runs they came.
    """
    ordered = sorted(atoms, key=lambda atom: (atom.occurred_at, atom.atom_id))
    now = [atom for atom in ordered if atom.status == "active"]
    ended = [atom for atom in ordered if atom.status != "active"]
    shown, earlier = now[-_MOST_LINES:], ended[-_MOST_LINES // 2 :]
    body = [line_of(atom, language) for atom in shown]
    if earlier:
        body += ["", _EARLIER[language], "", *(line_of(atom, language) for atom in earlier)]
    by_weight = sorted(shown or earlier, key=lambda atom: (-abs(atom.priority), atom.occurred_at))
    told = {atom.atom_id for atom in shown}
    summary = " ".join(sentence_of(atom) for atom in by_weight[:3])
    if not shown:  # a summary stands in the prompt, so it must not tell the past as what holds
        summary = f"{_EARLIER[language].removeprefix('## ')}: {summary}"
    return ProfileFile(
        kind="scene",
        title=title,
        body="\n".join(body),
        created=ordered[0].occurred_at,
        updated=max(_changed_at(atom) for atom in ordered),
        summary=_cut(summary),
        atoms=tuple(atom.atom_id for atom in shown),
        archived=tuple(atom.atom_id for atom in ordered if atom.atom_id not in told),
        generator=RULES,
        extra=((_TOPIC, topic),),
    )


def _changed_at(atom: Atom) -> datetime:
    ended = atom.valid_until if atom.status != "active" else None
    return max(atom.occurred_at, ended or atom.occurred_at)


def sentence_of(atom: Atom) -> str:
    """Write an atom where no date stands: with one if its text counts from the day it was said."""
    text = _one_line(atom.text)
    open_ended = _RELATIVE.search(text) and not _DATE.search(text)
    return f"{text} ({atom.occurred_at:%Y-%m-%d})" if open_ended else text


def line_of(atom: Atom, language: Language) -> str:
    """Write an atom as a line: its text, when it was said, and when it ended."""
    said = f"{atom.occurred_at:%Y-%m-%d}"
    if atom.status != "active" and atom.valid_until is not None:
        said += ", " + _UNTIL[language].format(f"{atom.valid_until:%Y-%m-%d}")
    about = [f"{name}: {value}" for name, value in sorted(atom.details.items()) if value]
    return f"- {_one_line(atom.text)} ({'; '.join([said, *about])})"


def _by_rules(file: ProfileFile) -> bool:
    return file.generator == RULES


def settled(file: ProfileFile, atoms: Sequence[Atom]) -> ProfileFile:
    """Move the ids of atoms that no longer hold from ``atoms`` to ``archived``.

    The text may still tell of them as of the past, and must be found when they are forgotten.
    """
    ended = {atom.atom_id for atom in atoms if atom.status != "active"}
    over = [one for one in file.atoms if one in ended]
    if not over:
        return file
    return replace(
        file,
        atoms=tuple(one for one in file.atoms if one not in ended),
        archived=(*file.archived, *over),
    )


def _groups(atoms: Sequence[Atom], room: int) -> dict[str, list[Atom]]:
    groups: dict[str, list[Atom]] = {}
    topics = topics_of(atoms)
    for atom in atoms:
        groups.setdefault(topics[atom.atom_id], []).append(atom)
    named = [key for key in groups if key.startswith(NAMED)]
    # Scenes of an extraction can be many: those with the fewest atoms are told together.
    named.sort(key=lambda key: (len(groups[key]), key))
    while len(groups) > max(1, room) and (named or len(groups) > 1):
        key = named.pop(0) if named else max(groups, key=lambda one: (len(groups[one]), one))
        if key != OTHER.key:
            groups.setdefault(OTHER.key, []).extend(groups.pop(key))
    return groups


def _names(
    groups: Mapping[str, Sequence[Atom]],
    before: Mapping[str, ProfileFile],
    kept: Mapping[str, ProfileFile],
    language: Language,
) -> dict[str, str]:
    """Give each group its file: the one its topic has, else a free name made of the title."""
    had = {dict(file.extra).get(_TOPIC): name for name, file in before.items() if _by_rules(file)}
    names: dict[str, str] = {}
    taken = [*kept]
    for key in sorted(groups, key=lambda one: (one not in had, _ORDER.get(one, 99), one)):
        name = had.get(key)
        if name is None:
            wanted = normal_name(topic_title(key, language))
            name = unique_names([wanted + " ", *taken], keep=taken)[wanted + " "]
        names[key] = name
        taken.append(name)
    return names


def topic_title(key: str, language: Language) -> str:
    """Give the title of a topic: its own, or the name extraction gave the scene."""
    return key.removeprefix(NAMED) if key.startswith(NAMED) else _TITLES[key].title(language)


def _as_before(file: ProfileFile, known: ProfileFile | None) -> ProfileFile:
    """Keep dates and heat, and all of a file that says the same."""
    if known is None:
        return file
    same = replace(file, created=min(file.created, known.created), heat=known.heat)
    unchanged = replace(same, created=known.created, updated=known.updated)
    return unchanged if unchanged == known else same


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str) -> str:
    return text if len(text) <= _SUMMARY_CHARS else text[: _SUMMARY_CHARS - 1].rstrip() + "…"

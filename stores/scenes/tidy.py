"""After an agent's run: from what it left in its copy to files that can be committed. Pure.

The agent decides titles, summaries, texts and which atoms a file rests on. Everything else is
set here, whatever it wrote: names, heat, dates, generator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from stores.scenes.document import DELETED_MARK, ProfileFile, decode, is_text, parse
from stores.scenes.front_matter import split
from stores.scenes.names import unique_names

__all__ = ["Cleaned", "Run", "clean_up", "is_unfinished"]

_MIN_PREFIX = 8
_HEADING = re.compile(r"#{1,6}(?:[ \t].*)?")
_RULE = re.compile(r"-{3,}|\*{3,}|_{3,}")
_HOUSEKEEPING = re.compile(
    r"\W*(?:this (?:file|scene) (?:is|was|has been) )?"
    r"(?:archived?|consolidated|consolidation|merged|moved|已?归档|已?合并|已?整合)"
    r"(?:[\W\d]*|\b.{0,160}\.md\b.{0,80})",
    re.IGNORECASE,
)
"""A note that says what became of a file: the word alone, or with the name of another file."""

_ARCHIVE = re.compile(r"^(#{1,6})[ \t]+\W*(?:archived?|归档|已归档|存档)\W*$", re.IGNORECASE)
_WORD = re.compile(r"[\w.:-]+")


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was asked to do.

    :arg at: event time of the job.
    :arg generator: who writes: model and prompt version, ``rules/1``.
    :arg atoms: ids that the job brought.
    :arg removed: ids of atoms that are gone: superseded, rejected or forgotten.
    """

    at: datetime
    generator: str
    atoms: tuple[str, ...] = ()
    removed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What can be checked and committed.

    :arg files: by safe name, in order of name.
    :arg moved: names from before the run that are gone, and the file that took over their heat.
    :arg forgotten: names from before the run that are gone because all their atoms are removed.
    :arg unreadable: names of files that are no text; they are not among ``files``.
    :arg repairs: (name, what was repaired).
    """

    files: Mapping[str, ProfileFile]
    moved: Mapping[str, str]
    forgotten: tuple[str, ...]
    unreadable: tuple[str, ...]
    repairs: tuple[tuple[str, str], ...]


def clean_up(before: Mapping[str, ProfileFile], after: Mapping[str, bytes], run: Run) -> Cleaned:
    """Clean up after a run. Deterministic; never raises.

    - Files that are marked ``[DELETED]``, are empty, or hold nothing but headings and a line
      that says they were archived, merged or consolidated, are taken away.
    - Names are made safe; a file from before keeps its own.
    - Front matter is repaired. Atom ids may be shortened to a prefix of eight characters that
      fits one known id; ids that are neither known nor such a prefix are dropped.
    - Known ids in a section with the heading ``Archive`` count as ``archived``.
    - Ids of removed atoms go; a file that rested on nothing else goes too.
    - A file that is gone leaves its heat to the file that holds most of its atoms.

    :arg before: the files the copy was made of, heat folded in.
    :arg after: the copy's contents.
    """
    repairs: list[tuple[str, str]] = []
    unreadable = tuple(sorted(name for name, data in after.items() if not is_text(data)))
    texts = {
        name: text
        for name, data in sorted(after.items())
        if name not in unreadable and not _is_marked(text := decode(data))
    }
    ids = _Ids(before, run)
    files: dict[str, ProfileFile] = {}
    for old, name in unique_names(texts, keep=before).items():
        known = before.get(name)
        file, repaired = parse(texts[old], "scene", name, run.at, known)
        if not _says_something(file.body):
            continue
        repairs.extend((name, repair) for repair in repaired)
        file, dropped = ids.resolved(file)
        repairs.extend((name, f"unknown atom id {one}") for one in dropped)
        if not ids.rests_on_removed_alone(file, known):
            files[name] = _owned(ids.without_removed(file), known, run)
    gone = {name: file for name, file in before.items() if name not in files}
    heirs = _heirs(gone, before, files, run)
    for old, new in heirs.items():
        heir = files[new]
        created = heir.created if new in before else min(heir.created, gone[old].created)
        files[new] = replace(heir, heat=heir.heat + gone[old].heat, created=created)
    forgotten = tuple(
        name for name, file in gone.items() if _ids_of(file) and _ids_of(file) <= run.removed
    )
    return Cleaned(dict(sorted(files.items())), heirs, forgotten, unreadable, tuple(repairs))


def is_unfinished(text: str) -> bool:
    r"""Say whether a file tells nothing and does not say why: it would go, and nobody meant it to.

    >>> [is_unfinished(f"---\ntitle: Porto\n---\n{body}") for body in ("", "# Porto", "Hi.")]
    [True, True, False]
    >>> is_unfinished("[DELETED]"), is_unfinished(""), is_unfinished("# Merged into porto.md")
    (False, False, False)
    """
    body = split(text).body
    if _is_marked(text) or body.strip().upper().startswith(DELETED_MARK):
        return False
    notes = (_HOUSEKEEPING.fullmatch(line.strip()) for line in body.splitlines())
    return not _says_something(body) and not any(notes)


def _is_marked(text: str) -> bool:
    return not text.strip() or text.strip().upper().startswith(DELETED_MARK)


def _says_something(body: str) -> bool:
    """Say whether anything stands in a body but headings, lines and notes of housekeeping."""
    if _is_marked(body):
        return False
    lines = (line.strip() for line in body.splitlines())
    return any(
        line and not any(empty.fullmatch(line) for empty in (_HEADING, _RULE, _HOUSEKEEPING))
        for line in lines
    )


def _owned(file: ProfileFile, known: ProfileFile | None, run: Run) -> ProfileFile:
    """Set the fields that no agent decides."""
    if known is None:
        return replace(file, heat=0, created=run.at, updated=run.at, generator=run.generator)
    own = replace(
        file,
        heat=known.heat,
        created=known.created,
        updated=known.updated,
        generator=known.generator,
    )
    if own == known:
        return known
    return replace(own, updated=max(run.at, known.updated), generator=run.generator)


def _heirs(
    gone: Mapping[str, ProfileFile],
    before: Mapping[str, ProfileFile],
    files: Mapping[str, ProfileFile],
    run: Run,
) -> dict[str, str]:
    """Give each file that is gone the one that takes over its heat.

    The one with most of its atoms; of equals one that this run changed, then the hottest, then
    by name. A file without atoms leaves it to the hottest that the run changed. A file whose
    atoms are all removed has no heir: its heat was theirs.
    """
    heirs: dict[str, str] = {}
    for old, file in sorted(gone.items()):
        wanted = _ids_of(file) - run.removed
        if not files or (_ids_of(file) and not wanted):
            continue
        heirs[old] = min(
            files,
            key=lambda name: (
                -len(wanted & _ids_of(files[name])),
                files[name] == before.get(name),
                -files[name].heat,
                name,
            ),
        )
    return heirs


def _ids_of(file: ProfileFile) -> frozenset[str]:
    return frozenset((*file.atoms, *file.archived))


class _Ids:
    """Knows the atom ids that can be meant."""

    def __init__(self, before: Mapping[str, ProfileFile], run: Run) -> None:
        known = {one for file in before.values() for one in _ids_of(file)}
        self._known = frozenset(known.union(run.atoms, run.removed))
        self._removed = run.removed
        self._by_prefix: dict[str, list[str]] = {}
        for one in sorted(self._known):
            self._by_prefix.setdefault(one[:_MIN_PREFIX], []).append(one)

    def resolved(self, file: ProfileFile) -> tuple[ProfileFile, list[str]]:
        """Write ids out in full, find the archived ones, and give those that nobody knows."""
        atoms = {one: self._full(one) for one in file.atoms}
        archived = {one: self._full(one) for one in file.archived}
        dropped = [one for one, full in (atoms | archived).items() if full is None]
        kept = tuple(dict.fromkeys(full for full in atoms.values() if full))
        in_text = (self._full(word) for word in _archive_words(file.body))
        found = dict.fromkeys(
            [*(full for full in archived.values() if full), *filter(None, in_text)]
        )
        rest = tuple(one for one in found if one not in kept)
        return replace(file, atoms=kept, archived=rest), dropped

    def rests_on_removed_alone(self, file: ProfileFile, known: ProfileFile | None) -> bool:
        """Say whether nothing that a file rests on is left. A file without ids rests on itself."""
        now = _ids_of(file) or (_ids_of(known) if known else frozenset())
        return bool(now) and now <= self._removed

    def without_removed(self, file: ProfileFile) -> ProfileFile:
        """Take out the ids of removed atoms."""
        return replace(
            file,
            atoms=tuple(one for one in file.atoms if one not in self._removed),
            archived=tuple(one for one in file.archived if one not in self._removed),
        )

    def _full(self, word: str) -> str | None:
        if word in self._known:
            return word
        fits = [one for one in self._by_prefix.get(word[:_MIN_PREFIX], ()) if one.startswith(word)]
        return fits[0] if len(word) >= _MIN_PREFIX and len(fits) == 1 else None


def _archive_words(body: str) -> Iterable[str]:
    """Give the words of every section whose heading is ``Archive``, up to the next of its level."""
    level = 0
    for line in body.splitlines():
        heading = re.match(r"#{1,6}(?=[ \t])", line)
        archive = _ARCHIVE.match(line)
        if archive is not None:
            level = len(archive[1])
        elif heading is not None and level and len(heading[0]) <= level:
            level = 0
        if level:
            yield from _WORD.findall(line)

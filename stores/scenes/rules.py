"""What a run must keep to before it is committed, checked by code. Pure.

With a capacity of 15 scenes:

- **12 or more** when the run begins: the prompt asks to update and merge. Nothing is checked.
- **14**: no file may be new. A merge goes into a file that was there.
- **15 or more**: no file may be new, and the run must end with fewer files than it began with.
- Always: at most 15 files at the end.

An atom is *told* by a file that lists it in ``atoms``, and *archived* by one that lists it in
``archived`` (the clean-up puts there what stands in a section ``Archive``). An atom that was
told before the run must be told or archived after it, unless the job says it is removed. A file
that told a removed atom must have another text, or be gone. A new file must list an atom: what
rests on nothing could never be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stores.scenes.document import ProfileFile
from stores.scenes.tidy import Cleaned, Run

__all__ = ["CAPACITY", "Pressure", "Violation", "check_run", "pressure"]

CAPACITY = 15

Pressure = Literal["free", "prefer_merge", "no_new_file", "merge_first"]
"""How full a folder is when a run begins: what the prompt says and what is checked."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule. ``str()`` is written for the model; it holds names and ids, no text.

    :arg reason: a dead letter's reason and a metric label.
    :arg path: the file at fault, or ``None``.
    """

    reason: Literal[
        "unreadable",
        "new_file",
        "not_fewer_files",
        "too_many_files",
        "no_atoms",
        "atom_lost",
        "not_repaired",
    ]
    path: str | None
    detail: str

    def __str__(self) -> str:
        return self.detail


def pressure(count: int, capacity: int = CAPACITY) -> Pressure:
    """Say how full a folder of ``count`` scenes is.

    >>> [pressure(count) for count in (11, 12, 14, 15)]
    ['free', 'prefer_merge', 'no_new_file', 'merge_first']
    """
    if count >= capacity:
        return "merge_first"
    if count >= capacity - 1:
        return "no_new_file"
    return "prefer_merge" if count >= capacity - 3 else "free"


def check_run(
    before: Mapping[str, ProfileFile], cleaned: Cleaned, run: Run, capacity: int = CAPACITY
) -> tuple[Violation, ...]:
    """Give every broken rule, in fixed order; nothing when the run can be committed.

    Files that the clean-up itself took away, because all they rested on is removed, count as
    gone. An untouched folder that a person filled beyond the capacity breaks the rules too: a
    run there has to merge.
    """
    broken = [
        Violation("unreadable", path, f"{path} is not readable UTF-8 text. Write it again.")
        for path in cleaned.unreadable
    ]
    return (*broken, *_counted(before, cleaned, capacity), *_told(before, cleaned, run))


def _counted(before: Mapping[str, ProfileFile], cleaned: Cleaned, capacity: int) -> list[Violation]:
    began, ended = len(before), len(cleaned.files)
    full = pressure(began, capacity)
    broken: list[Violation] = []
    if full in ("no_new_file", "merge_first"):
        broken += [
            Violation(
                "new_file",
                path,
                f"{path} is new, but there were {began} files of at most {capacity}: no new file "
                "is allowed. Put its content into an existing file and mark it [DELETED].",
            )
            for path in cleaned.files
            if path not in before
        ]
    if full == "merge_first" and ended >= began:
        detail = (
            f"There were {began} files of at most {capacity} and there are {ended} now: merge "
            "two or more into one existing file and mark the others [DELETED]."
        )
        broken.append(Violation("not_fewer_files", None, detail))
    elif ended > capacity:
        detail = f"There are {ended} files; at most {capacity} are allowed. Merge some."
        broken.append(Violation("too_many_files", None, detail))
    return broken


def _told(before: Mapping[str, ProfileFile], cleaned: Cleaned, run: Run) -> list[Violation]:
    kept = {one for file in cleaned.files.values() for one in (*file.atoms, *file.archived)}
    lost: dict[str, str] = {}
    for path, file in sorted(before.items()):
        for one in file.atoms:
            if one not in kept and one not in run.removed:
                lost.setdefault(one, path)
    broken = [
        Violation("no_atoms", path, f"{path} is new and lists no atom it rests on under `atoms`.")
        for path, file in cleaned.files.items()
        if path not in before and not (file.atoms or file.archived)
    ]
    broken += [
        Violation(
            "atom_lost",
            path,
            f"Atom {one}, told in {path} before, is in no file any more. List it under `atoms` of "
            "a file that tells it, or under `archived`.",
        )
        for one, path in lost.items()
    ]
    broken += [
        Violation(
            "not_repaired",
            path,
            f"{path} rests on atoms that are gone ({', '.join(gone)}) and its text is unchanged. "
            "Take out what they said.",
        )
        for path, file in sorted(before.items())
        if (gone := sorted(run.removed.intersection((*file.atoms, *file.archived))))
        and path in cleaned.files
        and (cleaned.files[path].body, cleaned.files[path].summary) == (file.body, file.summary)
    ]
    return broken

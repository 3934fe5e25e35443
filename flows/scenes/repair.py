"""Taking out what was forgotten or rejected, by code, before any model is asked. Pure.

Asking a model to take something out would send it there once more, and would have to trust that
it did. So a file that rests on such atoms is not edited: one that rests on nothing else goes,
and any other is written anew, by rules, from the atoms that are left. Its name goes as well,
because it may tell what was forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from flows.scenes.topics import OTHER, topics_of
from flows.scenes.writer import compose, language_of, topic_title
from stores.records import Atom
from stores.scenes import ProfileFile, normal_name, unique_names

__all__ = ["Repaired", "repair"]


class Repaired(NamedTuple):
    """What is left.

    :arg files: every file as it may stay.
    :arg gone: names that are gone, those of rebuilt files included.
    """

    files: dict[str, ProfileFile]
    gone: tuple[str, ...]


def repair(
    files: Mapping[str, ProfileFile],
    resting: Collection[str],
    removed: Collection[str],
    atoms: Mapping[str, Atom],
) -> Repaired:
    """Take out everything that rests on atoms which are gone.

    :arg resting: names of the files that do.
    :arg removed: ids of atoms that were forgotten or rejected.
    :arg atoms: the atoms of the scope that are left, by id.
    """
    hit = {name: file for name, file in files.items() if name in resting}
    kept = {name: file for name, file in files.items() if name not in hit}
    rebuilt: dict[str, ProfileFile] = {}
    for _, file in sorted(hit.items()):
        left = [
            atoms[one]
            for one in (*file.atoms, *file.archived)
            if one in atoms and one not in removed
        ]
        if not left:
            continue
        topics = topics_of(left)
        topic = min(Counter(topics.values()).items(), key=lambda item: (-item[1], item[0]))[0]
        language = language_of([*atoms.values()])
        title = topic_title(topic or OTHER.key, language)
        new = compose(left, title, language, topic)
        wanted = normal_name(title)
        taken = [*kept, *rebuilt]
        name = unique_names([f"{wanted} ", *taken], keep=taken)[f"{wanted} "]
        rebuilt[name] = replace(new, heat=file.heat)
    result = dict(sorted({**kept, **rebuilt}.items()))
    return Repaired(result, tuple(sorted(name for name in hit if name not in rebuilt)))

"""Which atoms a text tells that its front matter does not list. Pure.

Models forget ids, and a text that tells an atom without listing it would outlive its being
forgotten. So the words are compared: an atom that no file lists goes to the file of this run that
has most of its terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flows.reconcile.candidates import terms_of
from stores.records import Atom
from stores.scenes import ProfileFile

__all__ = ["attributed"]

_LEAST_SHARE = 0.6  # of an atom's terms; half of them is what two atoms about one thing share
_LEAST_TERMS = 2


def attributed(
    before: Mapping[str, ProfileFile], after: Mapping[str, ProfileFile], atoms: Sequence[Atom]
) -> dict[str, ProfileFile]:
    """Give the files of a run, each with the atoms that it tells and that are listed nowhere.

    :arg before: the files as they were; one whose text is unchanged is left alone.
    :arg atoms: that a run may have told: what it was given, and what was told before.
    """
    files = dict(after)
    listed = {one for file in files.values() for one in (*file.atoms, *file.archived)}
    open_ones = [atom for atom in atoms if atom.atom_id not in listed]
    texts = {
        name: set(terms_of(f"{file.title}\n{file.summary}\n{file.body}"))
        for name, file in files.items()
        if open_ones and (name not in before or before[name].body != file.body)
    }
    for atom in open_ones:
        terms = set(terms_of(atom.text))
        shared = {name: len(terms & text) for name, text in texts.items()}
        name = max(sorted(shared), key=shared.__getitem__, default="")
        enough = max(min(_LEAST_TERMS, len(terms)), _LEAST_SHARE * len(terms))
        if name and terms and shared[name] >= enough:
            files[name] = replace(files[name], atoms=(*files[name].atoms, atom.atom_id))
    return files

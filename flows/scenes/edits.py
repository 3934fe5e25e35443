"""A person's own text that was asked for from elsewhere, applied under the scope's lock. Pure.

Where the folders are, a person edits the files themselves (:meth:`SceneFolder.edit`). A query
service may be on another machine, so its edits come as jobs, in the order of the scope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from flows.scenes.resting import gone_atoms
from stores.protocols import KeptOut
from stores.records import Atom, ProfileEdit
from stores.scenes import PERSON, ProfileFile, without_navigation

__all__ = ["edit_refused", "edited"]


def edit_refused(
    edit: ProfileEdit,
    files: Mapping[str, ProfileFile],
    atoms: Sequence[Atom],
    kept_out: KeptOut | None,
) -> str:
    """Say why an edit is not carried out, as a reason for skipping; ``""`` when it is.

    The text was written over one that rested on ``edit.atom_ids``. Once one of them is forgotten
    or rejected, the text may tell it again, and comes too late.

    :arg atoms: of the scope, as the store has them.
    """
    living = {one.atom_id for one in atoms} - gone_atoms(atoms, kept_out)
    if not living.issuperset(edit.atom_ids):
        return "forgotten_since"
    return "" if edit.path in files else "nothing_to_edit"


def edited(
    files: Mapping[str, ProfileFile], edit: ProfileEdit, at: datetime
) -> dict[str, ProfileFile]:
    """Give the files with a person's text in the place of one that is there.

    The file keeps its name, its heat and the atoms that it rests on. A title or summary line of
    a persona is read from the text.
    """
    known = files[edit.path]
    others = {name: file for name, file in files.items() if name != edit.path}
    if edit.text is None:
        return others
    body = without_navigation(edit.text).strip()
    title, summary = known.title, known.summary if edit.summary is None else edit.summary
    if known.kind == "persona":
        lines = body.splitlines()
        title = next((line[2:] for line in lines if line.startswith("# ")), title)
        summary = next((line[2:] for line in lines if line.startswith("> ")), "")
    new = replace(known, title=title, summary=summary, body=body)
    if new != known:
        new = replace(new, generator=PERSON, updated=max(at, known.updated))
    return dict(sorted({**others, edit.path: new}.items()))

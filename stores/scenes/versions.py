"""From generations of files to versions of profiles, as ``profiles`` carries them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stores.records import Profile, ProfileKind, profile_id
from stores.scenes.document import ProfileFile, render
from stores.scenes.generation import Generation, digest

__all__ = ["changed_profiles"]


def changed_profiles(
    scope: str,
    kind: ProfileKind,
    before: Mapping[str, ProfileFile],
    after: Mapping[str, ProfileFile],
    current: Generation,
) -> list[Profile]:
    """Give a profile for each file that is new, changed or gone, in order of name.

    The same arguments give equal records, so producing them again changes nothing. A profile's
    versions grow, not always by one: the version is the generation that changed the file last,
    for a file that is gone the one that no longer has it. A file that is gone carries nothing of
    its text.

    :arg before: files of the generation that was produced last; empty to give all of ``after``.
    :arg after: files of ``current``.
    """
    changed: list[Profile] = []
    for path in sorted({*before, *after}):
        file = after.get(path)
        if file is None:
            changed.append(_gone(scope, kind, path, before[path], current))
        elif before.get(path) != file:
            changed.append(
                Profile(
                    profile_id=profile_id(scope, kind, path),
                    scope=scope,
                    kind=kind,
                    path=path,
                    title=file.title,
                    summary=file.summary,
                    text=file.body,
                    heat=file.heat,
                    atom_ids=(*file.atoms, *file.archived),
                    archived_ids=file.archived,
                    fields=dict(file.extra),
                    version=current.versions.get(path, current.number),
                    content_hash=digest(render(file).encode("utf-8")),
                    created_at=file.created,
                    updated_at=file.updated,
                    generator=file.generator,
                )
            )
    return changed


def _gone(
    scope: str, kind: ProfileKind, path: str, last: ProfileFile, current: Generation
) -> Profile:
    change = current.change
    return Profile(
        profile_id=profile_id(scope, kind, path),
        scope=scope,
        kind=kind,
        path=path,
        title="",
        text="",
        version=current.number,
        content_hash=digest(b""),
        created_at=last.created,
        updated_at=max(last.updated, change.at) if change else last.updated,
        generator=change.author if change else last.generator,
        deleted=True,
    )

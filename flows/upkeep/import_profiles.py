"""Writes the scenes and personas of an export back: files first, then the topic.

Scenes belong together: a merged one beside those it came from would tell everything twice. So a
scope takes all scenes of an export or none. Where it has scenes of its own, they stay, whether
older or newer, and the result says so; the same for its persona. A scope that has a part of the
export's already was being imported when somebody ended it: it takes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from connectors.log import Appender
from flows.scenes.checks import refusals
from flows.scenes.profiles import file_of
from flows.upkeep.export_format import profile_line
from flows.upkeep.importing import Appended
from stores.protocols import KeptOut
from stores.records import OutRecord, Profile, ProfileKind
from stores.scenes import Change, ProfileFile, SceneFolder, index_of, with_navigation

__all__ = ["ImportProfiles", "Left", "ProfilesDone"]

IMPORTED = "imported"
"""Reason, in the history of a folder, of the generation that an import made."""


@dataclass(frozen=True, slots=True)
class Left:
    """Scenes or a persona of an export that were not written, because others are here.

    :arg newer: those here were changed later than any of the export.
    """

    scope: str
    kind: ProfileKind
    exported: int
    here: int
    newer: bool

    def __str__(self) -> str:
        when = "newer" if self.newer else "not newer, and maybe edited since"
        what = "scenes" if self.kind == "scene" else "persona"
        return (
            f"{self.scope}: {what} of the export left out ({self.exported}): this scope has its "
            f"own ({self.here}, {when}), and they stay"
        )


@dataclass(slots=True)
class ProfilesDone(Appended):
    """What became of scenes and personas. ``refused``: they hold a secret or a rejected value."""

    left: list[Left] = field(default_factory=list)


class ImportProfiles:
    """Brings scenes and personas of an export in, scope by scope. Doing it twice changes nothing.

    Raises what disk and log raise; run again it goes on. No flow may be at work on the scope.

    :arg here: every scene and persona that the topic holds.
    :arg gone: gives the atoms of a scope that must not be told here.
    :arg topic: full name of the profiles topic.
    """

    def __init__(
        self,
        here: Iterable[Profile],
        folders: dict[ProfileKind, SceneFolder],
        appender: Appender,
        topic: str,
        *,
        gone: Callable[[str], frozenset[str]],
        kept_out: KeptOut,
    ) -> None:
        self._here: dict[tuple[str, ProfileKind], dict[str, Profile]] = {}
        for one in here:
            self._here.setdefault((one.scope, one.kind), {})[one.path] = one
        self._folders = folders
        self._appender = appender
        self._topic = topic
        self._gone = gone
        self._kept_out = kept_out

    def scope(self, scope: str, exported: Sequence[Profile], done: ProfilesDone) -> None:
        """Bring in what an export holds of one scope."""
        told = [one for one in exported if self._may_be_told(one, done)]
        scenes = [one for one in told if one.kind == "scene"]
        index = index_of({one.path: file_of(one) for one in scenes})
        for kind in get_args(ProfileKind):
            of_kind = [one for one in told if one.kind == kind]
            if not of_kind:
                continue
            files = {one.path: file_of(one) for one in of_kind}
            if kind == "persona":  # its file has the navigation behind it, its record has not
                files = {
                    path: replace(file, body=with_navigation(file.body, index))
                    for path, file in files.items()
                }
            self._bring(scope, kind, of_kind, files, done)

    def _may_be_told(self, profile: Profile, done: ProfilesDone) -> bool:
        if not self._gone(profile.scope).isdisjoint(profile.atom_ids):
            done.forgotten += 1
            return False
        text = "\n".join((profile.title, profile.summary, profile.text))
        if refusals(profile.scope, text, self._kept_out):
            done.refused += 1
            return False
        return True

    def _bring(
        self,
        scope: str,
        kind: ProfileKind,
        exported: Sequence[Profile],
        files: dict[str, ProfileFile],
        done: ProfilesDone,
    ) -> None:
        here, folder = self._here.get((scope, kind), {}), self._folders[kind]
        on_disk = folder.files(scope)
        other_rows = any(here[path] not in exported for path in here)
        if other_rows or (on_disk and on_disk != files):
            newest_here = max(
                [one.updated_at for one in here.values()]
                + [one.updated for one in on_disk.values()]
            )
            newer = newest_here > max(one.updated_at for one in exported)
            done.left.append(Left(scope, kind, len(exported), max(len(here), len(on_disk)), newer))
            return
        if not on_disk:
            at = max(one.updated_at for one in exported)
            with folder.checkout(scope, folder.newest_token(scope), at) as copy:
                folder.commit(copy, files, Change(at, "system", IMPORTED))
        missing = [one for one in exported if one.path not in here]
        done.present += len(exported) - len(missing)
        if missing:
            self._appender.append(
                [
                    OutRecord(self._topic, one.profile_id.encode(), profile_line(one))
                    for one in missing
                ]
            )
        done.written += len(missing)

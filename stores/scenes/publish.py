"""The switch from one generation to the next. The caller holds the lock of the scope.

Everything is written and flushed first; then one rename of the pointer makes it current. Killed
before it, the old generation is current and what was written is removed later; killed after it,
the new one is.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from stores.scenes.document import ProfileFile, render
from stores.scenes.durable import Durable
from stores.scenes.generation import Change, Generation, Pointer, digest
from stores.scenes.layout import (
    MANIFEST,
    POINTER,
    folder_name,
    generation_numbers,
    manifest_of,
)
from stores.scenes.names import normal_name

__all__ = ["Publisher"]


class Publisher:
    """Makes generations current, and removes those that are no longer kept.

    :arg keep: generations that are kept, the current one included.
    :arg remembered_jobs: applied jobs that are remembered for each scope.
    """

    def __init__(self, disk: Durable, keep: int, remembered_jobs: int) -> None:
        self._disk = disk
        self._keep = keep
        self._remembered_jobs = remembered_jobs

    def publish(
        self,
        home: Path,
        pointer: Pointer,
        files: Mapping[str, ProfileFile],
        change: Change,
        *,
        asks: str = "",
        always: bool = False,
    ) -> Generation:
        """Make ``files`` current and give their generation. Durable when it returns.

        Files equal to the current ones make no generation, unless ``always``; the jobs are
        remembered either way. Raises ``OSError``, and then the old generation is current; only
        when flushing the rename itself failed it may be the new one.
        """
        contents = _rendered(files)
        now = manifest_of(home, pointer.generation)
        digests = {name: digest(data) for name, data in contents.items()}
        if digests == now.digests and not always:
            unchanged = pointer.after(now.number, change.jobs, self._remembered_jobs, asks)
            if unchanged != pointer:
                self._disk.switch(home / POINTER, unchanged.to_json())
            return now
        number = pointer.generation + 1
        versions = {
            name: now.versions[name] if now.digests.get(name) == found else number
            for name, found in digests.items()
        }
        generation = Generation(number, now.number, pointer.token, change, versions, digests)
        after = pointer.after(number, change.jobs, self._remembered_jobs, asks)
        folder, new = home / folder_name(number), home / f"{POINTER}.tmp"
        try:
            if folder.exists():  # of a run that was killed before its switch
                shutil.rmtree(folder)
            folder.mkdir()
            written = {folder / name: data for name, data in contents.items()}
            written |= {folder / MANIFEST: generation.to_json(), new: after.to_json()}
            self._disk.write(written, (folder, home))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            new.unlink(missing_ok=True)
            raise
        self._disk.rename(new, home / POINTER)
        return generation

    def kept(self, home: Path, pointer: Pointer) -> list[int]:
        """Give the numbers of the generations that are kept, the current one last."""
        oldest = pointer.generation - self._keep + 1
        return [one for one in generation_numbers(home) if oldest <= one <= pointer.generation]

    def prune(self, home: Path, pointer: Pointer, keep: int | None = None) -> None:
        """Remove every generation that is no longer kept, or never became current.

        Apart from ``publish``, because it takes as long: a commit leaves it to the next checkout.
        """
        oldest = pointer.generation - (self._keep if keep is None else keep) + 1
        for number in generation_numbers(home):
            if not oldest <= number <= pointer.generation:
                shutil.rmtree(home / folder_name(number), ignore_errors=True)

    def sweep(self, home: Path, pointer: Pointer, keep: int | None = None) -> None:
        """Prune, and remove all copies."""
        self.prune(home, pointer, keep)
        for leftover in home.glob("work-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        (home / f"{POINTER}.tmp").unlink(missing_ok=True)


def _rendered(files: Mapping[str, ProfileFile]) -> dict[str, bytes]:
    for name in files:
        if normal_name(name) != name:
            message = f"{name!r} is no safe file name; clean_up gives safe ones"
            raise ValueError(message)
    return {name: render(file).encode("utf-8") for name, file in sorted(files.items())}

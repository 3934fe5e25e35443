"""Scene folders: per scope, whole generations of Markdown files and one pointer to the current.

On disk, for each scope, under the root::

    <hash of the scope>/
        scope           the scope key, so that a person can tell whose folder it is
        current         the pointer: generation, newest fencing token, applied jobs
        lock            held while something is changed
        g000007/        a generation: *.md and manifest.json
        work-42-x1y2/   the copy that the holder of fencing token 42 works on

What a crash leaves, at any instruction: the old or the new generation is current, whole. A
copy or an unfinished generation that is left over is removed at the next checkout. A full disk
is ``ServiceUnavailable`` and leaves the old one.

A person may edit the files of the current generation in place, in any editor: the next checkout
takes that as a generation of its own, and a commit that was under way by then is refused.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from stores.errors import ServiceUnavailable
from stores.ids import content_id
from stores.records import ProfileKind
from stores.scenes.document import DELETED_MARK, ProfileFile, decode, parse, render
from stores.scenes.durable import Durable, flush_folder, locked
from stores.scenes.errors import GenerationMoved, StaleFence, UnknownScene
from stores.scenes.generation import Applied, Change, Generation, Pointer, digest
from stores.scenes.layout import (
    LOCK,
    POINTER,
    SCOPE,
    edited_files,
    folder_name,
    manifest_of,
    md_files,
    pointer_of,
)
from stores.scenes.names import unique_names
from stores.scenes.publish import Publisher

__all__ = ["PERSON", "Files", "SceneFolder", "WorkingCopy"]

PERSON = "person"
"""Author and generator of what a person wrote."""

Files = Mapping[str, ProfileFile]
"""The files of one generation by name."""

_DISK = "scene folder"
_READ_ATTEMPTS = 5
_FILES_KNOWN = 2048  # of a few kB each
_UNDATED = datetime(1970, 1, 1, tzinfo=timezone.utc)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """A copy of the current generation for one run of an agent; leaving the block removes it.

    :arg path: the folder, with ``.md`` files only.
    :arg base: the generation it is a copy of.
    :arg files: the files as they were, repaired; the copy holds them as written by ``render``.
    """

    scope: str
    path: Path
    base: Generation
    token: int
    files: Files

    def __enter__(self) -> WorkingCopy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def contents(self) -> dict[str, bytes]:
        """Read every file as the agent left it: what :func:`stores.scenes.clean_up` takes."""
        with _disk_errors():
            return md_files(self.path)


class SceneFolder:
    """All scene folders (or persona folders) under one root.

    Thread-safe, and safe between processes on one machine. Every call blocks for milliseconds:
    call it from a thread. Raises ``ServiceUnavailable`` when the disk does.

    :arg root: made when missing.
    :arg kind: what the files are. Scenes and personas each need a root of their own.
    :arg keep: generations that are kept, the current one included.
    :arg remembered_jobs: applied jobs that are remembered for each scope.
    """

    def __init__(
        self,
        root: Path,
        kind: ProfileKind = "scene",
        *,
        keep: int = 10,
        remembered_jobs: int = 500,
    ) -> None:
        self._root = root
        self._kind: ProfileKind = kind
        self._disk = Durable()
        self._publisher = Publisher(self._disk, keep, remembered_jobs)
        # A run reads every file of its scope some five times, and changes one or two.
        self._read_file = lru_cache(_FILES_KNOWN)(self._read_file_once)

    def close(self) -> None:
        """End the threads that write; nothing can be changed after it."""
        self._disk.close()

    # --- read --------------------------------------------------------------------------------

    def scopes(self) -> list[str]:
        """List the scopes that have a folder, in order."""
        with _disk_errors():
            return sorted(path.read_text("utf-8") for path in self._root.glob(f"*/{SCOPE}"))

    def current(self, scope: str) -> Generation:
        """Give the current generation; number 0 when the scope has none."""
        return self._read(scope, lambda home, pointer: manifest_of(home, pointer.generation))

    def files(self, scope: str, number: int | None = None) -> dict[str, ProfileFile]:
        """Read all files of one generation, the current one by default, in order of name.

        Raises :class:`UnknownScene` for a generation that is not kept.
        """

        def read(home: Path, pointer: Pointer) -> dict[str, ProfileFile]:
            wanted = pointer.generation if number is None else number
            if wanted and wanted not in self._publisher.kept(home, pointer):
                raise FileNotFoundError(wanted)
            return self._parsed(home, manifest_of(home, wanted))

        return self._read(scope, read, -1 if number is None else number)

    def history(self, scope: str) -> list[Generation]:
        """List the kept generations, newest first."""

        def read(home: Path, pointer: Pointer) -> list[Generation]:
            newest_first = reversed(self._publisher.kept(home, pointer))
            return [manifest_of(home, one) for one in newest_first]

        return self._read(scope, read)

    def applied(self, scope: str, job: str) -> Applied | None:
        """Give what became of a job, or ``None`` when it was not applied.

        To produce its profiles again, compare the files of that generation's ``base`` with the
        current ones (all current ones when the base is no longer kept).
        """
        return self._read(scope, lambda home, pointer: pointer.jobs.get(job))

    def newest_token(self, scope: str) -> int:
        """Give the newest fencing token seen: ask a lock for one above it."""
        return self._read(scope, lambda home, pointer: pointer.token)

    def moved(self, scope: str) -> dict[str, str]:
        """Give, for names that are gone in the kept generations, the name that took their place."""
        moved: dict[str, str] = {}
        for generation in reversed(self.history(scope)):
            step = dict(generation.change.moved) if generation.change else {}
            moved = {old: step.get(new, new) for old, new in moved.items()} | step
        return moved

    # --- change ------------------------------------------------------------------------------

    def checkout(self, scope: str, token: int, at: datetime) -> WorkingCopy:
        """Make a copy to work on, and clear away what earlier runs left.

        From here on an older token is refused. What a person changed in place becomes a
        generation first. Raises :class:`StaleFence`.

        :arg at: event time of the job; dates what was changed in place.
        """
        with self._changing(scope) as home:
            pointer = pointer_of(home)
            _check_token(pointer, token)
            pointer = self._adopt(home, pointer, at)
            if token > pointer.token:
                pointer = replace(pointer, token=token)
                self._disk.switch(home / POINTER, pointer.to_json())
            self._publisher.sweep(home, pointer)
            base = manifest_of(home, pointer.generation)
            files = self._parsed(home, base)
            path = Path(tempfile.mkdtemp(prefix=f"work-{token}-", dir=home))
            for name, file in files.items():
                (path / name).write_bytes(render(file).encode("utf-8"))
            return WorkingCopy(scope, path, base, token, files)

    def commit(
        self, copy: WorkingCopy, files: Files, change: Change, *, asks: str = ""
    ) -> Generation:
        """Make ``files`` the current generation by one rename. Durable when it returns.

        Files that are the same as the current ones make no generation; the jobs are remembered.
        Raises :class:`StaleFence` when a newer token was seen, :class:`GenerationMoved` when
        the current generation is no longer what the copy was made of; then nothing is written.

        :arg asks: what the run asks the persona stage for; remembered with its jobs, until
            :meth:`forget_history`.
        """
        with self._changing(copy.scope) as home:
            pointer = pointer_of(home)
            _check_token(pointer, copy.token)
            base = copy.base.number
            edited = pointer.generation == base and edited_files(home, base) is not None
            if pointer.generation != base or edited:
                who = "edited in place" if edited else f"at generation {pointer.generation}"
                message = f"the folder is {who}; this work was based on generation {base}"
                raise GenerationMoved(message, base=base, current=pointer.generation)
            return self._publisher.publish(home, pointer, files, change, asks=asks)

    def edit(
        self, scope: str, path: str, text: str | None, at: datetime, base: int | None = None
    ) -> Generation:
        """Take a person's text for one file, as a generation of its own.

        What the front matter does not say stays as it was. Blank text, ``[DELETED]`` or
        ``None`` takes the file away. A new file gets a safe name that is free.

        :arg base: the generation the person looked at. :class:`GenerationMoved` when this file
            has changed since; other files may have.
        """
        with self._changing(scope) as home:
            pointer = self._adopt(home, pointer_of(home), at)
            now = manifest_of(home, pointer.generation)
            if base is not None and now.versions.get(path, 0) > base:
                message = f"{path} has changed since generation {base}; look at it and edit again"
                raise GenerationMoved(message, base=base, current=now.number)
            files = self._parsed(home, now)
            if text is None or text.strip() in ("", DELETED_MARK):
                if path not in files:
                    message = f"{scope} has no file {path}"
                    raise UnknownScene(message)
                del files[path]
            else:
                known = files.get(path)
                name = path if known else unique_names([path, *files], keep=files)[path]
                file = parse(text, self._kind, name, at, known).file
                dated = at if known is None else max(at, known.updated)
                files[name] = replace(file, generator=PERSON, updated=dated)
            return self._by_person(home, pointer, files, Change(at, PERSON, f"edited {path}"))

    def restore(self, scope: str, number: int, at: datetime) -> Generation:
        """Make an earlier generation's files the current ones again, as a new generation.

        A file that is there now keeps its heat where that is higher. Raises
        :class:`UnknownScene` when the generation is not kept.
        """
        with self._changing(scope) as home:
            pointer = self._adopt(home, pointer_of(home), at)
            if number not in self._publisher.kept(home, pointer):
                raise _not_kept(scope, number)
            now = self._parsed(home, manifest_of(home, pointer.generation))
            files = {
                name: replace(file, heat=max(file.heat, now[name].heat)) if name in now else file
                for name, file in self._parsed(home, manifest_of(home, number)).items()
            }
            change = Change(at, PERSON, f"restored generation {number}")
            return self._by_person(home, pointer, files, change)

    def forget_history(self, scope: str) -> None:
        """Remove every generation but the current one, all copies, and what runs asked for.

        For what is forgotten. Idempotent, and complete only when it returns: repeat it after a
        crash.
        """
        if self._home(scope).exists():
            with self._changing(scope) as home:
                pointer = pointer_of(home)
                if pointer != pointer.without_words():
                    self._disk.switch(home / POINTER, pointer.without_words().to_json())
                self._publisher.sweep(home, pointer, keep=1)
        self._read_file.cache_clear()

    # --- inside ------------------------------------------------------------------------------

    def _home(self, scope: str) -> Path:
        return self._root / content_id("scene-folder", scope)

    def _read(self, scope: str, read: Callable[[Path, Pointer], _T], number: int = -1) -> _T:
        """Read without the lock; what is pruned meanwhile is read again, from a newer state."""
        home = self._home(scope)
        with _disk_errors():
            for _ in range(_READ_ATTEMPTS):
                pointer = pointer_of(home)
                try:
                    return read(home, pointer)
                except FileNotFoundError:
                    if pointer_of(home).generation == pointer.generation:
                        break
        raise _not_kept(scope, number if number >= 0 else pointer.generation)

    @contextmanager
    def _changing(self, scope: str) -> Iterator[Path]:
        """Hold the scope's lock, and see that its folder is there."""
        home = self._home(scope)
        with _disk_errors():
            home.mkdir(parents=True, exist_ok=True)
            with locked(home / LOCK):
                if not (home / SCOPE).exists():
                    self._disk.switch(home / SCOPE, scope.encode("utf-8"))
                    flush_folder(self._root)
                yield home

    def _parsed(self, home: Path, generation: Generation) -> dict[str, ProfileFile]:
        if generation.change is None:
            return {}
        at = generation.change.at
        found = md_files(home / folder_name(generation.number))
        return {
            name: self._read_file(name, data) or parse(decode(data), self._kind, name, at).file
            for name, data in found.items()
            if name in generation.digests  # one that a person put there is not adopted yet
        }

    def _read_file_once(self, name: str, data: bytes) -> ProfileFile | None:
        """Read a file that is whole, whatever the time; ``None`` where something is missing."""
        parsed = parse(decode(data), self._kind, name, _UNDATED)
        return None if parsed.repairs else parsed.file

    def _by_person(self, home: Path, pointer: Pointer, files: Files, change: Change) -> Generation:
        generation = self._publisher.publish(home, pointer, files, change)
        self._publisher.prune(home, pointer_of(home))
        return generation

    def _adopt(self, home: Path, pointer: Pointer, at: datetime) -> Pointer:
        """Make a generation of what a person changed in place; fields they lost come back."""
        edited = edited_files(home, pointer.generation)
        if edited is None:
            return pointer
        now = manifest_of(home, pointer.generation)
        kept = now.base in self._publisher.kept(home, pointer)
        earlier = self._parsed(home, manifest_of(home, now.base)) if kept else {}
        files: dict[str, ProfileFile] = {}
        for old, name in unique_names(edited, keep=now.digests).items():
            text = decode(edited[old])
            if text.strip() in ("", DELETED_MARK):
                continue
            file = parse(text, self._kind, name, at, earlier.get(name)).file
            if digest(edited[old]) != now.digests.get(name):
                file = replace(file, generator=PERSON, updated=max(at, file.updated))
            files[name] = file
        change = Change(at, PERSON, "edited in place")
        self._publisher.publish(home, pointer, files, change, always=True)
        return pointer_of(home)


def _check_token(pointer: Pointer, token: int) -> None:
    if token < pointer.token:
        message = f"fencing token {token} is older than {pointer.token}, the newest seen"
        raise StaleFence(message, token=token, newest=pointer.token)


def _not_kept(scope: str, number: int) -> UnknownScene:
    message = f"{scope} keeps no generation {number}; see its history"
    return UnknownScene(message)


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ServiceUnavailable(_DISK, error.strerror or type(error).__name__) from error

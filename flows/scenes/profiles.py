"""From committed files to what others read: the profiles topic, then the search index.

What the index holds is compared with the files each time and brought in line, in this order:
topic, then index. So what is in line in the index is in the topic as well, whatever a crash
came between; and a person's edit, or an index that was lost, is put right by the next run: by
one that begins an hour after the last look at the index, for what was written is remembered until
then. Who holds the scope's lock is the only one to write; to read it again before each run was
most of what the store did for scenes and personas.

What rests on an atom that is gone leaves topic and index at once (:meth:`ProfileSync.hide`), and
is not brought back before its file is rewritten.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flows.scenes.resting import Resting
from stores.protocols import Embedder, ProfileStore, Vectors
from stores.records import OutRecord, Profile, ProfileKind
from stores.scenes import Generation, ProfileFile, changed_profiles

__all__ = ["ProfileSync", "file_of"]

_LOOK_AGAIN_S = 3600.0
_REMEMBERED = 2000  # of scope and kind; some fifteen profiles each, without their texts


def file_of(profile: Profile) -> ProfileFile:
    """Give the file that a profile was made of."""
    archived = profile.archived_ids
    return ProfileFile(
        kind=profile.kind,
        title=profile.title,
        body=profile.text,
        created=profile.created_at,
        updated=profile.updated_at,
        summary=profile.summary,
        heat=profile.heat,
        atoms=tuple(one for one in profile.atom_ids if one not in archived),
        archived=archived,
        generator=profile.generator,
        extra=tuple(profile.fields.items()),
    )


class _Known(NamedTuple):
    """What is remembered of a profile in the index; a read one has the same two, and the rest."""

    version: int
    content_hash: str


class ProfileSync:
    """Brings topic and index in line with the files of a scope.

    :arg publish: writes records to the log, durably. Blocking; called from a thread.
    :arg topic: full name of the profiles topic.
    :arg resting: says what is gone; ``None`` where nothing is ever forgotten.
    :arg monotonic: seconds, to know when the index is to be looked at again.
    """

    def __init__(
        self,
        store: ProfileStore,
        embedder: Embedder,
        publish: Callable[[Sequence[OutRecord]], object],
        topic: str,
        resting: Resting | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._publish = publish
        self._topic = topic
        self._resting = resting
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._remembered: OrderedDict[
            tuple[str, ProfileKind], tuple[float, Mapping[str, _Known | Profile]]
        ] = OrderedDict()

    def hide(self, scope: str) -> None:
        """Take out of topic and index what rests on an atom that is gone, until it is rewritten.

        Idempotent. Blocking. Raises what store and log raise. A run that is under way meanwhile
        finds out by itself: it looks what is gone before it writes, and again after.
        """
        self._take_out(scope, self._gone(scope))

    def _hides(self, scope: str, gone: frozenset[str], file: ProfileFile) -> bool:
        ids = (*file.atoms, *file.archived)
        return self._resting is not None and self._resting.hides(scope, gone, ids, file.updated)

    def _gone(self, scope: str) -> frozenset[str]:
        return self._resting.gone(scope) if self._resting is not None else frozenset()

    def _take_out(self, scope: str, gone: frozenset[str]) -> None:
        if self._resting is None or not self._resting.concerns(scope):
            return
        resting = [
            one
            for one in self._store.profiles_of(scope)
            if one.scope == scope and self._resting.hides(scope, gone, one.atom_ids, one.updated_at)
        ]
        if not resting:
            return
        # Topic first: what is in the index no more is in the topic no more, whatever comes between.
        self._publish([_erased(self._topic, one) for one in resting])
        self._store.upsert_profiles(
            [one.model_copy(update={"deleted": True}) for one in resting],
            np.zeros((len(resting), self._embedder.dimension), np.float32),
        )

    async def bring(
        self,
        scope: str,
        kind: ProfileKind,
        files: Mapping[str, ProfileFile],
        generation: Generation,
        *,
        erase: bool = False,
    ) -> tuple[str, ...]:
        """Bring one kind of profile of a scope in line; give the names that were written.

        Doing it twice changes nothing. A file that rests on an atom that is gone counts as not
        there. Raises what store, log and embedder raise.

        :arg erase: what is gone was forgotten: its record in the topic is taken out, name and
            all, not followed by one that says it is deleted.
        """
        gone_before = await asyncio.to_thread(self._gone, scope)
        hidden = {path for path, file in files.items() if self._hides(scope, gone_before, file)}
        files = {path: file for path, file in files.items() if path not in hidden}
        read_at, stored = await self._in_index(scope, kind, files)
        written = [
            _after(one, stored.get(one.path))
            for one in changed_profiles(scope, kind, {}, files, generation)
            if one.path not in stored or stored[one.path].content_hash != one.content_hash
        ]
        before = {
            path: file_of(one)
            for path, one in stored.items()
            if path not in files and isinstance(one, Profile)
        }
        gone = [
            _after(one, stored[one.path])
            for one in changed_profiles(scope, kind, before, {}, generation)
        ]
        if written or gone:
            records = [_record(self._topic, one) for one in written]
            records += [
                _erased(self._topic, one)
                if erase or one.path in hidden
                else _record(self._topic, one)
                for one in gone
            ]
            await asyncio.to_thread(self._publish, records)
            vectors = await self._vectors(written, len(gone))
            await asyncio.to_thread(self._store.upsert_profiles, [*written, *gone], vectors)
        now = {path: one for path, one in stored.items() if path in files}
        self._remember(scope, kind, read_at, now | {one.path: one for one in written})
        if not written and not gone:
            return ()
        gone_after = await asyncio.to_thread(self._gone, scope)
        if any(self._hides(scope, gone_after, file) for file in files.values()):
            await asyncio.to_thread(self._take_out, scope, gone_after)
        return tuple(one.path for one in (*written, *gone))

    async def _in_index(
        self, scope: str, kind: ProfileKind, files: Mapping[str, ProfileFile]
    ) -> tuple[float, Mapping[str, _Known | Profile]]:
        """Give when the index was read, and what it holds by name; forgets it for the time being.

        Where something leaves the index it is read, for it has to be told whole, and where
        anything of the scope is kept out, for then others take out of its index as well.
        """
        with self._lock:
            read_at, known = self._remembered.pop((scope, kind), (-math.inf, {}))
        concerned = self._resting is not None and self._resting.concerns(scope)
        now = self._monotonic()
        if now - read_at < _LOOK_AGAIN_S and not concerned and known.keys() <= files.keys():
            return read_at, known
        profiles = await asyncio.to_thread(self._store.profiles_of, scope, kind)
        return now, {one.path: one for one in profiles}

    def _remember(
        self,
        scope: str,
        kind: ProfileKind,
        read_at: float,
        held: Mapping[str, _Known | Profile],
    ) -> None:
        known = {path: _Known(one.version, one.content_hash) for path, one in held.items()}
        with self._lock:
            self._remembered[scope, kind] = (read_at, known)
            if len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)

    async def _vectors(self, written: Sequence[Profile], gone: int) -> Vectors:
        nothing = np.zeros((gone, self._embedder.dimension), np.float32)
        if not written:
            return nothing
        rows = await self._embedder.embed_passages([one.search_text() for one in written])
        return np.concatenate([rows, nothing])


def _after(profile: Profile, stored: _Known | Profile | None) -> Profile:
    """Let versions grow, also where a folder that was lost counts from 1 again."""
    if stored is None or profile.version > stored.version:
        return profile
    return profile.model_copy(update={"version": stored.version + 1})


def _erased(topic: str, profile: Profile) -> OutRecord:
    return OutRecord(topic, profile.profile_id.encode(), None)


def _record(topic: str, profile: Profile) -> OutRecord:
    value = profile.model_dump_json(exclude_none=True).encode()
    return OutRecord(topic, profile.profile_id.encode(), value)

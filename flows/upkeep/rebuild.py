"""Rebuild: the rows of the store from the topics, without one call of a chat model.

Atoms and profiles from the last record of each, messages from the first record of each id. A row
that is there already, equal in every field, is left alone; so running again goes on where a
killed run was, and changes nothing when it was done. Nothing is deleted here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

from flows.async_stage import Failures, RetryPolicy
from flows.index import has_text
from flows.upkeep.history import History, Tally, Unreadable
from flows.upkeep.profiles import ProfileHistory
from stores.errors import FlowHalted, SedimentError, Transient, UserError
from stores.protocols import Clock, Embedder, Vectors
from stores.records import Atom, IndexedEvent, Profile

__all__ = ["BATCHES_AT_ONCE", "FailedRow", "LayerResult", "Rebuilder", "Rebuilt", "Rows"]

BATCHES_AT_ONCE = 4
"""Batches embedded together: an endpoint's round trips overlap, the bundled model is busy."""

_HALT_AFTER = 20
"""So many rows failed and none written: the endpoint is at fault, not the rows."""

_Row = TypeVar("_Row", Atom, IndexedEvent, Profile)
_Answer = TypeVar("_Answer")


class Rows(Protocol):
    """Where rows are written. Blocking; called from threads."""

    def holds(
        self, records: Sequence[Atom] | Sequence[IndexedEvent] | Sequence[Profile]
    ) -> list[bool]:
        """Say of each record whether it is there, equal in every field (strong read)."""
        ...

    def upsert_atoms(self, atoms: Sequence[Atom], vectors: Vectors) -> None:
        """Write atoms, idempotent by id."""
        ...

    def upsert_events(self, events: Sequence[IndexedEvent], vectors: Vectors) -> None:
        """Write events, idempotent by id."""
        ...

    def upsert_profiles(self, profiles: Sequence[Profile], vectors: Vectors) -> None:
        """Write scenes and personas, idempotent by id."""
        ...


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that could not be embedded or written, for good."""

    layer: str
    scope: str
    id: str
    reason: str
    message: str


@dataclass(slots=True)
class LayerResult:
    """How one layer came along.

    :arg unchanged: rows that were there already.
    """

    written: int = 0
    unchanged: int = 0
    failed: list[FailedRow] = field(default_factory=list)


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild did, so far; also what its progress bars show.

    :arg atoms_total: atoms to do, known once their topic was read through.
    :arg atoms_grew: a flow wrote atoms meanwhile, so the store may now be behind it.
    """

    atoms: LayerResult = field(default_factory=LayerResult)
    events: LayerResult = field(default_factory=LayerResult)
    profiles: LayerResult = field(default_factory=LayerResult)
    atoms_total: int = 0
    scanned: Tally = field(default_factory=Tally)
    atoms_read: Tally = field(default_factory=Tally)
    events_read: Tally = field(default_factory=Tally)
    unreadable: Sequence[Unreadable] = ()
    atoms_grew: bool = False

    @property
    def complete(self) -> bool:
        """True when every row that the topics tell of is in the store."""
        failed = self.atoms.failed or self.events.failed or self.profiles.failed
        return not (failed or self.unreadable or self.atoms_grew)


class Rebuilder:
    """Brings rows into the store, batch by batch.

    Transient errors are tried again as in a flow; then they are raised, and a later run goes
    on. A row that fails for good is kept in the result and costs none of its neighbours.

    :arg batch: rows embedded and written together.
    :arg sleep: waits that many seconds before a retry.
    """

    def __init__(
        self,
        rows: Rows,
        embedder: Embedder,
        clock: Clock,
        *,
        batch: int,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rows = rows
        self._embedder = embedder
        self._clock = clock
        self._batch = batch
        self._retry = retry or RetryPolicy()
        self._sleep = sleep

    async def atoms(
        self,
        history: History,
        done: Rebuilt,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Bring in the atoms of the scopes that are ``wanted``.

        Raises :class:`~stores.errors.Transient` when a dependency stays away, and
        :class:`~stores.errors.FlowHalted` when nothing but failures comes of it.
        """
        final = history.final_atoms(done.scanned)
        done.atoms_total = len(final)
        done.unreadable = final.unreadable
        atoms = (one for one in history.atoms(final, done.atoms_read) if wanted(one.scope))
        await self._bring("atoms", atoms, done.atoms, self._rows.upsert_atoms)
        done.atoms_grew = history.atoms_grew()

    async def events(
        self,
        history: History,
        done: Rebuilt,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Bring in the messages. Raises as :meth:`atoms` does."""
        events = (
            IndexedEvent.of(one)
            for one in history.events(done.events_read, has_text)
            if wanted(one.scope)
        )
        await self._bring("events", events, done.events, self._rows.upsert_events)

    async def profiles(
        self,
        history: ProfileHistory,
        done: Rebuilt,
        wanted: Callable[[str], bool] = lambda _: True,
        gone: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """Bring in the scenes and personas, without those that rest on what is ``gone``.

        Raises as :meth:`atoms` does.
        """
        profiles = (one for one in history.current(gone) if wanted(one.scope))
        await self._bring("profiles", profiles, done.profiles, self._rows.upsert_profiles)
        done.unreadable = (*done.unreadable, *history.unreadable)

    async def _bring(
        self,
        layer: str,
        records: Iterable[_Row],
        result: LayerResult,
        write: Callable[[Sequence[_Row], Vectors], None],
    ) -> None:
        records = iter(records)
        while batches := list(islice(_batches(records, self._batch), BATCHES_AT_ONCE)):
            ended = await asyncio.gather(
                *(self._one_batch(layer, batch, result, write) for batch in batches),
                return_exceptions=True,  # so that no call is left running behind an error
            )
            for error in ended:
                if isinstance(error, BaseException):
                    raise error
            if len(result.failed) >= _HALT_AFTER and not result.written:
                message = (
                    f"{layer}: the first {len(result.failed)} rows all failed for good; the last: "
                    f"{result.failed[-1].message}. Repair the cause and run it again"
                )
                raise FlowHalted(message)

    async def _one_batch(
        self,
        layer: str,
        batch: Sequence[_Row],
        result: LayerResult,
        write: Callable[[Sequence[_Row], Vectors], None],
    ) -> None:
        held = await self._persistently(lambda: asyncio.to_thread(self._rows.holds, batch))
        missing = [one for one, there in zip(batch, held, strict=True) if not there]
        result.unchanged += len(batch) - len(missing)
        await self._write(layer, missing, result, write)

    async def _write(
        self,
        layer: str,
        batch: Sequence[_Row],
        result: LayerResult,
        write: Callable[[Sequence[_Row], Vectors], None],
    ) -> None:
        if not batch:
            return

        async def once() -> None:
            vectors = await self._embedder.embed_passages([one.search_text() for one in batch])
            await asyncio.to_thread(write, batch, vectors)

        try:
            await self._persistently(once)
        except (Transient, UserError):
            raise
        except SedimentError as error:
            if len(batch) == 1:
                result.failed.append(_failed(layer, batch[0], error))
                return
            half = len(batch) // 2  # whichever row is at fault shall fail alone
            await self._write(layer, batch[:half], result, write)
            await self._write(layer, batch[half:], result, write)
        else:
            result.written += len(batch)

    async def _persistently(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Make a call, again after what may pass, and raise what does not."""
        failures = Failures()
        while True:
            try:
                return await call()
            except SedimentError as error:
                now = self._clock.now()
                failures, due = self._retry.decide(error, failures, now, 0.0)
                if due is None:
                    raise
                await self._sleep((due - now).total_seconds())


def _batches(records: Iterator[_Row], size: int) -> Iterator[list[_Row]]:
    while batch := list(islice(records, size)):
        yield batch


def _failed(layer: str, row: Atom | IndexedEvent | Profile, error: SedimentError) -> FailedRow:
    if isinstance(row, Profile):
        own_id = row.profile_id
    else:
        own_id = row.atom_id if isinstance(row, Atom) else row.event_id
    return FailedRow(layer, row.scope, own_id, error.reason, error.message)

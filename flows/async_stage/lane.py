"""The queue of one key: what may be called next, what has ended, what may leave. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Generic, TypeVar

from flows.async_stage.retry import Failures

__all__ = ["Call", "Done", "Failed", "Lane", "PendingItem"]

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


@dataclass(frozen=True, slots=True)
class Done(Generic[I, O]):
    """An item whose work succeeded.

    :arg attempts: calls it took, the last one included, lock conflicts left out.
    """

    item: I
    output: O
    attempts: int


@dataclass(frozen=True, slots=True)
class Failed(Generic[I]):
    """An item given up: it belongs into the dead-letter topic.

    :arg reason: machine-readable reason of the last error, or ``internal_error``.
    :arg error_class: name of the last error's class.
    :arg message: the last error in words, without conversation text.
    :arg attempts: calls it took part in, lock conflicts left out.
    """

    item: I
    reason: str
    error_class: str
    message: str
    attempts: int
    first_failed_at: datetime
    last_failed_at: datetime


_NONE = Failures()


@dataclass(frozen=True, slots=True)
class PendingItem(Generic[I]):
    """One item that is not emitted yet, as it stands in the recovery snapshot.

    Results that were computed and not emitted are not kept: they are computed again after a
    restart. Work is idempotent by contract, because a crash between a call and the next snapshot
    repeats it anyway.

    :arg due: when its retry is due; ``None`` when it need not wait.
    """

    item: I
    accepted_at: datetime
    failures: Failures = _NONE
    due: datetime | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Nearly no item has failed; a pickle of what has not is half as large without that.
        fields = (self.item, self.accepted_at)
        if self.due is None and self.failures is _NONE:
            return (PendingItem, fields)
        return (PendingItem, (*fields, self.failures, self.due))


@dataclass(slots=True, eq=False)
class _Entry(Generic[I, O]):
    state: PendingItem[I]
    result: Done[I, O] | Failed[I] | None = None


@dataclass(slots=True, eq=False)
class Call(Generic[I, O]):
    """Neighbouring items that go into one call of the work function, in order."""

    entries: list[_Entry[I, O]]
    running: bool = False
    due: datetime | None = None
    items: list[I] = field(init=False)

    def __post_init__(self) -> None:
        self.items = [entry.state.item for entry in self.entries]

    @property
    def shown(self) -> str | None:
        """What was wrong with the last answer about these items; the same for all of them."""
        return self.entries[0].state.failures.shown

    @property
    def failures(self) -> list[Failures]:
        """What has gone wrong with each of the items so far."""
        return [entry.state.failures for entry in self.entries]


class Lane(Generic[I, O]):
    """The pending items of one key, first in, first out. Not thread-safe.

    At most ``per_key`` calls of a lane are unfinished at once, counting those that wait for a
    retry: with 1, an item is not begun before the one in front of it has ended for good.
    Results leave in the order in which items came, whatever the order in which they end.
    """

    def __init__(self, restored: Iterable[PendingItem[I]], *, per_key: int, batch_max: int) -> None:
        self._per_key = per_key
        self._batch_max = batch_max
        self._entries: deque[_Entry[I, O]] = deque(_Entry(state) for state in restored)
        self._queue: deque[_Entry[I, O]] = deque(self._entries)
        self._calls: list[Call[I, O]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def running(self) -> bool:
        """Whether a call of this lane is in flight."""
        return any(call.running for call in self._calls)

    @property
    def full(self) -> bool:
        """Whether as many calls of this lane are in flight as may be."""
        return sum(call.running for call in self._calls) >= self._per_key

    @property
    def settled(self) -> bool:
        """Whether a result may leave now."""
        return bool(self._entries) and self._entries[0].result is not None

    @property
    def oldest(self) -> datetime | None:
        """When the item that is longest here was accepted."""
        return self._entries[0].state.accepted_at if self._entries else None

    @property
    def retrying(self) -> int:
        """How many items wait to be tried again."""
        waiting = [entry for call in self._calls if not call.running for entry in call.entries]
        return sum(entry.state.due is not None for entry in (*waiting, *self._queue))

    def accept(self, items: Iterable[I], at: datetime) -> None:
        """Append items."""
        entries: list[_Entry[I, O]] = [_Entry(PendingItem(item, at)) for item in items]
        self._entries.extend(entries)
        self._queue.extend(entries)

    def next_call(self, now: datetime) -> Call[I, O] | None:
        """Give a call to be made now, and count it as running; ``None`` when there is none."""
        if self.full:
            return None
        for call in islice(self._calls, self._per_key):
            if not call.running and (call.due is None or call.due <= now):
                call.running, call.due = True, None
                return call
        while len(self._calls) < self._per_key and self._queue:
            call = self._form()
            self._calls.append(call)
            if call.due is None or call.due <= now:
                call.running, call.due = True, None
                return call
        return None

    def next_due(self, now: datetime) -> datetime | None:
        """When a retry becomes due that must wait now; ``None`` when none does."""
        waiting = [call.due for call in self._calls if call.due is not None and call.due > now]
        return min(waiting) if waiting else None

    def succeed(self, call: Call[I, O], outputs: Sequence[O]) -> None:
        """End a call well: one output for each of its items."""
        for entry, output in zip(call.entries, outputs, strict=True):
            state = entry.state
            entry.result = Done(state.item, output, state.failures.calls + 1)
        self._calls.remove(call)

    def postpone(self, call: Call[I, O], failures: Sequence[Failures], due: datetime) -> None:
        """Put a failed call back in its place, to be made again when ``due``."""
        for entry, known in zip(call.entries, failures, strict=True):
            entry.state = replace(entry.state, failures=known, due=due)
        call.running, call.due = False, due

    def split(self, call: Call[I, O], failures: Sequence[Failures]) -> None:
        """Put a call that was given up back as two halves, so that a bad item fails alone.

        What the model got wrong about all of them is not held against each: a malformed answer
        to a half is a first one again.
        """
        for entry, known in zip(call.entries, failures, strict=True):
            known = replace(known, malformed=0, shown=None)  # noqa: PLW2901
            entry.state = replace(entry.state, failures=known, due=None)
        middle, at = len(call.entries) // 2, self._calls.index(call)
        self._calls[at : at + 1] = [Call(call.entries[:middle]), Call(call.entries[middle:])]

    def fail(self, call: Call[I, O], failures: Failures, error: tuple[str, str, str]) -> None:
        """End a call of one item badly; ``error`` is its reason, class and message.

        The item keeps its failures in the snapshot: one that has failed for good and was not
        emitted before a crash is called once more after the restart.
        """
        (entry,) = call.entries
        if failures.first_at is None or failures.last_at is None:
            message = "an item without a failure cannot fail"
            raise ValueError(message)
        entry.state = replace(entry.state, failures=failures, due=None)
        entry.result = Failed(
            entry.state.item, *error, failures.calls, failures.first_at, failures.last_at
        )
        self._calls.remove(call)

    def take(self) -> list[Done[I, O] | Failed[I]]:
        """Remove and give the results that may leave now, in order."""
        results: list[Done[I, O] | Failed[I]] = []
        while self._entries and (result := self._entries[0].result) is not None:
            results.append(result)
            self._entries.popleft()
        return results

    def snapshot(self) -> tuple[PendingItem[I], ...]:
        """Copy what is not emitted yet; later changes to the lane do not touch the copy."""
        return tuple(entry.state for entry in self._entries)

    def _form(self) -> Call[I, O]:
        first = self._queue.popleft()
        entries = [first]
        while (
            len(entries) < self._batch_max
            and self._queue
            and self._queue[0].state.failures.same_footing(first.state.failures)
        ):
            entries.append(self._queue.popleft())
        dues = [entry.state.due for entry in entries if entry.state.due is not None]
        return Call(entries, due=max(dues) if dues else None)

"""Whose call is next when several scopes wait: deficit round robin. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["Turns"]

T = TypeVar("T")

QUANTUM = 4000
"""Tokens that a scope gains in its turn: about one call of the extract stage."""


class Turns(Generic[T]):
    """A line for each scope; scopes take turns, each with as many tokens as the others.

    Two promises, whatever is waiting:

    - Of two scopes that both wait all the time, neither is given more than a quantum and two of
      the largest calls more than the other, counted in tokens.
    - While several scopes wait, one that has its equal part of the calls in flight already lets
      the others go first; but a free slot is never kept back when nobody else could use it.

    Not thread-safe.

    >>> turns = Turns[str](quantum=10)
    >>> for name in ("a1", "a2", "a3"):
    ...     turns.add("a", name, 10)
    >>> turns.add("b", "b1", 10)
    >>> [turns.take({}, 0) for _ in range(4)]
    ['a1', 'b1', 'a2', 'a3']
    """

    def __init__(self, quantum: int = QUANTUM) -> None:
        self._quantum = quantum
        self._lines: dict[str, deque[tuple[int, T]]] = {}
        self._order: deque[str] = deque()
        self._gained: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[T]:
        return (item for line in self._lines.values() for _, item in line)

    def add(self, scope: str, item: T, cost: int) -> None:
        """Put a call at the end of its scope's line; ``cost`` is in tokens."""
        if scope not in self._lines:
            self._lines[scope] = deque()
            self._order.append(scope)
            self._gained[scope] = self._quantum
        self._lines[scope].append((cost, item))

    def peek(self, in_flight: Mapping[str, int], slots: int) -> T | None:
        """Give the call that is next, and leave it in line. Asked again, it is the same one.

        :arg in_flight: calls in flight, by scope.
        :arg slots: calls that may be in flight at once; 0 when there is no such limit.
        """
        scope = self._turn(in_flight, slots)
        return None if scope is None else self._lines[scope][0][1]

    def take(self, in_flight: Mapping[str, int], slots: int) -> T | None:
        """Take the call that is next out of its line."""
        scope = self._turn(in_flight, slots)
        if scope is None:
            return None
        line = self._lines[scope]
        cost, item = line.popleft()
        self._gained[scope] -= cost
        if not line:
            self._leave(scope)
        return item

    def clear(self) -> None:
        """Forget everybody."""
        self._lines.clear()
        self._order.clear()
        self._gained.clear()

    def discard(self, item: T) -> None:
        """Take one call out of its line, if it is there."""
        for scope, line in self._lines.items():
            kept = deque(entry for entry in line if entry[1] is not item)
            if len(kept) < len(line):
                self._lines[scope] = kept
                if not kept:
                    self._leave(scope)
                return

    def _turn(self, in_flight: Mapping[str, int], slots: int) -> str | None:
        if not self._order:
            return None
        part = max(1, slots // len(self._order))
        eligible = {
            scope for scope in self._order if not slots or in_flight.get(scope, 0) < part
        } or set(self._order)
        while True:
            scope = self._order[0]
            if scope in eligible:
                if self._lines[scope][0][0] <= self._gained[scope]:
                    return scope
                self._gained[scope] += self._quantum
            self._order.rotate(-1)

    def _leave(self, scope: str) -> None:
        del self._lines[scope], self._gained[scope]
        self._order.remove(scope)

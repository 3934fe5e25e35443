"""The scopes in use, kept in memory between windows."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from flows.reconcile.candidates import Active
from flows.reconcile.scope import ScopeAtoms

__all__ = ["WarmScope", "WarmScopes"]

_WARM_SCOPES = 2000
_WARM_BYTES = 512 * 1024 * 1024
_ATOM_BYTES = 5 * 1024
"""What an atom takes with its indexes, without its vector: 4.3 kB measured, with short texts."""


@dataclass(frozen=True, slots=True)
class WarmScope:
    """One scope in memory.

    :arg active: its active atoms, to be searched; empty where no model is asked.
    """

    atoms: ScopeAtoms
    active: Active = field(default_factory=Active)


class WarmScopes:
    """The atoms of the scopes in use, most recently used last. For one event loop only.

    :arg capacity: scopes at most.
    :arg max_bytes: memory at most, estimated; the scope used last stays whatever it takes.
    """

    def __init__(self, capacity: int = _WARM_SCOPES, max_bytes: int = _WARM_BYTES) -> None:
        """Begin with nothing loaded."""
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._scopes: OrderedDict[str, WarmScope] = OrderedDict()
        self._bytes: dict[str, int] = {}
        self._total = 0

    def get(self, scope: str) -> WarmScope | None:
        """Give a scope, or ``None`` when it has to be read from the store."""
        kept = self._scopes.get(scope)
        if kept is not None:
            self._scopes.move_to_end(scope)
        return kept

    def put(self, scope: str, kept: WarmScope) -> None:
        """Keep a scope, as large as it is now; the scopes used longest ago make room."""
        self.drop(scope)
        self._scopes[scope] = kept
        self._bytes[scope] = len(kept.atoms) * _ATOM_BYTES + kept.active.nbytes
        self._total += self._bytes[scope]
        while len(self._scopes) > 1 and (
            len(self._scopes) > self._capacity or self._total > self._max_bytes
        ):
            self.drop(next(iter(self._scopes)))

    def drop(self, scope: str) -> None:
        """Forget a scope; the next use reads it anew."""
        self._scopes.pop(scope, None)
        self._total -= self._bytes.pop(scope, 0)

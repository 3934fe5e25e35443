"""Sees whether the threads of Bytewax's workers keep their Python thread state."""

from __future__ import annotations

import threading

__all__ = ["ThreadStates"]


class ThreadStates:
    """What is local to a thread is lost with its state, and so shows a new one.

    :ivar calls: the thread of each call of :meth:`look`.
    :ivar begun: the thread of each call that found a state of no earlier call.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self.calls: list[int] = []
        self.begun: list[int] = []

    def look(self) -> None:
        """Note who calls; from inside a step of a dataflow."""
        self.calls.append(threading.get_ident())
        if not hasattr(self._local, "known"):
            self._local.known = True
            self.begun.append(threading.get_ident())

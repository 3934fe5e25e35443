"""Windows: which stretch of a session one extraction call sees.

Pure logic in ``logic`` (:class:`ScopeWindows`: no I/O, no Bytewax, event time only); ``operator``
wires it into a dataflow.

A session's window closes

- ``turns``: with the N-th user message in it (5; optionally 1, 2, 4 for a new session),
- ``gap``: when event time moves more than 600 s past it, in its own session or in another one
  of the scope,
- ``session_end``: at that event, which belongs to the window,
- ``size``: before it would grow over its token cap,
- ``idle``: live only, when nothing has come for the gap in processing time,
- ``end_of_input``: when a finite log ends.

What was forgotten (:class:`~stores.protocols.KeptOut`) keeps its place and nothing else: it counts
as a turn and moves the clock, so that windows are cut where they were before, under the same ids,
and the recorded answers of the others are found. Its text goes no further: not into a window,
not into a background, not into a snapshot.

Only the last two depend on when the flow ran, so a replay cuts the same windows as live
processing did wherever events came in order. A window that was given up and is redriven does
not close anew: it is put together again from its events, under its old id, beside the
session's open window (``redrive``). A late event joins the session's open window or
opens one; nothing is dropped for lateness. A repeated event id is dropped and counted.
"""

from flows.window.logic import (
    Ended,
    Forgotten,
    Requested,
    ScopeWindows,
    Skipped,
    WindowPolicy,
    WindowSnapshot,
    estimate_tokens,
)
from flows.window.operator import window

__all__ = [
    "Ended",
    "Forgotten",
    "Requested",
    "ScopeWindows",
    "Skipped",
    "WindowPolicy",
    "WindowSnapshot",
    "estimate_tokens",
    "window",
]

"""What the ``sediment`` script calls: Ctrl-C says nothing while modules are loaded.

That takes a second or more; pressed within it, Python's own answer is a traceback of an import.
"""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Load the command and run it. A Ctrl-C before it is loaded ends the process by the signal."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from flows.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    run()

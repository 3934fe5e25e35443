"""The index flow on its own, for ``python -m bytewax.run flows.l0``."""

from __future__ import annotations

from bytewax.dataflow import Dataflow

from flows.parts import standing_flow

__all__ = ["flow"]


def flow() -> Dataflow:
    """Build the flow from the settings in the environment."""
    return standing_flow("l0")

"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "until"]

PATIENCE_S = 60.0
"""Long, since it is only waited out by what fails."""

_LOOK_EVERY_S = 0.02

T = TypeVar("T")


def until(look: Callable[[], T | bool | None]) -> T:
    """Look again and again until there is something to see, and give it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(_LOOK_EVERY_S)
    return found  # type: ignore[return-value]

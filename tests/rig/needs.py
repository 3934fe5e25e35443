"""Says what a test needs: a missing part fails CI and skips elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["missing", "shared_data"]


def missing(what: str) -> NoReturn:
    """Fail in CI, skip on a user's machine; ``what`` says what to install."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI lacks {what}")
    pytest.skip(f"needs {what}")


def shared_data(name: str) -> Path:
    """Find a file of the shared real conversations, e.g. ``personamem/questions_32k.csv``."""
    root = Path(os.environ.get("SEDIMENT_SHARED", Path(__file__).parents[3] / "shared"))
    path = root / "data" / name
    if not path.exists():
        missing(f"shared conversation data at ../shared/data/{name} (or SEDIMENT_SHARED)")
    return path

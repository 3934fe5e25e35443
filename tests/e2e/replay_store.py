"""What each process of a replay opens in tests: rows in one file that all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from connectors.settings import Settings
from flows.replay.running import Opened
from stores.errors import StoreMismatch
from tests.faults.flow_process import Embedder
from tests.faults.stand_in import StandInStore

__all__ = ["opened", "refused"]


@contextmanager
def opened(settings: Settings) -> Iterator[Opened]:
    """Open the store of a generation."""
    settings.generation_dir.mkdir(parents=True, exist_ok=True)
    with closing(StandInStore(settings.generation_dir / "store.sqlite")) as store:
        stand_in: Any = (store, Embedder())
        yield stand_in


@contextmanager
def refused(settings: Settings) -> Iterator[Opened]:
    """Open nothing: the store is of another making."""
    message = f"the store of {settings.generation} was made with another model"
    raise StoreMismatch(message)
    yield

"""Which reader reads which benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flows.bench.data import Benchmark, Dataset
from flows.bench.locomo import load_locomo
from flows.bench.longmemeval import load_longmemeval
from flows.bench.personamem import load_personamem

__all__ = ["LOADERS"]

LOADERS: Mapping[Benchmark, Callable[[Path], Dataset]] = {
    "personamem": load_personamem,
    "locomo": load_locomo,
    "longmemeval": load_longmemeval,
}

"""Which dataflows there are, and how far a run of one has come. Loads nothing that is slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "EVENT_FLOWS",
    "FLOWS",
    "FlowName",
    "LayersProgress",
    "Progress",
    "source_topic",
]

FlowName = Literal["all", "l0", "l1", "l2", "l3"]
FLOWS: tuple[FlowName, ...] = ("all", "l0", "l1", "l2", "l3")
EVENT_FLOWS: tuple[FlowName, ...] = ("all", "l0", "l1")
"""The flows that read the events topic."""
_SOURCES: dict[FlowName, str] = {"l2": "l2.jobs", "l3": "l3.jobs"}


def source_topic(name: FlowName) -> str:
    """Give the topic that a flow reads, without prefix."""
    return _SOURCES.get(name, "l0.events")


@dataclass(slots=True)
class LayersProgress:
    """How far a run has come with scenes and personas. Counts of this process."""

    jobs: int = 0
    scenes: int = 0
    personas: int = 0


@dataclass(slots=True)
class Progress:
    """How far a run has come, for a progress bar. Counts of this process, from its start."""

    read: int = 0
    indexed: int = 0
    windows: int = 0
    ended: int = 0
    given_up: int = 0
    layers: LayersProgress = field(default_factory=LayersProgress)

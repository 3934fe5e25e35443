"""How far a replay is, in numbers that add up over its processes and its phases."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.progress import Progress
    from flows.replay.plan import ReplayPlan

__all__ = ["Counts"]


@dataclass(frozen=True)
class Counts:
    """What was read and asked so far.

    :arg offsets: the offset after the last record that was read, by partition.
    :arg seconds: since this process began to read; of several, the longest.
    :arg processor_s: seconds of processor time since then.
    """

    read: int = 0
    indexed: int = 0
    windows: int = 0
    ended: int = 0
    asked: int = 0
    asked_tokens: int = 0
    saved: int = 0
    saved_tokens: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0
    offsets: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, progress: Progress, plan: ReplayPlan, seconds: float, processor_s: float) -> Counts:
        """Take the numbers of one flow, as they are now."""
        tally = plan.tally
        return cls(
            progress.read,
            progress.indexed,
            progress.windows,
            progress.ended,
            tally.asked,
            tally.asked_tokens,
            tally.saved,
            tally.saved_tokens,
            seconds,
            processor_s,
            dict(plan.reached.offsets),
        )

    def __add__(self, other: Counts) -> Counts:
        """Add the numbers of another process, or of the phase before."""
        added = {
            one.name: getattr(self, one.name) + getattr(other, one.name)
            for one in fields(self)
            if one.name not in ("seconds", "offsets")
        }
        seconds = max(self.seconds, other.seconds)
        return Counts(**added, seconds=seconds, offsets={**self.offsets, **other.offsets})

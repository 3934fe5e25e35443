"""One phase of a replay, run by this process: history to its end, or what comes after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from connectors.settings import Settings
from flows.opening import log_name, recovery_folder
from flows.parts import flow_parts
from flows.progress import FlowName, Progress
from flows.replay.answers import AnswerTally
from flows.replay.counts import Counts
from flows.replay.plan import Pace, Reached, ReplayPlan, SharedTime, Span, in_scope
from flows.runner import FlowRun, Member, StopSignal
from flows.topology import build_flow
from stores.generations import AnswerMode
from stores.protocols import Embedder

if TYPE_CHECKING:
    from stores.milvus import MilvusStore

__all__ = ["POLL_S", "Opened", "Opener", "Share", "run_share"]

Opened = tuple["MilvusStore", Embedder]
Opener = Callable[[Settings], "AbstractContextManager[Opened]"]
"""Opens the store and the embedder of one process. A function of a module: it is pickled."""

POLL_S = 0.2
"""Seconds between two looks at how far it is."""
_RARER = 5
"""How many times rarer than in live traffic snapshots are while history is read. Every scope has
news between two of them, so each holds all scopes; and nobody waits for what a crash repeats."""


@dataclass(frozen=True)
class Share:
    """What every process of one phase is told. Picklable.

    :arg scope: ids that wanted events have; see :func:`~flows.replay.plan.in_scope`.
    :arg rate, follow, keep_open: see :class:`~flows.replay.plan.ReplayPlan`; the rate is that of
        all processes together.
    """

    settings: Settings
    flow: FlowName
    span: Span
    scope: Mapping[str, str]
    answers: AnswerMode
    rate: float = 0
    follow: bool = False
    keep_open: bool = False

    @property
    def snapshot_interval(self) -> timedelta:
        """Give the time between two recovery snapshots."""
        interval = timedelta(seconds=self.settings.snapshot_interval_s)
        return interval if self.follow else _RARER * interval


def run_share(
    share: Share,
    opened: Opened,
    stop: StopSignal,
    show: Callable[[Counts], None],
    *,
    workers: int = 1,
    member: Member | None = None,
    free_at: SharedTime | None = None,
) -> Counts:
    """Run the flow to the end of its share, or until it is stopped. Raises what ended it.

    :arg workers: threads.
    :arg member: the place of this process among several.
    :arg free_at: the time that the pace of all processes goes by.
    """
    settings, progress = share.settings, Progress()
    plan = ReplayPlan(
        span=share.span,
        wanted=in_scope(settings.scope_fields, share.scope),
        pace=Pace(share.rate, time.monotonic, free_at),
        answers=share.answers,
        tally=AnswerTally(),
        reached=Reached(),
        follow=share.follow,
        keep_open=share.keep_open,
    )
    with flow_parts(
        settings,
        share.flow,
        stop,
        follow=share.follow,
        progress=progress,
        opened=opened,
        replay=plan,
    ) as parts:
        flow = FlowRun(
            lambda: build_flow(share.flow, parts),
            recovery_folder(settings, share.flow),
            share.snapshot_interval,
            workers,
            member,
            log_name(settings, share.flow),
        )
        began, used = time.monotonic(), time.process_time()

        def counts() -> Counts:
            return Counts.of(progress, plan, time.monotonic() - began, time.process_time() - used)

        flow.start()
        while flow.running:
            flow.wait(POLL_S)
            show(counts())
        flow.wait()
        show(counts())
        return counts()

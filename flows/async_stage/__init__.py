"""LLM and store calls beside a dataflow: keyed order, bounded concurrency, retries, recovery.

Read in this order: ``retry`` (when to try again), ``lane`` (the queue of one key), ``pressure``
(how much may wait and may fail), ``away`` (how people learn of what it waits for),
``engine`` (the loop that makes the calls), ``operator`` (how Bytewax sees it).
"""

from flows.async_stage.engine import StageSpec, Work
from flows.async_stage.lane import Done, Failed, PendingItem
from flows.async_stage.operator import AsyncStage, async_stage
from flows.async_stage.pressure import FailureLimit, PendingWork, StageStatus
from flows.async_stage.retry import Failures, RetryPolicy

__all__ = [
    "AsyncStage",
    "Done",
    "Failed",
    "FailureLimit",
    "Failures",
    "PendingItem",
    "PendingWork",
    "RetryPolicy",
    "StageSpec",
    "StageStatus",
    "Work",
    "async_stage",
]

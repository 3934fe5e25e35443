"""Opens the limits on model calls as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from connectors.llm_limits.gate import CallGate
from connectors.llm_limits.ledger import Ledger, LlmLimits, LocalLedger, SpentFile
from connectors.llm_limits.redis_ledger import RedisLedger
from connectors.settings import Settings

__all__ = ["open_call_gate", "open_ledger"]


def open_ledger(settings: Settings) -> Ledger:
    """Open the ledger: on Redis where it is set, else in this process.

    In process, a day's budget is kept in the data folder, so that a restart does not renew it.
    """
    limits = LlmLimits.configured(settings)
    if settings.redis_url:
        return RedisLedger(settings.redis_url, settings.topic_prefix, limits)
    budgeted = limits.tokens_per_day or limits.micros_per_day
    kept = SpentFile(settings.data_dir / "llm-spent.json") if budgeted else None
    return LocalLedger(limits, kept=kept)


@contextmanager
def open_call_gate(
    settings: Settings, stopping: Callable[[], bool] = lambda: False
) -> Iterator[CallGate]:
    """Open the gate to the model with the limits of the settings, and close it afterwards."""
    gate = CallGate(
        open_ledger(settings),
        LlmLimits.configured(settings),
        prices=settings.llm_prices,
        stopping=stopping,
    )
    try:
        yield gate
    finally:
        gate.close()

"""Limits on model calls that all workers share: how many, how fast, and for how much a day.

Three parts, from the inside out: a :class:`Ledger` says whether a call may begin (in process, or
on Redis for all workers together); :class:`Turns` says whose call is next when several scopes
wait; :class:`CallGate` is what a model client asks, and waits at.
"""

from __future__ import annotations

from connectors.llm_limits.gate import PATIENCE_S, CallGate, CallUse
from connectors.llm_limits.ledger import (
    Ledger,
    LedgerState,
    LlmLimits,
    LocalLedger,
    Spend,
    SpentFile,
    Verdict,
)
from connectors.llm_limits.opening import open_call_gate, open_ledger
from connectors.llm_limits.redis_ledger import RedisLedger
from connectors.llm_limits.turns import Turns

__all__ = [
    "PATIENCE_S",
    "CallGate",
    "CallUse",
    "Ledger",
    "LedgerState",
    "LlmLimits",
    "LocalLedger",
    "RedisLedger",
    "Spend",
    "SpentFile",
    "Turns",
    "Verdict",
    "open_call_gate",
    "open_ledger",
]

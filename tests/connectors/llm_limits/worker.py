"""Another process with the same limits: ``python -m tests.connectors.llm_limits.worker``.

``hold URL PREFIX SLOTS``: begins so many calls, says ``held``, and keeps them until it is killed.
``busy URL PREFIX CALLS``: makes so many short calls and prints the most that it saw in flight.
"""

from __future__ import annotations

import asyncio
import sys

import redis

from connectors.llm_limits import CallGate, LlmLimits, RedisLedger
from stores.protocols import ChatRequest

SLOTS = 4
LEASE_S = 1.0
ASKED = ChatRequest("m", (("user", "hello"),), "p/1", max_tokens=10)


def gate_of(url: str, prefix: str, limits: LlmLimits) -> CallGate:
    ledger = RedisLedger(url, prefix, limits, lease_s=LEASE_S)
    return CallGate(ledger, limits, renew_s=LEASE_S / 5)


async def hold(gate: CallGate, calls: int) -> None:
    async def one() -> None:
        async with gate.call(ASKED):
            held.release()
            await asyncio.sleep(600)

    held = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(one()) for _ in range(calls)]
    for _ in tasks:
        await held.acquire()
    print("held", flush=True)
    await asyncio.gather(*tasks)


async def make_calls(url: str, gate: CallGate, prefix: str, calls: int) -> int:
    """Make calls, all at once; give the most that all processes had in flight."""
    most = 0
    counter = redis.Redis.from_url(url)

    async def one() -> None:
        nonlocal most
        async with gate.call(ASKED):
            most = max(most, int(counter.incr(f"{prefix}:now")))
            await asyncio.sleep(0.01)
            counter.decr(f"{prefix}:now")

    await asyncio.gather(*(one() for _ in range(calls)))
    counter.close()
    return most


def main() -> None:
    what, url, prefix, count = sys.argv[1:]
    gate = gate_of(url, prefix, LlmLimits(concurrency=SLOTS))
    if what == "hold":
        asyncio.run(hold(gate, int(count)))
    else:
        print(asyncio.run(make_calls(url, gate, prefix, int(count))), flush=True)
        gate.close()


if __name__ == "__main__":
    main()

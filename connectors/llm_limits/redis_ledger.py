"""The ledger that all workers on one Redis share.

Each step is one script, so nobody sees half of it, and the time is the server's own, so clocks
of workers need not agree. A call in flight holds a lease that its process renews; after a kill
the leases run out, and their slots are free again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from connectors.llm_limits.ledger import (
    MAX_PAUSE_S,
    Bucket,
    LedgerState,
    LlmLimits,
    Spend,
    Verdict,
)
from stores.redis_connection import redis_client, redis_errors

__all__ = ["LEASE_S", "RedisLedger"]

LEASE_S = 15.0
"""A killed worker's slots are free again after this long; leases are renewed three times in it."""

_WAITING_S = 2.0  # a process that has not asked again by then does not wait any more

# KEYS: state, leases (by when they run out), what each reserved, processes that wait.
# A lease is named process:number.
_COMMON = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local STATE, LEASES, RESERVED, WAITING = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local function get(name) return tonumber(redis.call('HGET', STATE, name) or '0') end
local function set(name, value) redis.call('HSET', STATE, name, string.format('%.6f', value)) end
local today = math.floor(now / 86400)
if get('day') ~= today then
  set('day', today)
  set('tokens', 0)
  set('micros', 0)
  set('stopped', 0)
end
local function reserved_by(lease)
  local kept = redis.call('HGET', RESERVED, lease)
  if not kept then return nil end
  local tokens, micros = string.match(kept, '^(%d+) (%d+)$')
  return tonumber(tokens), tonumber(micros)
end
local function ended(lease, tokens, micros)
  redis.call('ZREM', LEASES, lease)
  redis.call('HDEL', RESERVED, lease)
  set('tokens', get('tokens') + tokens)
  set('micros', get('micros') + micros)
end
-- Nobody knows what the calls of a killed worker used: all that they had reserved.
for _, lease in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', now)) do
  local tokens, micros = reserved_by(lease)
  ended(lease, tokens or 0, micros or 0)
end
"""

_TAKE = (
    _COMMON
    + """
local process, lease = ARGV[1], ARGV[2]
local tokens, micros = tonumber(ARGV[3]), tonumber(ARGV[4])
local slots, day_tokens, day_micros = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local lease_s, waiting_s = tonumber(ARGV[8]), tonumber(ARGV[9])
local function refused(reason, wait) return {reason, string.format('%.6f', wait)} end
local paused = get('paused_until') - now
if paused > 0 then return refused('paused', paused) end
local function over(more_tokens, more_micros)
  return (day_tokens > 0 and get('tokens') + more_tokens + tokens > day_tokens)
    or (day_micros > 0 and get('micros') + more_micros + micros > day_micros)
end
if over(0, 0) then
  set('stopped', 1)
  return refused('budget', (today + 1) * 86400 - now)
end
redis.call('ZREMRANGEBYSCORE', WAITING, '-inf', now)
local function waits(reason, wait)
  redis.call('ZADD', WAITING, now + waiting_s, process)
  return refused(reason, wait)
end
local held, mine, processes, count = redis.call('ZRANGE', LEASES, 0, -1), 0, {[process] = true}, 1
local all_tokens, all_micros = 0, 0
for _, one in ipairs(held) do
  local owner = string.match(one, '^[^:]+')
  if owner == process then mine = mine + 1 end
  if not processes[owner] then processes[owner] = true; count = count + 1 end
  local more_tokens, more_micros = reserved_by(one)
  all_tokens, all_micros = all_tokens + (more_tokens or 0), all_micros + (more_micros or 0)
end
if over(all_tokens, all_micros) then return waits('busy', 1) end
local others = 0
for _, one in ipairs(redis.call('ZRANGE', WAITING, 0, -1)) do
  if one ~= process then others = others + 1 end
  if not processes[one] then processes[one] = true; count = count + 1 end
end
if slots > 0 and #held >= slots then return waits('busy', 0.1) end
-- A process that has its part lets those go first that wait and have not.
if slots > 0 and others > 0 and mine >= math.max(1, math.floor(slots / count)) then
  for _, one in ipairs(redis.call('ZRANGE', WAITING, 0, -1)) do
    local theirs = 0
    for _, other in ipairs(held) do
      if string.match(other, '^[^:]+') == one then theirs = theirs + 1 end
    end
    if one ~= process and theirs < mine then return waits('busy', 0.1) end
  end
end
local function free(name, burst, rate)
  local left = tonumber(redis.call('HGET', STATE, name) or burst)
  return math.min(burst, left + math.max(0, now - get(name .. '_at')) * rate)
end
local wait, left = 0, {}
for place, bucket in ipairs({{'requests', 1}, {'minute', tokens}}) do
  local burst, rate = tonumber(ARGV[8 + 2 * place]), tonumber(ARGV[9 + 2 * place])
  if burst > 0 then
    left[place] = free(bucket[1], burst, rate)
    wait = math.max(wait, (math.min(bucket[2], burst) - left[place]) / rate)
    left[place] = left[place] - bucket[2]
  end
end
if wait > 0 then return waits('rate', wait) end
for place, name in ipairs({'requests', 'minute'}) do
  if left[place] then
    set(name, left[place])
    set(name .. '_at', now)
  end
end
set('stopped', 0)
redis.call('ZREM', WAITING, process)
redis.call('ZADD', LEASES, now + lease_s, lease)
redis.call('HSET', RESERVED, lease, string.format('%d %d', tokens, micros))
return {'', '0'}
"""
)

_SETTLE = (
    _COMMON
    + """
local lease, tokens, micros = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local reserved = reserved_by(lease)
if not reserved then
  redis.call('ZREM', LEASES, lease)
  return 0
end
ended(lease, tokens, micros)
if redis.call('HEXISTS', STATE, 'minute') == 1 then
  set('minute', get('minute') + reserved - tokens)
end
return 1
"""
)

_RENEW = (
    _COMMON
    + """
for place = 2, #ARGV do
  redis.call('ZADD', LEASES, now + tonumber(ARGV[1]), ARGV[place])
end
return 0
"""
)

_PAUSE = (
    _COMMON
    + """
set('paused_until', math.max(get('paused_until'), now + tonumber(ARGV[1])))
return 0
"""
)

_STATE = (
    _COMMON
    + """
return {string.format('%.0f', get('tokens')), string.format('%.0f', get('micros')),
  redis.call('ZCARD', LEASES), string.format('%.6f', math.max(0, get('paused_until') - now)),
  string.format('%.0f', get('stopped'))}
"""
)


class RedisLedger:
    """The ledger of all workers with one Redis and one prefix.

    Slots go round the workers as well: one that has its equal part lets another go first that
    waits and has fewer. For requests and tokens of a minute workers ask again when it pays to, and
    who comes first is served.

    After a kill a worker's slots are free within ``lease_s``; what its calls had reserved counts
    as spent. A worker that was cut off from Redis for longer than that keeps its calls, so that
    more than ``concurrency`` may be in flight for as long as those last.

    :arg prefix: what the keys begin with: ``<prefix>:{llm}:…``, on one node of a cluster.
    """

    def __init__(
        self, url: str, prefix: str, limits: LlmLimits, *, lease_s: float = LEASE_S
    ) -> None:
        self._limits = limits
        self._lease_s = lease_s
        self._process = uuid.uuid4().hex
        self._count = 0
        self._keys = [
            f"{prefix}:{{llm}}:{name}" for name in ("state", "leases", "reserved", "waiting")
        ]
        self._client = redis_client(url)
        scripts = (_TAKE, _SETTLE, _RENEW, _PAUSE, _STATE)
        self._take, self._settle, self._renew, self._pause, self._state = map(
            self._client.register_script, scripts
        )
        self._buckets: list[float] = []
        for per_minute in (limits.requests_per_minute, limits.tokens_per_minute):
            bucket = Bucket(per_minute)
            self._buckets += [bucket.burst if per_minute else 0, bucket.rate]

    def take(self, need: Spend) -> Verdict:
        """Ask for a call."""
        limits = self._limits
        self._count += 1
        lease = f"{self._process}:{self._count}"
        reason, wait = self._asked(
            self._take,
            self._process, lease, need.tokens, need.micros,
            limits.concurrency, limits.tokens_per_day, limits.micros_per_day,
            self._lease_s, _WAITING_S, *self._buckets,
        )  # fmt: skip
        if not reason:
            return Verdict(lease=lease)
        return Verdict(reason=reason.decode(), wait_s=float(wait))

    def settle(self, lease: str, need: Spend, used: Spend) -> None:
        """End a call; one whose lease had run out was counted then."""
        del need
        self._asked(self._settle, lease, used.tokens, used.micros)

    def renew(self, leases: Sequence[str]) -> None:
        """Say that these calls are still in flight."""
        self._asked(self._renew, self._lease_s, *leases)

    def pause(self, seconds: float) -> None:
        """Let nobody begin a call for this long."""
        self._asked(self._pause, min(seconds, MAX_PAUSE_S))

    def state(self) -> LedgerState:
        """Tell how it stands."""
        tokens, micros, in_flight, paused, stopped = self._asked(self._state)
        spent = Spend(int(tokens), int(micros))
        return LedgerState(spent, int(in_flight), float(paused), stopped == b"1")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _asked(self, script: Any, *args: object) -> Any:
        with redis_errors():
            return script(keys=self._keys, args=list(args))

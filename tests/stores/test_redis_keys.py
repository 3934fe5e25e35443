"""What a dropped generation leaves in Redis: found by the beginning of its name, and no more."""

from __future__ import annotations

import pytest
import redis

from stores.errors import ServiceUnavailable
from stores.redis_keys import count_keys, delete_keys
from tests.rig.redis import RedisServer

pytestmark = pytest.mark.redis


def test_only_keys_that_begin_like_it_go(redis_server: RedisServer) -> None:
    kept = ["sediment.heat:{a}:open", "sediment.v22.heat:{a}:open", "sediment_v2_heat:x"]
    doomed = [f"sediment.v2.heat:{{{n}}}:open" for n in range(1200)]
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushdb()
        client.mset(dict.fromkeys([*kept, *doomed], "1"))
        assert count_keys(redis_server.url, "sediment.v2.heat:") == len(doomed)
        assert delete_keys(redis_server.url, "sediment.v2.heat:") == len(doomed)
        assert delete_keys(redis_server.url, "sediment.v2.heat:") == 0
        assert sorted(key.decode() for key in client.keys("*")) == sorted(kept)
        client.flushdb()


def test_a_prefix_is_no_pattern(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushdb()
        client.mset({"a*[b]?:x": "1", "aXb:x": "1", "ab:x": "1"})
        assert delete_keys(redis_server.url, "a*[b]?:") == 1
        assert client.exists("aXb:x", "ab:x") == 2
        client.flushdb()


def test_a_redis_that_is_not_there_is_said() -> None:
    with pytest.raises(ServiceUnavailable):
        count_keys("redis://127.0.0.1:9/0", "x")

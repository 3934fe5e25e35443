"""Locks with fencing tokens, in process and on a real Redis; the same promises for both."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from stores.coordination import LocalLocks, RedisLocks, ScopeLocks, _RedisFence
from stores.errors import LockConflict, ServiceUnavailable
from tests.rig.redis import RedisServer, running_redis
from tests.rig.waiting import until

ROOT = Path(__file__).parents[2]
SCOPE, OTHER = "acme/helper/ana", "acme/{helper}/bob"
TTL = 60.0


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.redis)])
def locks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScopeLocks]:
    if request.param == "local":
        yield LocalLocks()
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        on_redis = RedisLocks(server.url, tmp_path.name)
        yield on_redis
        on_redis.close()


@pytest.fixture
def connect(redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[[], RedisLocks]]:
    """Give workers that know nothing of each other, on one Redis."""
    opened: list[RedisLocks] = []

    def connect() -> RedisLocks:
        opened.append(RedisLocks(redis_server.url, tmp_path.name))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def test_one_holder_at_a_time_and_scopes_apart(locks: ScopeLocks) -> None:
    with locks.acquire(SCOPE, TTL) as first:
        assert not first.lost()
        with pytest.raises(LockConflict, match=SCOPE):
            locks.acquire(SCOPE, TTL)
        with locks.acquire(OTHER, TTL) as other:
            assert other.token == 1
    assert first.lost()
    with locks.acquire(SCOPE, TTL) as second:
        assert second.token > first.token


def test_release_is_idempotent_and_never_frees_another_s_lock(locks: ScopeLocks) -> None:
    first = locks.acquire(SCOPE, TTL)
    first.release()
    second = locks.acquire(SCOPE, TTL)
    first.release()
    with pytest.raises(LockConflict):
        locks.acquire(SCOPE, TTL)
    assert not second.lost()
    second.release()


def test_a_token_is_above_what_the_store_has_seen(locks: ScopeLocks) -> None:
    with locks.acquire(SCOPE, TTL, above=41) as fence:
        assert fence.token == 42
    with locks.acquire(SCOPE, TTL, above=3) as fence:
        assert fence.token == 43
    with locks.acquire(SCOPE, TTL, above=2**50) as fence:
        assert fence.token == 2**50 + 1
    with locks.acquire(SCOPE, TTL) as fence:
        assert fence.token == 2**50 + 2


def test_of_many_at_once_one_holds_and_tokens_only_grow(locks: ScopeLocks) -> None:
    tokens: list[int] = []
    inside = threading.Lock()

    def work(_: int) -> None:
        for _ in range(20):
            try:
                fence = locks.acquire(SCOPE, TTL)
            except LockConflict:
                continue
            assert inside.acquire(blocking=False)
            tokens.append(fence.token)
            inside.release()
            fence.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert tokens == sorted(set(tokens))


@pytest.mark.redis
def test_workers_on_one_redis_exclude_each_other(connect: Callable[[], RedisLocks]) -> None:
    one, other = connect(), connect()
    fence = one.acquire(SCOPE, TTL)
    with pytest.raises(LockConflict):
        other.acquire(SCOPE, TTL)
    fence.release()
    assert other.acquire(SCOPE, TTL).token == fence.token + 1


@pytest.mark.redis
def test_a_held_lock_is_renewed_past_its_time(
    connect: Callable[[], RedisLocks], redis_server: RedisServer, tmp_path: Path
) -> None:
    locks = connect()
    fence = locks.acquire(SCOPE, 2.0)
    key = f"{tmp_path.name}:{{{SCOPE}}}:owner"
    with redis.Redis.from_url(redis_server.url) as client:
        renewed, last = 0, client.pttl(key)
        while renewed < 4:  # two whole lives
            left = client.pttl(key)
            assert left > 0
            renewed += left > last
            last = left
    assert not fence.lost()
    with pytest.raises(LockConflict):
        connect().acquire(SCOPE, TTL)


@pytest.mark.redis
def test_a_lock_that_another_took_is_lost_and_stays_theirs(
    connect: Callable[[], RedisLocks], redis_server: RedisServer, tmp_path: Path
) -> None:
    fence = connect().acquire(SCOPE, 0.3)
    key = f"{tmp_path.name}:{{{SCOPE}}}:owner"
    unaware = connect().acquire(OTHER, TTL)
    with redis.Redis.from_url(redis_server.url) as client:
        client.set(key, "another")
        client.set(key.replace(SCOPE, OTHER), "another")
        unaware.release()
        until(fence.lost)
        fence.release()
        assert client.get(key) == b"another"
        assert client.get(key.replace(SCOPE, OTHER)) == b"another"


@pytest.mark.redis
def test_a_killed_holder_keeps_others_out_for_its_time_only(
    connect: Callable[[], RedisLocks], redis_server: RedisServer, tmp_path: Path
) -> None:
    code = (
        "import os, signal, sys\n"
        "from stores.coordination import RedisLocks\n"
        f"fence = RedisLocks(sys.argv[1], sys.argv[2]).acquire({SCOPE!r}, 0.5)\n"
        "print(fence.token, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, redis_server.url, tmp_path.name],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode < 0
    locks, pause = connect(), threading.Event()
    while True:
        try:
            fence = locks.acquire(SCOPE, TTL)
            break
        except LockConflict:
            pause.wait(0.02)
    assert fence.token == int(done.stdout) + 1


@pytest.mark.redis
def test_without_redis_nothing_is_acquired_and_what_is_held_runs_out(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server:
        locks = RedisLocks(server.url.replace("redis://", "redis://user:secret@"), "p")
        plain = RedisLocks(server.url, "p")
        fence = plain.acquire(SCOPE, 0.5)
        server.stop()
        until(fence.lost)
        with pytest.raises(ServiceUnavailable) as away:
            locks.acquire(SCOPE, TTL)
        assert "secret" not in str(away.value)
        fence.release()
        server.start()  # with no memory: the same as flushed
        assert fence.lost()
        assert plain.acquire(SCOPE, TTL, above=fence.token).token == fence.token + 1
        plain.close()
        locks.close()


@pytest.mark.redis
def test_a_short_absence_of_redis_loses_no_lock(tmp_path: Path) -> None:
    """The keys are kept over the restart here, as a Redis with ``appendonly`` keeps them."""
    with running_redis(tmp_path) as server:
        locks = RedisLocks(server.url, "p")
        fence = locks.acquire(SCOPE, 30.0)
        with redis.Redis.from_url(server.url) as client:
            saved = {key: client.dump(key) for key in client.keys()}
        assert isinstance(fence, _RedisFence)
        server.stop()
        locks._renew_one(fence)
        assert not fence.lost()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            for key, value in saved.items():
                client.restore(key, 30_000, value)
        locks._renew_one(fence)
        assert not fence.lost()
        with pytest.raises(LockConflict):
            locks.acquire(SCOPE, TTL)
        locks.close()

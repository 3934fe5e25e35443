from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from stores.answers import RedisAnswers, SqliteAnswers
from stores.errors import ServiceUnavailable, StoreMismatch
from stores.protocols import ChatAnswer
from tests.rig.redis import RedisServer

Answers = SqliteAnswers | RedisAnswers
ROOT = Path(__file__).parents[2]
ANSWER = ChatAnswer(
    text='{"memories": ["住在里斯本 \U0001f3e0", "a\\u0000b"]}\n',
    model="scripted",
    prompt_tokens=1234,
    completion_tokens=56,
    latency_s=0.123456789,
    finish_reason="stop",
)


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Answers]]:
    """Open the same journal as often as it is called."""
    opened: list[Answers] = []

    def open_it() -> Answers:
        if request.param == "sqlite":
            opened.append(SqliteAnswers(tmp_path / "deep" / "answers.sqlite"))
        else:
            server: RedisServer = request.getfixturevalue("redis_server")
            opened.append(RedisAnswers(server.url, prefix=tmp_path.name))
        return opened[-1]

    yield open_it
    for journal in opened:
        journal.close()


def test_what_was_put_is_got_by_everybody(reopen: Callable[[], Answers]) -> None:
    one, other = reopen(), reopen()
    assert one.get("h1") is None
    one.put("h1", "extract/1", ANSWER)
    assert one.get("h1") == other.get("h1") == replace(ANSWER, recorded=True)
    assert other.get("h2") is None


def test_many_are_got_at_once_each_in_its_place(reopen: Callable[[], Answers]) -> None:
    journal = reopen()
    for text in ("7", "3", "699"):
        journal.put(f"h{text}", "extract/1", replace(ANSWER, text=text))
    found = journal.get_many(["h699", "none", "h7", "h3", "h7", *(f"no{n}" for n in range(600))])
    texts = [one.text if one is not None and one.recorded else None for one in found]
    assert texts == ["699", None, "7", "3", "7", *[None] * 600]
    assert journal.get_many([]) == []


def test_answers_of_one_generation_go_and_no_others(reopen: Callable[[], Answers]) -> None:
    """Its name begins another one's, and ends one."""
    journal = reopen()
    names = ["h1", "v2:h1", "v2:h2", "v2-b:h1", "v22:h1", "av2:h1"]
    for name in names:
        journal.put(name, "extract/1", ANSWER, about=["scope"])
    assert journal.hashes_of("v2") == ["v2:h1", "v2:h2"]
    assert journal.drop("v2") == 2
    assert journal.drop("v2") == 0
    assert [one for one in names if journal.get(one)] == ["h1", "v2-b:h1", "v22:h1", "av2:h1"]


def test_the_first_answer_stays(reopen: Callable[[], Answers]) -> None:
    one, other = reopen(), reopen()
    one.put("h1", "extract/1", ANSWER)
    other.put("h1", "extract/2", replace(ANSWER, text="later"))
    one.put("h1", "extract/1", replace(ANSWER, text="later"))
    kept = other.get("h1")
    assert kept is not None
    assert kept.text == ANSWER.text


def test_threads_share_one_journal_and_agree(reopen: Callable[[], Answers]) -> None:
    journal = reopen()

    def write(number: int) -> str:
        key = f"h{number % 10}"
        journal.put(key, "extract/1", replace(ANSWER, text=str(number)))
        kept = journal.get(key)
        assert kept is not None
        return f"{key} {kept.text}"

    with ThreadPoolExecutor(8) as threads:
        seen = set(threads.map(write, range(200)))
    assert len(seen) == 10  # every hash showed one text only, to everybody


_WRITER = """
import sys
from pathlib import Path
from stores.answers import SqliteAnswers
from stores.protocols import ChatAnswer
journal = SqliteAnswers(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    journal.put(f"h{number}", "p/1", ChatAnswer(sys.argv[2], "scripted", 1, 1, 0.0))
    print(number, flush=True)
"""


def writer(path: Path, text: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), text, str(count)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_sqlite_keeps_what_was_put_before_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    with writer(path, "from the killed one", 1_000_000) as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        said = 49 + len(process.stdout.read().splitlines())
    journal = SqliteAnswers(path)
    assert all(journal.get(f"h{number}") is not None for number in range(said))
    journal.put("h0", "p/1", ANSWER)
    journal.close()


def test_processes_open_and_write_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    running = [writer(path, f"process {number}", 100) for number in range(4)]
    for process in running:
        process.communicate()
    assert [process.returncode for process in running] == [0] * 4
    journal = SqliteAnswers(path)
    assert all(journal.get(f"h{number}") is not None for number in range(100))
    journal.close()


def test_a_file_that_is_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreMismatch, match=r"answers\.sqlite is not a readable answers file"):
        SqliteAnswers(path)


def test_a_file_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=9")
    connection.close()
    with pytest.raises(StoreMismatch, match="version 9"):
        SqliteAnswers(path)


def test_a_new_file_that_another_process_is_writing_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself refuses at once. A connection of a thread stands for that of a process."""
    path = tmp_path / "answers.sqlite"
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("BEGIN IMMEDIATE")
        opening = pool.submit(SqliteAnswers, path)
        assert wait([opening], timeout=0.3).not_done
        other.execute("COMMIT")
        opening.result(timeout=60).close()


def test_a_closed_or_impossible_file_is_unavailable(tmp_path: Path) -> None:
    journal = SqliteAnswers(tmp_path / "answers.sqlite")
    journal.close()
    with pytest.raises(ServiceUnavailable):
        journal.get("h1")
    (tmp_path / "file").touch()
    with pytest.raises(ServiceUnavailable):
        SqliteAnswers(tmp_path / "file" / "answers.sqlite")


@pytest.mark.redis
def test_redis_that_is_down_is_unavailable_and_comes_back(redis_server: RedisServer) -> None:
    journal = RedisAnswers(redis_server.url, prefix="down")
    journal.put("h1", "p/1", ANSWER)
    redis_server.stop()
    try:
        with pytest.raises(ServiceUnavailable) as caught:
            journal.get("h1")
        assert (caught.value.service, "127.0.0.1" in str(caught.value)) == ("redis", False)
        with pytest.raises(ServiceUnavailable):
            journal.put("h1", "p/1", ANSWER)
    finally:
        redis_server.start()
    assert journal.get("h1") is None  # the test server keeps nothing, so it is a new one
    journal.put("h1", "p/1", ANSWER)
    assert journal.get("h1") == replace(ANSWER, recorded=True)
    journal.close()


@pytest.mark.redis
def test_a_restart_of_redis_that_nobody_saw_fails_nothing(redis_server: RedisServer) -> None:
    journal = RedisAnswers(redis_server.url, prefix="restart")
    journal.put("h1", "p/1", ANSWER)
    redis_server.stop()
    redis_server.start()
    assert journal.get("h1") is None
    journal.close()


@pytest.mark.redis
def test_many_are_one_question_to_redis(redis_server: RedisServer) -> None:
    journal = RedisAnswers(redis_server.url, prefix="many")
    journal.put("h1", "p/1", ANSWER)
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_resetstat()
        assert [one is not None for one in journal.get_many(["h1", "h2", "h3"])] == [
            True,
            False,
            False,
        ]
        asked = client.info("commandstats")
    assert {name: stats["calls"] for name, stats in asked.items() if "get" in name} == {
        "cmdstat_mget": 1
    }
    journal.close()


@pytest.mark.redis
def test_redis_holds_it_under_the_prefix_for_ever(redis_server: RedisServer) -> None:
    journal = RedisAnswers(redis_server.url, prefix="mine")
    journal.put("h1", "p/1", ANSWER)
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.ttl("mine:h1") == -1
        client.set("mine:h2", b"something else")
    with pytest.raises(StoreMismatch, match="h2"):
        journal.get("h2")
    journal.close()


def test_what_an_answer_is_about_takes_it_along(reopen: Callable[[], Answers]) -> None:
    journal = reopen()
    journal.put("h1", "extract/1", ANSWER, ("scope", "e1", "e2"))
    journal.put("h2", "extract/1", ANSWER, ("scope", "e3"))
    journal.put("h3", "extract/1", ANSWER)
    assert journal.hashes_about(["e2", "e3", "nothing"]) == ["h1", "h2"]
    assert journal.forget(["e2", "nothing"]) == 1
    assert [name for name in ("h1", "h2", "h3") if journal.get(name)] == ["h2", "h3"]
    assert journal.forget(["e2"]) == 0
    assert journal.forget([]) == 0
    journal.put("h1", "extract/1", replace(ANSWER, text="asked again"), ("scope", "e2"))
    assert reopen().forget(["scope"]) == 2
    assert journal.get("h3") is not None


def test_a_thousand_keys_are_forgotten_at_once(reopen: Callable[[], Answers]) -> None:
    journal = reopen()
    for number in range(1200):
        journal.put(f"h{number}", "extract/1", ANSWER, (f"e{number}",))
    assert journal.forget([f"e{number}" for number in range(1, 1200)]) == 1199
    assert journal.get("h0") is not None


def test_a_forgotten_answer_is_not_left_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    journal = SqliteAnswers(path)
    journal.put("h1", "extract/1", replace(ANSWER, text="Zanzibarine" * 500), ("e1",))
    journal.put("h2", "extract/1", replace(ANSWER, text="Quillonette" * 500), ("e2",))

    def holds(word: bytes) -> bool:
        return any(word in one.read_bytes() for one in tmp_path.iterdir())

    assert holds(b"Zanzibarine")
    journal.forget(["e1"])
    assert not holds(b"Zanzibarine")
    assert holds(b"Quillonette")
    journal.close()

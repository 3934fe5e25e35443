"""Notes about writes that have begun: one a scope, the newest, and they outlive the process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
import redis

from stores.errors import ServiceUnavailable
from stores.protocols import UnfinishedWrites
from stores.unfinished import UnfinishedInMemory, UnfinishedInRedis
from stores.unfinished_files import UnfinishedInFiles
from tests.rig.redis import RedisServer


@pytest.fixture(params=["memory", "files", "redis"])
def notes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UnfinishedWrites]:
    if request.param == "redis":
        kept = UnfinishedInRedis(request.getfixturevalue("redis_server").url, tmp_path.name)
        yield kept
        kept.close()
    elif request.param == "files":
        in_files = UnfinishedInFiles(tmp_path / "made" / "at first use")
        yield in_files
        in_files.close()
    else:
        yield UnfinishedInMemory()


def test_a_scope_has_one_note_the_newest(notes: UnfinishedWrites) -> None:
    ana, bo, cy = (f"acme/helper/{name}" for name in ("ana", "bo", "cy"))
    assert notes.get(ana) is None
    notes.clear([ana])
    notes.put({ana: b"first", bo: b"another's", cy: b"a third's"})
    notes.put({ana: b"second"})
    assert notes.get(ana) == b"second"
    notes.clear([ana, "acme/helper/nobody", cy])
    assert [notes.get(scope) for scope in (ana, bo, cy)] == [None, b"another's", None]


def test_a_note_in_a_file_outlives_who_wrote_it_and_is_named_after_nobody(tmp_path: Path) -> None:
    UnfinishedInFiles(tmp_path).put({"acme/helper/ana": b"note"})
    after = UnfinishedInFiles(tmp_path)
    assert after.get("acme/helper/bo") is None
    assert after.get("acme/helper/ana") == b"note"
    (file,) = tmp_path.iterdir()
    assert "ana" not in file.name
    after.clear(["acme/helper/ana"])
    assert UnfinishedInFiles(tmp_path).get("acme/helper/ana") is None


def test_of_two_that_were_left_the_newest_counts_and_both_go(tmp_path: Path) -> None:
    for note in (b"first", b"second"):
        UnfinishedInFiles(tmp_path).put({"scope": note})
    after = UnfinishedInFiles(tmp_path)
    assert after.get("scope") == b"second"
    after.clear(["scope"])
    assert UnfinishedInFiles(tmp_path).get("scope") is None


def test_a_note_of_somebody_else_that_was_not_asked_for_is_cleared_too(tmp_path: Path) -> None:
    UnfinishedInFiles(tmp_path).put({"scope": b"note"})
    UnfinishedInFiles(tmp_path).clear(["scope"])
    assert UnfinishedInFiles(tmp_path).get("scope") is None


def test_one_file_serves_one_note_after_the_other_and_keeps_no_text(tmp_path: Path) -> None:
    notes = UnfinishedInFiles(tmp_path)
    for note in (b"a long one of the swordfish", b"of it", b"longer than it"):
        notes.put({"scope": note})
        notes.clear(["scope"])
    (file,) = tmp_path.iterdir()
    assert not file.read_bytes().strip(b"\0")
    notes.close()
    assert not list(tmp_path.iterdir())


def test_a_note_in_the_place_of_another_leaves_no_text_of_either(tmp_path: Path) -> None:
    notes = UnfinishedInFiles(tmp_path)
    for _ in range(3):
        notes.put({"scope": b"first"})
        notes.put({"scope": b"second"})
        notes.clear(["scope"])
    assert not b"".join(file.read_bytes() for file in tmp_path.iterdir()).strip(b"\0")
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_open_at_the_end_stays_and_the_rest_goes(tmp_path: Path) -> None:
    notes = UnfinishedInFiles(tmp_path)
    for scope in ("a", "b", "c"):
        notes.put({scope: b"note"})
    notes.clear(["b"])
    notes.close()
    assert len(list(tmp_path.iterdir())) == 2
    after = UnfinishedInFiles(tmp_path)
    assert [after.get(scope) for scope in ("a", "b", "c")] == [b"note", None, b"note"]


@pytest.mark.parametrize("at", [0, 5, 20, 40, -1])
def test_a_note_that_was_cut_or_changed_is_none(tmp_path: Path, at: int) -> None:
    UnfinishedInFiles(tmp_path).put({"scope": b"a note of some length"})
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:at])
    assert UnfinishedInFiles(tmp_path).get("scope") is None
    # Its beginning is of a later write, its end of the one before.
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at:][1:])
    assert UnfinishedInFiles(tmp_path).get("scope") is None


def test_an_empty_file_is_removed_once_its_process_has_ended(tmp_path: Path) -> None:
    living, other = UnfinishedInFiles(tmp_path), UnfinishedInFiles(tmp_path)
    living.put({"scope": b"note"})
    living.clear(["scope"])
    left = tmp_path / "of-one-that-was-killed.note"
    left.write_bytes(bytes(30) + b"the end of a note that was cut")
    assert other.get("scope") is None
    (file,) = tmp_path.iterdir()
    assert file != left
    living.put({"scope": b"another"})
    assert other.get("scope") == b"another"


def test_a_file_that_was_removed_before_its_lock_was_taken_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, list[Path]()

    def late(file: int, how: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    UnfinishedInFiles(tmp_path).put({"scope": b"note"})
    assert removed
    assert UnfinishedInFiles(tmp_path).get("scope") == b"note"


def test_threads_keep_each_their_own(tmp_path: Path) -> None:
    notes = UnfinishedInFiles(tmp_path)

    def work(number: int) -> bool:
        scope, right = f"scope-{number}", True
        for turn in range(50):
            note = f"{number} {turn}".encode() * (turn + 1)
            notes.put({scope: note})
            if turn % 10 == 0:
                right = right and UnfinishedInFiles(tmp_path).get(scope) == note
            notes.clear([scope])
        return right

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(16)))
    assert len(list(tmp_path.iterdir())) <= 8


def test_a_full_disk_is_said_and_leaves_the_old_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = UnfinishedInFiles(tmp_path)
    notes.put({"scope": b"old"})

    write = os.pwrite

    def full(file: int, data: bytes, at: int) -> int:
        write(file, data[:1], at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ServiceUnavailable, match="No space left on device"):
        notes.put({"scope": b"new"})
    monkeypatch.undo()
    assert notes.get("scope") == b"old"
    assert UnfinishedInFiles(tmp_path).get("scope") == b"old"
    notes.put({"scope": b"new"})
    assert notes.get("scope") == b"new"
    assert UnfinishedInFiles(tmp_path).get("scope") == b"new"


@pytest.mark.redis
def test_notes_of_several_scopes_are_one_call_of_redis(redis_server: RedisServer) -> None:
    notes = UnfinishedInRedis(redis_server.url, "together")
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_resetstat()
        notes.put({"a": b"1", "b": b"2", "c": b"3"})
        notes.clear(["a", "b", "c"])
        asked = client.info("commandstats")
        assert not client.keys("together*")
    counted = {name: stats["calls"] for name, stats in asked.items()}
    assert (counted["cmdstat_mset"], counted["cmdstat_del"]) == (1, 1)
    notes.close()


def test_redis_that_is_away_is_said() -> None:
    notes = cast(UnfinishedWrites, UnfinishedInRedis("redis://127.0.0.1:1/0", "p"))
    with pytest.raises(ServiceUnavailable):
        notes.put({"scope": b"note"})

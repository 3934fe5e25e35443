"""Notes about writes that have begun: one a scope, the newest, and they outlive the process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from stores.errors import ServiceUnavailable
from stores.protocols import UnfinishedWrites
from stores.unfinished import UnfinishedInFiles, UnfinishedInMemory, UnfinishedInRedis


@pytest.fixture(params=["memory", "files", "redis"])
def notes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UnfinishedWrites]:
    if request.param == "redis":
        kept = UnfinishedInRedis(request.getfixturevalue("redis_server").url, tmp_path.name)
        yield kept
        kept.close()
    elif request.param == "files":
        yield UnfinishedInFiles(tmp_path / "made" / "at first use")
    else:
        yield UnfinishedInMemory()


def test_a_scope_has_one_note_the_newest(notes: UnfinishedWrites) -> None:
    assert notes.get("acme/helper/ana") is None
    notes.clear("acme/helper/ana")
    notes.put("acme/helper/ana", b"first")
    notes.put("acme/helper/bo", b"another's")
    notes.put("acme/helper/ana", b"second")
    assert notes.get("acme/helper/ana") == b"second"
    notes.clear("acme/helper/ana")
    assert notes.get("acme/helper/ana") is None
    assert notes.get("acme/helper/bo") == b"another's"


def test_a_note_in_a_file_outlives_who_wrote_it_and_is_named_after_nobody(tmp_path: Path) -> None:
    UnfinishedInFiles(tmp_path).put("acme/helper/ana", b"note")
    assert UnfinishedInFiles(tmp_path).get("acme/helper/ana") == b"note"
    (file,) = tmp_path.iterdir()
    assert "ana" not in file.name


def test_a_full_disk_is_said_and_leaves_the_old_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = UnfinishedInFiles(tmp_path)
    notes.put("scope", b"old")

    write = os.write

    def full(file: int, data: bytes) -> int:
        write(file, data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ServiceUnavailable, match="No space left on device"):
        notes.put("scope", b"new")
    monkeypatch.undo()
    assert notes.get("scope") == b"old"
    notes.put("scope", b"new")
    assert notes.get("scope") == b"new"


def test_redis_that_is_away_is_said() -> None:
    notes = cast(UnfinishedWrites, UnfinishedInRedis("redis://127.0.0.1:1/0", "p"))
    with pytest.raises(ServiceUnavailable):
        notes.put("scope", b"note")

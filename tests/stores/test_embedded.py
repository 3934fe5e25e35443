"""One owner a folder, guests beside it, and what a killed owner leaves."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pymilvus import MilvusClient

from stores.embedded import EmbeddedStore, FlushPolicy, open_embedded
from stores.errors import ServiceUnavailable, Terminal, UserError
from stores.milvus import MilvusStore
from stores.protocols import Filter
from tests.rig.waiting import until
from tests.stores.test_milvus import SCOPE, atom, connect, vectors

ROOT = Path(__file__).parents[2]
OWNER = """
    import sys
    from pathlib import Path
    from stores.embedded import FlushPolicy, open_embedded
    from tests.stores.test_milvus import atom, connect, vectors

    handle = open_embedded(Path(sys.argv[1]), policy=FlushPolicy(seconds=float(sys.argv[2])))
    store = connect(handle, "p")
    store.ensure_collections()
    for n in range(20):
        store.upsert_atoms([atom(f"a{n}-{m}") for m in range(10)], vectors(10))
        print(n, flush=True)
    sys.stdin.read()
    store.close()
    handle.close()
"""


@contextmanager
def running_owner(folder: Path, flush_seconds: float) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(folder), str(flush_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_batches(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    for n in range(count):
        assert process.stdout.readline() == f"{n}\n"


def store_of(handle: EmbeddedStore) -> MilvusStore:
    return MilvusStore(
        handle.uri,
        token=handle.token,
        prefix="p",
        dimension=8,
        embedding_name="test",
        refuse_writes=handle.refuse_writes,
    )


@pytest.mark.parametrize("flush_seconds", [0.05, 1000.0])
def test_a_killed_owner_loses_no_row_and_leaves_no_lock(
    tmp_path: Path, flush_seconds: float
) -> None:
    with running_owner(tmp_path, flush_seconds) as owner:
        wait_for_batches(owner, 7)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    left = json.loads((tmp_path / "milvus" / "owner.json").read_text())
    assert left["pid"] == owner.pid
    with open_embedded(tmp_path) as handle:
        assert (handle.owner, handle.owner_pid) == (True, os.getpid())
        assert handle.uri != left["uri"] or handle.token != left["token"]
        store = store_of(handle)
        store.ensure_collections()
        found = {a.atom_id for a in store.atoms_of(SCOPE)}
        assert {f"a{n}-{m}" for n in range(7) for m in range(10)} <= found
        store.upsert_atoms([atom("after")], vectors(1))
        assert store.get_atom(SCOPE, "after") == atom("after")
        store.close()


def test_a_collection_that_was_half_made_or_half_dropped_is_made_anew(tmp_path: Path) -> None:
    """Killed meanwhile, a process leaves a folder without a schema."""
    left = tmp_path / "milvus" / "lite" / "collections" / "p_atoms"
    left.mkdir(parents=True)
    (left / "schema.json.tmp").write_text("{")
    with open_embedded(tmp_path, write=True) as handle:
        store = store_of(handle)
        store.ensure_collections()
        store.upsert_atoms([atom("a1")], vectors(1))
        assert [one.atom_id for one in store.atoms_of(SCOPE)] == ["a1"]
        store.close()


@pytest.mark.parametrize("written", ["nothing", "a part of its head", "its head", "half of it"])
def test_an_index_file_that_was_half_written_is_made_anew(tmp_path: Path, written: str) -> None:
    with open_embedded(tmp_path) as handle:
        store = store_of(handle)
        store.ensure_collections()
        store.upsert_atoms([atom("a1"), atom("a2")], vectors(2))
        store.close()
    with open_embedded(tmp_path) as handle:  # the rows are in a file now, and their index is made
        store = store_of(handle)
        store.ensure_collections()
        store.close()
    (index,) = (tmp_path / "milvus" / "lite" / "collections" / "p_atoms").rglob("*.idx")
    whole = index.read_bytes()
    length = {"nothing": 0, "a part of its head": 50, "its head": 128, "half of it": 160}[written]
    assert length < len(whole)
    index.write_bytes(whole[:length])
    with open_embedded(tmp_path) as handle:
        store = store_of(handle)
        store.ensure_collections()
        found = store.search_dense("atoms", SCOPE, vectors(1)[0], 5, Filter())
        assert {one.id for one in found} == {"a1", "a2"}
        store.close()
    assert index.read_bytes() == whole


def test_an_index_that_a_killed_process_did_not_come_to_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_embedded(tmp_path, write=True) as handle:
        store = store_of(handle)
        made: list[str] = []

        def one_only(client: Any, name: str, params: Any, **more: Any) -> None:
            for param in params:
                if made:
                    raise KeyboardInterrupt
                made.append(name)
                client._create_index(name, param, **more)

        with monkeypatch.context() as at_second, pytest.raises(KeyboardInterrupt):
            at_second.setattr(MilvusClient, "create_index", one_only)
            store.ensure_collections()
        store.close()
        store = store_of(handle)
        store.ensure_collections()
        assert sorted(store._client().list_indexes(made[0])) == ["dense", "sparse"]
        store.close()


def test_a_guest_reads_and_searches_beside_the_owner_and_may_not_write(tmp_path: Path) -> None:
    with running_owner(tmp_path, 0.05) as owner:
        wait_for_batches(owner, 20)
        with open_embedded(tmp_path, write=False) as handle:
            assert (handle.owner, handle.owner_pid) == (False, owner.pid)
            store = store_of(handle)
            store.ensure_collections()
            assert len(store.atoms_of(SCOPE)) == 200
            assert len(store.search_dense("atoms", SCOPE, vectors(1)[0], 5, Filter())) == 5
            assert len(store.search_keyword("atoms", SCOPE, "Lisbon", 5, Filter())) == 5
            with pytest.raises(UserError, match=f"in use by process {owner.pid}; stop it first"):
                store.upsert_atoms([atom("mine")], vectors(1))
            store.close()
        with pytest.raises(UserError, match=f"in use by process {owner.pid}; stop it first"):
            open_embedded(tmp_path, wait_s=0.2)
        owner.communicate("")  # the owner goes on after its guest has left
        assert owner.returncode == 0
    with open_embedded(tmp_path, write=False) as handle:
        assert handle.owner


def test_a_guest_sees_that_another_owner_came(tmp_path: Path) -> None:
    with open_embedded(tmp_path) as first:
        guest = open_embedded(tmp_path, write=False)
        assert not guest.moved()
        assert not first.moved()
    assert not guest.moved(), "nobody owns the folder: there is nothing to go to"
    with open_embedded(tmp_path):
        assert guest.moved()
        with open_embedded(tmp_path, write=False) as again:
            assert not again.moved()


def test_an_owner_that_is_ending_is_waited_for(tmp_path: Path) -> None:
    first = open_embedded(tmp_path)
    closing = threading.Timer(0.3, first.close)
    closing.start()
    with open_embedded(tmp_path) as second:
        assert second.owner
    closing.join()


def test_an_owner_that_is_starting_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = threading.Event()

    def slowly(write: Callable[..., None]) -> Callable[..., None]:
        def writing(*arguments: object) -> None:
            locked.set()
            time.sleep(0.3)
            write(*arguments)

        return writing

    import stores.embedded

    monkeypatch.setattr(
        stores.embedded,
        "_write_address",
        slowly(stores.embedded._write_address),
    )
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(open_embedded, tmp_path)
        assert locked.wait(10)
        guest = open_embedded(tmp_path, write=False)
        owner = starting.result()
        assert (guest.owner, guest.uri, owner.owner) == (False, owner.uri, True)
        guest.close()
        owner.close()


def test_an_address_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    with open_embedded(tmp_path / "other") as other, open_embedded(tmp_path / "mine") as mine:
        address = tmp_path / "mine" / "milvus" / "owner.json"
        true = address.read_text()
        # What a killed owner may leave: its port now belongs to another folder's owner.
        address.write_text(json.dumps({"pid": 1, "uri": other.uri, "token": mine.token}))
        repaired = threading.Timer(0.3, address.write_text, [true])
        repaired.start()
        guest = open_embedded(tmp_path / "mine", write=False)
        assert guest.uri == mine.uri
        repaired.join()


def test_the_address_is_for_this_user_only(tmp_path: Path) -> None:
    with open_embedded(tmp_path):
        assert (tmp_path / "milvus" / "owner.json").stat().st_mode & 0o077 == 0


def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    with open_embedded(tmp_path) as handle:
        store = MilvusStore(
            handle.uri, token="x", prefix="p", dimension=8, embedding_name="m", timeout_s=1.0
        )
        with pytest.raises(Terminal, match="milvus: connect"):
            store.describe()
        store.close()


def test_no_row_is_out_of_sight_while_it_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import milvus_lite.engine.collection as engine

    log = engine.WAL
    flushing = threading.Event()

    def slow_log(**arguments: object) -> object:
        # Here a flush has emptied the memory and not begun to write the file.
        flushing.set()
        time.sleep(0.3)
        return log(**arguments)

    with open_embedded(tmp_path, policy=FlushPolicy(seconds=0.05)) as handle:
        store = store_of(handle)
        store.ensure_collections()
        monkeypatch.setattr(engine, "WAL", slow_log)
        store.upsert_atoms([atom("a")], vectors(1))
        assert flushing.wait(10)
        assert store.get_atom(SCOPE, "a") == atom("a")
        flushing.clear()
        store.upsert_atoms([atom("b")], vectors(1))
        assert flushing.wait(10)
        store.upsert_atoms([atom("c")], vectors(1))
        assert [a.atom_id for a in store.atoms_of(SCOPE)] == ["a", "b", "c"]
        store.close()


def test_rows_are_flushed_in_time_and_files_are_joined(tmp_path: Path) -> None:
    def files() -> list[Path]:
        return list((tmp_path / "milvus" / "lite" / "collections" / "p_atoms").rglob("*.parquet"))

    with open_embedded(tmp_path, policy=FlushPolicy(seconds=0.05)) as handle:
        store = store_of(handle)
        store.ensure_collections()
        for n in range(8):
            seen = files()
            store.upsert_atoms([atom(f"a{n}")], vectors(1))
            until(lambda seen=seen: files() != seen)  # type: ignore[misc]
        until(lambda: len(files()) <= 4)
        assert len(store.atoms_of(SCOPE)) == 8
        store.close()


def test_closing_leaves_no_thread_and_all_rows(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    for opening in range(3):
        handle = open_embedded(tmp_path, policy=FlushPolicy(seconds=1000.0))
        store = store_of(handle)
        store.ensure_collections()
        store.upsert_atoms([atom(f"a{opening}")], vectors(1))
        store.close()
        handle.close()
        handle.close()
    assert [t.name for t in threading.enumerate() if t not in before and not t.daemon] == []
    with open_embedded(tmp_path) as handle:
        store = store_of(handle)
        store.ensure_collections()
        assert [a.atom_id for a in store.atoms_of(SCOPE)] == ["a0", "a1", "a2"]
        assert not np.isnan(store.search_dense("atoms", SCOPE, vectors(1)[0], 1, Filter())[0].score)
        store.close()


# --- a full disk -------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["row", "flush"])
def test_after_a_full_disk_the_next_start_has_all_that_was_written(
    tmp_path: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torn row hides what is written behind it, and a cut flush takes rows out of memory."""
    written: list[str] = []

    def write(name: str) -> None:
        store.upsert_atoms([atom(name)], vectors(1))
        written.append(name)

    policy = FlushPolicy(seconds=600 if cut == "row" else 0.01)
    with open_embedded(tmp_path / "data", policy=policy) as handle:
        store = connect(handle, "p")
        store.ensure_collections()
        if cut == "flush":
            monkeypatch.setattr("milvus_lite.engine.collection.execute_flush", full)
            with pytest.raises(UserError):
                for n in range(10_000):
                    write(f"n{n}")
        else:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1]))
            try:
                with pytest.raises(ServiceUnavailable):
                    for n in range(100):
                        write(f"n{n}")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert written
        monkeypatch.undo()
        for use in (lambda: write("behind"), lambda: store.atoms_of(SCOPE)):
            with pytest.raises(UserError, match="disk is full"):
                use()
        store.close()
    shutil.copytree(tmp_path / "data", tmp_path / "again")  # this process still holds the other
    with open_embedded(tmp_path / "again") as handle:
        store = connect(handle, "p")
        store.ensure_collections()
        assert {one.atom_id for one in store.atoms_of(SCOPE)} == set(written)
        store.close()


def full(*, frozen_wal: Any, **_: object) -> None:
    frozen_wal._data_sink.close()  # what it was to flush would be left open, with a warning
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_is_written_to_a_disk_that_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_embedded(tmp_path) as handle:
        store = connect(handle, "p")
        store.ensure_collections()
        monkeypatch.setattr("stores.embedded_guard.RESERVE_BYTES", 1 << 62)
        with pytest.raises(UserError, match="disk is full"):
            store.upsert_atoms([atom("a")], vectors(1))
        assert store.atoms_of(SCOPE) == []
        monkeypatch.undo()
        store.upsert_atoms([atom("a")], vectors(1))
        assert [one.atom_id for one in store.atoms_of(SCOPE)] == ["a"]
        store.close()

"""Scene folders: generations, conflicts, people and workers in each other's way."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stores.coordination import LocalLocks
from stores.errors import LockConflict, Transient, UserError
from stores.scenes import (
    PERSON,
    Applied,
    Change,
    GenerationMoved,
    ProfileFile,
    SceneFolder,
    SceneSandbox,
    StaleFence,
    UnknownScene,
    render,
)

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
LATER = AT + timedelta(days=1)
SCOPE, OTHER = "acme/helper/ana", "acme/helper/bob"


def scene(body: str, *, heat: int = 0, at: datetime = AT) -> ProfileFile:
    return ProfileFile("scene", "Title", body, at, at, "Summary.", heat, ("a1",), (), "m/1")


PORTO, WORK = scene("In Porto.", heat=3), scene("At work.")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SceneFolder]:
    folder = SceneFolder(tmp_path / "scenes", keep=3)
    yield folder
    folder.close()


def commit(
    folder: SceneFolder, files: dict[str, ProfileFile], *, token: int = 1, job: str = "j",
    moved: dict[str, str] | None = None,
) -> int:  # fmt: skip
    with folder.checkout(SCOPE, token, AT) as copy:
        change = Change(AT, "m/1", "job", (job,), moved or {})
        return folder.commit(copy, files, change).number


def home_of(folder: SceneFolder) -> Path:
    with folder.checkout(SCOPE, 10**6, AT) as copy:
        return copy.path.parent


# --- generations -----------------------------------------------------------------------------


def test_a_scope_without_a_folder_is_empty(folder: SceneFolder) -> None:
    assert folder.scopes() == []
    assert folder.current(SCOPE).number == 0
    assert folder.files(SCOPE) == {}
    assert folder.history(SCOPE) == []
    assert folder.moved(SCOPE) == {}
    assert folder.applied(SCOPE, "j") is None
    assert folder.newest_token(SCOPE) == 0
    folder.forget_history(SCOPE)
    assert folder.scopes() == []


def test_what_is_committed_is_read_with_its_history(folder: SceneFolder) -> None:
    assert commit(folder, {"porto.md": PORTO}, job="j1") == 1
    assert commit(folder, {"porto.md": PORTO, "work.md": WORK}, job="j2") == 2
    assert folder.files(SCOPE) == {"porto.md": PORTO, "work.md": WORK}
    assert folder.files(SCOPE, 1) == {"porto.md": PORTO}
    assert folder.files(SCOPE, 0) == {}
    newest, first = folder.history(SCOPE)
    assert (newest.number, newest.base, newest.token) == (2, 1, 1)
    assert newest.change == Change(AT, "m/1", "job", ("j2",))
    assert newest.versions == {"porto.md": 1, "work.md": 2}
    assert first.versions == {"porto.md": 1}
    assert folder.scopes() == [SCOPE]
    assert folder.files(OTHER) == {}
    with pytest.raises(UnknownScene, match="no generation 3"):
        folder.files(SCOPE, 3)


def test_the_last_generations_are_kept(folder: SceneFolder) -> None:
    for number in range(1, 7):
        commit(folder, {"porto.md": scene(f"{number}.")})
    assert [one.number for one in folder.history(SCOPE)] == [6, 5, 4]
    with pytest.raises(UnknownScene):
        folder.files(SCOPE, 3)
    with pytest.raises(UserError, match="no generation 3"):
        folder.restore(SCOPE, 3, AT)
    for number in range(3):
        folder.edit(SCOPE, "porto.md", f"By hand {number}.", LATER)
    (home,) = folder._root.iterdir()
    assert sorted(path.name for path in home.glob("g*")) == ["g000007", "g000008", "g000009"]


def test_a_job_is_remembered_also_when_it_changed_nothing(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO}, job="j1")
    assert commit(folder, {"porto.md": PORTO}, job="j2") == 1
    applied = Applied(1, "j1"), Applied(1, "j2")
    assert (folder.applied(SCOPE, "j1"), folder.applied(SCOPE, "j2")) == applied
    folder.edit(SCOPE, "porto.md", "New.", LATER)
    assert folder.applied(SCOPE, "j2") == Applied(1, "j2")
    assert folder.applied(SCOPE, "j3") is None


def test_old_jobs_are_forgotten_in_the_end(tmp_path: Path) -> None:
    folder = SceneFolder(tmp_path, remembered_jobs=2)
    for number in range(4):
        commit(folder, {"porto.md": scene(f"{number}.")}, job=f"j{number}")
    kept = [folder.applied(SCOPE, f"j{n}") for n in range(4)]
    assert kept == [None, None, Applied(3, "j2"), Applied(4, "j3")]
    folder.close()


def test_a_name_that_is_not_safe_is_never_written(folder: SceneFolder) -> None:
    for name in ("../x.md", "a b.md", "x.txt", "/tmp/x.md", ".md"):
        with pytest.raises(ValueError, match="safe"):
            commit(folder, {name: PORTO})
    assert folder.current(SCOPE).number == 0


def test_moves_are_followed_through_generations(folder: SceneFolder) -> None:
    commit(folder, {"a.md": PORTO})
    commit(folder, {"b.md": PORTO}, moved={"a.md": "b.md"})
    commit(folder, {"c.md": PORTO}, moved={"b.md": "c.md"})
    assert folder.moved(SCOPE) == {"a.md": "c.md", "b.md": "c.md"}


def test_the_same_commits_give_the_same_bytes(tmp_path: Path) -> None:
    trees: list[dict[str, bytes]] = []
    for name in ("one", "two"):
        folder = SceneFolder(tmp_path / name)
        commit(folder, {"work.md": WORK, "porto.md": PORTO})
        folder.edit(SCOPE, "new", "# New\n\nText.", LATER)
        root = tmp_path / name
        trees.append(
            {str(path.relative_to(root)): path.read_bytes()
             for path in sorted(root.rglob("*")) if path.is_file()}
        )  # fmt: skip
        folder.close()
    assert trees[0] == trees[1]


def test_personas_keep_to_the_same_rules(tmp_path: Path) -> None:
    folder = SceneFolder(tmp_path, "persona", keep=3)
    persona = ProfileFile("persona", "Ana", "Likes tea.", AT, AT)
    commit(folder, {"persona.md": persona})
    assert folder.files(SCOPE) == {"persona.md": persona}
    folder.close()


# --- the copy --------------------------------------------------------------------------------


def test_the_copy_holds_the_files_and_nothing_of_the_system(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO})
    with folder.checkout(SCOPE, 2, AT) as copy:
        assert [entry.name for entry in copy.path.iterdir()] == ["porto.md"]
        assert copy.contents() == {"porto.md": render(PORTO).encode()}
        SceneSandbox(copy.path).write("porto.md", "x")
        (copy.path / "link.md").symlink_to("/etc/hostname")
        assert copy.contents() == {"porto.md": b"x"}
        assert folder.files(SCOPE) == {"porto.md": PORTO}
    assert not copy.path.exists()


def test_leftover_copies_are_cleared_at_the_next_checkout(folder: SceneFolder) -> None:
    left = folder.checkout(SCOPE, 1, AT)
    with folder.checkout(SCOPE, 2, AT):
        assert not left.path.exists()


# --- conflicts -------------------------------------------------------------------------------


def test_a_stale_token_is_refused_at_checkout_and_at_commit(folder: SceneFolder) -> None:
    slow = folder.checkout(SCOPE, 4, AT)
    fast = folder.checkout(SCOPE, 5, AT)
    with pytest.raises(StaleFence) as stale:
        folder.commit(slow, {"porto.md": PORTO}, Change(AT, "m/1", "slow"))
    assert (stale.value.token, stale.value.newest) == (4, 5)
    assert isinstance(stale.value, LockConflict)
    assert isinstance(pickle.loads(pickle.dumps(stale.value)), StaleFence)
    with pytest.raises(StaleFence):
        folder.checkout(SCOPE, 4, AT)
    assert folder.commit(fast, {"work.md": WORK}, Change(AT, "m/1", "fast")).number == 1
    assert folder.files(SCOPE) == {"work.md": WORK}
    assert folder.newest_token(SCOPE) == 5


def test_a_flushed_lock_store_blocks_nobody(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO}, token=900)
    with LocalLocks().acquire(SCOPE, 30, above=folder.newest_token(SCOPE)) as fence:
        assert commit(folder, {"work.md": WORK}, token=fence.token) == 2


def test_a_person_s_edit_while_the_agent_runs_is_never_overwritten(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO})
    copy = folder.checkout(SCOPE, 2, AT)
    folder.edit(SCOPE, "porto.md", "By hand.", LATER)
    assert copy.path.exists()
    with pytest.raises(GenerationMoved) as moved:
        folder.commit(copy, {"porto.md": WORK}, Change(AT, "m/1", "job", ("j9",)))
    assert (moved.value.base, moved.value.current) == (1, 2)
    assert isinstance(moved.value, Transient)
    assert pickle.loads(pickle.dumps(moved.value)).current == 2
    assert folder.applied(SCOPE, "j9") is None
    with folder.checkout(SCOPE, 2, AT) as again:
        assert again.files["porto.md"].body == "By hand."


def test_an_edit_in_place_becomes_a_generation_and_stops_a_commit(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO, "work.md": WORK, "gone.md": WORK})
    commit(folder, {"porto.md": replace(PORTO, heat=9), "work.md": WORK, "gone.md": WORK})
    copy = folder.checkout(SCOPE, 2, AT)
    current = copy.path.parent / "g000002"
    (current / "porto.md").write_bytes("Only Café.".encode("cp1252"))
    (current / "New note.md").write_text("# Note\n\nBy hand.")
    (current / "gone.md").unlink()
    (current / "link.md").symlink_to("/etc/hostname")
    with pytest.raises(GenerationMoved, match="in place"):
        folder.commit(copy, {"porto.md": PORTO}, Change(AT, "m/1", "job"))
    with folder.checkout(SCOPE, 2, LATER) as again:
        assert again.base.number == 3
        assert again.base.change == Change(LATER, PERSON, "edited in place")
        assert list(again.files) == ["New-note.md", "porto.md", "work.md"]
        porto = again.files["porto.md"]
        assert (porto.body, porto.heat, porto.atoms) == ("Only Café.", 3, ("a1",))
        assert (porto.generator, porto.updated) == (PERSON, LATER)
        assert again.files["work.md"] == WORK
        assert folder.commit(again, again.files, Change(AT, "m/1", "job")).number == 3


def test_white_space_added_in_place_settles(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO})
    folder.edit(SCOPE, "porto.md", "By hand.", LATER)
    path = home_of(folder) / "g000002" / "porto.md"
    path.write_text(path.read_text().replace("generator: person", "generator:   person"))
    for expected in (3, 3):
        with folder.checkout(SCOPE, 10**6, AT) as copy:
            assert copy.base.number == expected


def test_two_workers_race_and_one_commits(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO})
    copies = [folder.checkout(SCOPE, 2, AT)]
    second = SceneFolder(folder._root, keep=3)
    copies.append(replace(copies[0]))
    barrier = threading.Barrier(2)

    def race(index: int) -> bool:
        barrier.wait()
        try:
            mine = {"porto.md": scene(f"Worker {index}.")}
            (folder, second)[index].commit(copies[index], mine, Change(AT, "m/1", "race"))
        except GenerationMoved:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(race, range(2)))
    assert sorted(won) == [False, True]
    assert folder.files(SCOPE)["porto.md"].body == f"Worker {won.index(True)}."
    second.close()


def test_readers_see_whole_generations_while_they_are_replaced(tmp_path: Path) -> None:
    folder = SceneFolder(tmp_path, keep=1)
    commit(folder, {f"s{n}.md": scene("0.") for n in range(5)})
    stop = threading.Event()
    seen: list[set[str]] = []

    def read() -> None:
        while not stop.is_set():
            seen.append({file.body for file in folder.files(SCOPE).values()})

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 30):
            commit(folder, {f"s{n}.md": scene(f"{number}.") for n in range(5)})
    finally:
        stop.set()
        reader.join()
        folder.close()
    assert seen
    assert all(len(bodies) == 1 for bodies in seen)


def test_many_scopes_commit_at_once(folder: SceneFolder) -> None:
    def work(number: int) -> int:
        scope = f"acme/helper/{number}"
        for step in range(3):
            with folder.checkout(scope, step + 1, AT) as copy:
                files = {**copy.files, f"s{step}.md": scene(f"{number}.")}
                folder.commit(copy, files, Change(AT, "m/1", "job"))
        return len(folder.files(scope))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(16))) == {3}
    assert len(folder.scopes()) == 16


# --- people ----------------------------------------------------------------------------------


def test_a_person_s_edit_keeps_what_it_does_not_say(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO, "work.md": WORK})
    generation = folder.edit(SCOPE, "porto.md", "By hand.", LATER)
    assert generation.change == Change(LATER, PERSON, "edited porto.md")
    assert folder.files(SCOPE) == {
        "porto.md": replace(PORTO, body="By hand.", updated=LATER, generator=PERSON),
        "work.md": WORK,
    }


def test_a_person_adds_and_deletes(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO})
    folder.edit(SCOPE, "PORTO .md", "# Another\n\nNote.", LATER)
    assert list(folder.files(SCOPE)) == ["PORTO-2.md", "porto.md"]
    folder.edit(SCOPE, "PORTO-2.md", "[DELETED]\n", LATER)
    folder.edit(SCOPE, "porto.md", None, LATER)
    assert folder.files(SCOPE) == {}
    with pytest.raises(UnknownScene, match=r"no file porto\.md"):
        folder.edit(SCOPE, "porto.md", None, LATER)


def test_an_edit_of_what_changed_since_is_refused(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO, "work.md": WORK})
    looked_at = folder.current(SCOPE).number
    commit(folder, {"porto.md": scene("By the agent."), "work.md": WORK})
    with pytest.raises(GenerationMoved, match=r"porto\.md has changed"):
        folder.edit(SCOPE, "porto.md", "By hand.", LATER, base=looked_at)
    folder.edit(SCOPE, "work.md", "By hand.", LATER, base=looked_at)
    assert folder.files(SCOPE)["work.md"].body == "By hand."


def test_restore_is_a_new_generation_that_loses_no_heat(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": PORTO, "old.md": scene("Old.", heat=2)})
    commit(folder, {"porto.md": scene("New.", heat=8), "new.md": WORK})
    generation = folder.restore(SCOPE, 1, LATER)
    assert (generation.number, generation.base) == (3, 2)
    assert generation.versions == {"porto.md": 3, "old.md": 3}
    assert folder.files(SCOPE) == {
        "porto.md": replace(PORTO, heat=8),
        "old.md": scene("Old.", heat=2),
    }
    assert folder.files(SCOPE, 2)["porto.md"].body == "New."


# --- forgetting ------------------------------------------------------------------------------


def text_under(root: Path) -> str:
    return "".join(path.read_text() for path in root.rglob("*") if path.is_file())


def test_forgotten_history_is_nowhere_on_disk(folder: SceneFolder) -> None:
    commit(folder, {"porto.md": scene("A secret.")})
    folder.checkout(SCOPE, 1, AT)
    with folder.checkout(SCOPE, 1, AT) as copy:
        change = Change(AT, "m/1", "job", ("run", "j"))
        folder.commit(copy, {"porto.md": PORTO}, change, asks="a secret asked for")
    assert folder.applied(SCOPE, "j") == Applied(2, "run", "a secret asked for")
    assert "secret" in text_under(folder._root)
    folder.forget_history(SCOPE)
    assert "secret" not in text_under(folder._root)
    assert folder.files(SCOPE) == {"porto.md": PORTO}
    assert [one.number for one in folder.history(SCOPE)] == [2]
    assert folder.applied(SCOPE, "j") == Applied(2, "run")

"""Killed or out of disk at any instruction: the old generation or the new one, whole.

Run as a program this file is the victim: it forks a child for each system call on the folder
(seen by an audit hook) that dies, or is refused, at exactly that call.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stores.errors import ServiceUnavailable
from stores.scenes import Change, ProfileFile, SceneFolder, SceneSandbox

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
SCOPE = "acme/helper/ana"
OLD = {f"s{n}.md": ProfileFile("scene", f"S{n}", f"Old {n}.", AT, AT, f"On {n}.") for n in range(4)}
NEW = {
    **{name: OLD[name] for name in ("s1.md", "s2.md")},
    "s3.md": replace(OLD["s3.md"], body="New 3."),
    "new.md": ProfileFile("scene", "New", "Long. " * 2000, AT, AT),
}
ROOT = Path(__file__).parents[2]
THROUGH = 10
"""Exit code of a child that ended before the call it was to die at."""
MAKES = {"os.mkdir", "os.rename", "tempfile.mkdtemp"}
REMOVES = {"os.remove", "os.rmdir"}


def prepare(root: Path) -> None:
    """Leave three generations behind, of which two are kept, so that a commit also prunes."""
    folder = SceneFolder(root, keep=2)
    for number in range(3):
        with folder.checkout(SCOPE, 1, AT) as copy:
            files = {name: replace(file, heat=number) for name, file in OLD.items()}
            folder.commit(copy, files, Change(AT, "m/1", "job", (f"j{number}",)))
    with folder.checkout(SCOPE, 1, AT) as copy:
        folder.commit(copy, OLD, Change(AT, "m/1", "job"))
    folder.close()


def work(root: Path) -> None:
    """Do one whole run."""
    folder = SceneFolder(root, keep=2)
    copy = folder.checkout(SCOPE, 2, AT)
    SceneSandbox(copy.path).write("s3.md", "New 3.")
    folder.commit(copy, NEW, Change(AT, "m/1", "job", ("j9",)))
    folder.close()


def on_call(root: Path, number: int, act: Callable[[], None], *, makes_only: bool) -> list[int]:
    """Act at the ``number``-th call that changes something under the root.

    :arg makes_only: only at calls that make a name: others need no room on the disk.
    :returns: a list that is empty until then.
    """
    seen = 0
    reached: list[int] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        paths = (os.fsdecode(one) for one in arguments if isinstance(one, (str, bytes, Path)))
        if not any(str(root) in path for path in paths):
            return
        flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
        makes = event in MAKES or flags & os.O_ACCMODE
        if makes or (not makes_only and (event in REMOVES or flags & os.O_DIRECTORY)):
            seen += 1
            if seen == number:
                reached.append(number)
                act()

    sys.addaudithook(hook)
    return reached


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def small_files_only() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))


def victim(template: Path, mode: str) -> None:
    """Fork a child for each call until one gets through."""
    number = 0
    while True:
        number += 1
        root = template.with_name(f"{mode}-{number}")
        shutil.copytree(template, root)
        child = os.fork()
        if child == 0:
            code, reached = 1, [0]
            try:
                if mode == "kill":
                    reached = on_call(root, number, die, makes_only=False)
                elif mode == "refuse":
                    reached = on_call(root, number, no_space, makes_only=True)
                else:
                    small_files_only()
                work(root)
                code = 0 if reached else THROUGH
            except ServiceUnavailable:
                code = 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(root, os.waitstatus_to_exitcode(status), flush=True)
        if mode == "limit" or os.waitstatus_to_exitcode(status) == THROUGH:
            return


def outcomes(tmp_path: Path, mode: str) -> list[tuple[Path, int]]:
    template = tmp_path / "template"
    prepare(template)
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.test_scenes_crash", str(template), mode],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    return [(Path(root), int(code)) for root, code in lines]


def check_whole(root: Path) -> bool:
    """Check that one generation is current and whole, and work on; say whether it is the new."""
    folder = SceneFolder(root, keep=2)
    generation = folder.current(SCOPE)
    new = generation.number == 5
    assert generation.number in (4, 5)
    assert folder.files(SCOPE) == (NEW if new else OLD)
    assert folder.files(SCOPE, 4) == OLD
    assert [one.number for one in folder.history(SCOPE)] == ([5, 4] if new else [4, 3])
    assert (folder.applied(SCOPE, "j9") is not None) == new
    with folder.checkout(SCOPE, 3, AT) as copy:
        assert copy.files == (NEW if new else OLD)
        entries = {entry.name for entry in copy.path.parent.iterdir()} - {copy.path.name}
        generations = {"g000004", "g000005"} if new else {"g000003", "g000004"}
        assert entries == {"current", "lock", "scope", *generations}
        after = {**copy.files, "s1.md": replace(OLD["s1.md"], body="After.")}
        assert folder.commit(copy, after, Change(AT, "m/1", "job")).number == generation.number + 1
    assert folder.files(SCOPE) == after
    folder.close()
    return new


@pytest.mark.slow
def test_killed_at_any_call_leaves_the_old_or_the_new_generation(tmp_path: Path) -> None:
    results = outcomes(tmp_path, "kill")
    *killed, (_, last) = results
    assert last == THROUGH
    assert {code for _, code in killed} == {-signal.SIGKILL}
    states = [check_whole(root) for root, _ in results]
    assert states == sorted(states)  # once new, never old again
    assert states.count(False) > 15
    assert states.count(True) > 1


@pytest.mark.slow
def test_no_room_for_any_name_leaves_the_old_generation(tmp_path: Path) -> None:
    *refused, (through, last) = outcomes(tmp_path, "refuse")
    assert last == THROUGH
    assert check_whole(through)
    codes = [code for _, code in refused]
    assert set(codes) == {0, 2}
    assert codes.count(0) == 2  # the folder is there already: no room for it is no error
    for root, code in refused:
        assert check_whole(root) == (code == 0)


def test_a_disk_that_is_full_while_writing_leaves_the_old_generation(tmp_path: Path) -> None:
    ((full, code),) = outcomes(tmp_path, "limit")
    assert code == 2
    left = {entry.name for entry in next(full.iterdir()).iterdir()}
    assert not left & {"g000005", "current.tmp"}
    assert not check_whole(full)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"generation": "x"}'])
def test_a_damaged_pointer_is_found_again(tmp_path: Path, damage: bytes) -> None:
    prepare(tmp_path)
    (home,) = tmp_path.iterdir()
    (home / "current").write_bytes(damage)
    assert not check_whole(tmp_path)


if __name__ == "__main__":
    victim(Path(sys.argv[1]), sys.argv[2])

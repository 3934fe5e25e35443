"""What every verb promises: help with an example, documented exit codes, one line for an error."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from flows import PIPELINE
from flows.cli.common import errors_for_people
from flows.cli.main import app
from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig.events import body


def _verbs(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path
        return
    if command.invoke_without_command:
        yield path
    for name, one in inner.items():
        yield from _verbs((*path, name), one)


VERBS = tuple(_verbs((), typer.main.get_command(app)))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_shows_an_example(verb: tuple[str, ...], cli: InProcess) -> None:
    printed = cli.run(*verb, "--help").out
    assert "Example:" in printed
    assert f"sediment {' '.join(verb)}" in printed.partition("Example:")[2]


def test_every_verb_has_a_file_of_tests() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    tested_with = {"up": "serve"}  # the same service
    assert {f"test_{tested_with.get(verb[0], verb[0])}" for verb in VERBS} <= files


def test_version(cli: InProcess) -> None:
    assert cli.run("--version").out == PIPELINE


@pytest.mark.parametrize(
    "arguments", [("no-such-verb",), ("run", "--no-such-option"), ("recall", "q")], ids=" ".join
)
def test_what_cannot_be_parsed_is_exit_code_2(arguments: tuple[str, ...], cli: InProcess) -> None:
    assert "Traceback" not in cli.run(*arguments, code=2).err


def test_nothing_is_made_by_looking_at_help(cli: InProcess) -> None:
    cli.run("run", "--help")
    cli.run("run", "nowhere", code=2)
    assert not cli.data_dir.exists()


_SLOW = ("flows.rules", "grpc", "milvus_lite", "openai", "pandas", "pymilvus", "redis")
_LOADED = f"""
import sys, typer
from flows.cli.main import app

commands = typer.main.get_command(app).commands
assert len([commands[name].get_short_help_str() for name in commands]) > 20
print(*sorted(set({_SLOW!r}) & set(sys.modules)))
"""


def test_looking_at_any_verb_loads_nothing_slow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == []


def test_a_verb_does_not_load_the_others() -> None:
    script = (
        "import sys, typer; from flows.cli.main import app;"
        "typer.main.get_command(app).commands['topics'];"
        "print(*sorted(name for name in sys.modules if name.startswith('flows.cli.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["flows.cli.admin", "flows.cli.common", "flows.cli.main"]


def test_ctrl_c_while_modules_are_loaded_shows_no_traceback() -> None:
    program = """
import os, signal, sys
from importlib.abc import MetaPathFinder
from flows.cli.entry import main
class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(
    "verb",
    [
        ("ingest", "FILE"),
        ("run", "--embedded"),
        ("up",),
        ("recall", "q", *ANA),
        ("status",),
        ("audit",),
        ("rebuild",),
        ("forget", *ANA, "--yes"),
        ("replay", "--into", "v2"),
        ("generations", "list"),
        ("dlq", "list"),
        ("doctor",),
    ],
    ids=lambda verb: " ".join(verb[:2]),
)
def test_a_data_folder_that_cannot_be_is_one_line(verb: tuple[str, ...], tmp_path: Path) -> None:
    events = write_lines(tmp_path / "events.jsonl", body("e1"))
    inside_a_file = InProcess(events / "data")
    named = [str(events) if word == "FILE" else word for word in verb]
    said = inside_a_file.run(*named, code=2).err
    assert "Traceback" not in said
    assert str(events) in said.partition("error:")[2]


def test_a_full_disk_is_one_line_and_may_be_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, errors_for_people():
        raise OSError(errno.ENOSPC, "No space left on device", "data/keys.json")
    assert ended.value.code == 3
    assert "data/keys.json: No space left on device; free some" in capsys.readouterr().err
    with pytest.raises(OSError, match="no file"), errors_for_people():
        raise OSError(errno.EINVAL, "no file")  # ours: its traceback is wanted

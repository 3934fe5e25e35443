"""Forget and reject through the command line, and all the ways in which it could come back."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from connectors.embeddings import make_embedder
from connectors.settings import load_settings
from flows.parts import open_store
from tests.cli.in_process import ANA, InProcess, write_lines
from tests.rig import extraction_script, reconcile_script
from tests.rig.events import at, body
from tests.rig.scripted_llm import ScriptedLlm

pytestmark = pytest.mark.slow

BOB = ("--tenant", "acme", "--agent", "helper", "--user", "bob")
ONE, TWO, THREE = "Zanzibarine", "Quillonette", "Marabelisk"  # words that nothing else holds
WIDE = {"SEDIMENT_MAX_TOTAL_RECALL_CHARS": "100000", "SEDIMENT_RECALL_TIMEOUT_S": "60"}

SAID = [
    ("e1", "ana", "s1", f"My sister is called {ONE}."),
    ("e2", "ana", "s1", f"My brother is called {TWO}."),
    ("e3", "ana", "s2", f"My daughter is called {THREE}."),
    ("b1", "bob", "s1", f"My sister is called {ONE}."),
]


def conversation(said: Sequence[tuple[str, str, str, str]] = SAID) -> list[dict[str, Any]]:
    return [
        body(name, user_id=user, session_id=session, content=text, occurred_at=at(n).isoformat())
        for n, (name, user, session, text) in enumerate(said)
    ]


def remembered(cli: InProcess, *, who: Sequence[str] = ANA) -> set[str]:
    """Give which of the words recall, the list of memories or the rows of the store still tell."""
    listed = cli.text("memories", "list", *who, "--json")
    recalled = cli.text(
        "recall", "What are they called?", *who, "--limit", "100", "--budget-tokens", "100000",
        "--json",
    )  # fmt: skip
    scope = "/".join(who[1::2])
    settings = load_settings(data_dir=cli.data_dir)
    with open_store(settings, make_embedder(settings), write=False) as store:
        rows = [one.text for one in store.events_of(scope)]
        rows += [one.text for one in store.atoms_of(scope)]
    told = "\n".join([listed, *rows])
    found = {word for word in (ONE, TWO, THREE) if word in told}
    assert {word for word in (ONE, TWO, THREE) if word in recalled} == found
    return found


def wipe(cli: InProcess) -> None:
    """Delete everything but the log and the recorded answers."""
    for name in ("milvus", "recovery"):
        shutil.rmtree(cli.data_dir / name)


@pytest.fixture
def cli(tmp_path: Path) -> InProcess:
    """Two users' memories, and the export that was made of them."""
    cli = InProcess(tmp_path / "data", WIDE)
    cli.run("ingest", str(write_lines(tmp_path / "said.jsonl", *conversation())))
    cli.run("run", "--embedded")
    cli.run("export", "--out", str(tmp_path / "before"))
    assert remembered(cli) == {ONE, TWO, THREE}
    return cli


def atom_about(cli: InProcess, word: str) -> str:
    items = cli.json("memories", "list", *ANA)["items"]
    (found,) = [item["atom_id"] for item in items if word in item["text"]]
    return str(found)


@pytest.mark.parametrize(
    ("target", "gone"),
    [
        ("user", {ONE, TWO, THREE}),
        ("session", {ONE, TWO}),
        ("event", {ONE}),
        ("atom", {TWO}),
    ],
)
def test_what_was_forgotten_stays_absent(
    cli: InProcess, tmp_path: Path, target: str, gone: set[str]
) -> None:
    about = {
        "user": (),
        "session": ("--session", "s1"),
        "event": ("--event", "e1"),
        "atom": ("--atom", atom_about(cli, TWO)) if target == "atom" else (),
    }[target]
    shown = cli.json("forget", *ANA, *about)
    assert (shown["asked"], shown["events"], shown["atoms_removed"]) == (
        False,
        len(gone),
        len(gone),
    )
    cli.run("forget", *ANA, *about, "--reason", "asked for it", "--yes")
    cli.run("run", "--embedded")
    left = {ONE, TWO, THREE} - gone
    assert remembered(cli) == left
    assert remembered(cli, who=BOB) == {ONE}
    assert cli.json("audit")["ends"] == ends_with(cli, forgotten=len(gone), applied=1)

    cli.run("export", "--out", str(tmp_path / "after"))
    folder = tmp_path / "after" / "acme+helper+ana"
    exported = b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file())
    assert {word for word in (ONE, TWO, THREE) if word.encode() in exported} == left

    wipe(cli)
    cli.run("run", "--embedded")  # from offset 0
    assert remembered(cli) == left, "replayed"
    refused = cli.json("import", str(tmp_path / "before"))
    assert (refused["events"]["forgotten"], refused["atoms"]["forgotten"]) == (len(gone), len(gone))
    cli.run("run", "--embedded")
    assert remembered(cli) == left, "an older export imported"
    shutil.rmtree(cli.data_dir / "milvus")
    cli.run("rebuild")
    assert remembered(cli) == left, "rebuilt"
    assert cli.json("audit")["clean"]

    elsewhere = InProcess(tmp_path / "elsewhere", WIDE)
    elsewhere.run("import", str(tmp_path / "after"))
    elsewhere.run("import", str(tmp_path / "before"))
    elsewhere.run("run", "--embedded")
    assert remembered(elsewhere) == left, "the tombstones went along with the export"


def ends_with(cli: InProcess, **ends: int) -> dict[str, Any]:
    """Give the audit's ends; the rest of SAID was extracted."""
    total = len(SAID) + ends["applied"]
    rest = total - sum(ends.values())
    return {"extracted": rest, **ends}


def test_an_event_that_comes_late_is_dated_before_the_request(
    cli: InProcess, tmp_path: Path
) -> None:
    cli.run("forget", *ANA, "--session", "s1", "--yes")
    late = [
        body("late", session_id="s1", content=f"My aunt is called {TWO}."),
        body("new", session_id="s1", content=f"My niece is called {ONE}.",
             occurred_at="2126-11-30T00:00:00Z"),
    ]  # fmt: skip
    cli.run("ingest", str(write_lines(tmp_path / "late.jsonl", *late)))
    cli.run("run", "--embedded")
    # The second is dated ahead of the log, so by the log: after the request.
    assert remembered(cli) == {ONE, THREE}
    assert [item["text"] for item in cli.json("memories", "list", *ANA)["items"]] != []


def test_a_user_is_forgotten_in_every_scope(cli: InProcess, tmp_path: Path) -> None:
    other = body("o1", agent_id="coach", content=f"My sister is called {ONE}.")
    cli.run("ingest", str(write_lines(tmp_path / "other.jsonl", other)))
    cli.run("run", "--embedded")
    coach = ("--tenant", "acme", "--agent", "coach", "--user", "ana")
    assert remembered(cli, who=coach) == {ONE}
    asked = cli.json("forget", "--tenant", "acme", "--user", "ana", "--yes")
    assert [one["scope"] for one in asked["requests"]] == ["acme/helper/ana", "acme/coach/ana"]
    cli.run("run", "--embedded")
    assert remembered(cli) == remembered(cli, who=coach) == set()
    assert remembered(cli, who=BOB) == {ONE}


LOOK_ALIKES = [
    f"My sister is called {ONE}!",
    f"MY SISTER IS CALLED {ONE.upper()}.",
    "My  sister is called Z\u200banz\u00adibarine.",
    "My sister is called Zаnzibаrinе.",  # Cyrillic letters
]


def test_a_rejected_value_is_not_extracted_again(cli: InProcess, tmp_path: Path) -> None:
    def active() -> set[str]:
        items = cli.json("memories", "list", *ANA)["items"]
        return {item["slot"] for item in items if item["status"] == "active"}

    assert active() == {"family.sister", "family.brother", "family.daughter"}
    cli.run("reject", atom_about(cli, ONE), *ANA, "--yes")
    cli.run("run", "--embedded")
    assert active() == {"family.brother", "family.daughter"}
    again = [
        body(f"r{n}", session_id=f"r{n}", content=text, occurred_at=at(100 + n).isoformat())
        for n, text in enumerate(LOOK_ALIKES)
    ]
    cli.run("ingest", str(write_lines(tmp_path / "again.jsonl", *again)))
    cli.run("run", "--embedded")
    assert active() == {"family.brother", "family.daughter"}
    wipe(cli)
    cli.run("run", "--embedded")
    cli.run("import", str(tmp_path / "before"))
    assert active() == {"family.brother", "family.daughter"}
    # The control: another value is taken.
    other = body("x1", session_id="x", content="My sister is called Rosalind.",
                 occurred_at=at(200).isoformat())  # fmt: skip
    cli.run("ingest", str(write_lines(tmp_path / "other.jsonl", other)))
    cli.run("run", "--embedded")
    assert active() == {"family.brother", "family.daughter", "family.sister"}
    assert cli.json("audit")["clean"]


def test_recorded_answers_are_forgotten_and_those_of_others_are_not(
    tmp_path: Path, llm_server: ScriptedLlm
) -> None:
    env = {
        **WIDE,
        "SEDIMENT_LLM_BASE_URL": llm_server.url,
        "SEDIMENT_LLM_MODEL": extraction_script.SCRIPTED_MODEL,
        "SEDIMENT_SCENE_WRITER": "rules",
    }
    llm_server.answer = lambda asked: (
        reconcile_script.answer(asked)
        if reconcile_script.is_asked(asked)
        else extraction_script.answer(asked)
    )
    cli = InProcess(tmp_path / "data", env)
    cli.run("ingest", str(write_lines(tmp_path / "said.jsonl", *conversation())))
    cli.run("run", "--embedded")
    assert words_in_answers(cli) == {ONE, TWO, THREE}
    cli.run("forget", *ANA, "--session", "s2", "--yes")
    cli.run("run", "--embedded")
    assert words_in_answers(cli) == {ONE, TWO}
    assert remembered(cli) == {ONE, TWO}
    asked = llm_server.count()
    wipe(cli)
    cli.run("run", "--embedded")
    assert llm_server.count() == asked, "windows that lost nothing are found under their requests"
    assert remembered(cli) == {ONE, TWO}
    assert words_in_answers(cli) == {ONE, TWO}


def words_in_answers(cli: InProcess) -> set[str]:
    path = cli.data_dir / "answers.sqlite"
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT answer FROM answers").fetchall()
    connection.close()
    held = b"".join(row[0] for row in rows)
    files = b"".join(one.read_bytes() for one in path.parent.glob("answers.sqlite*"))
    found = {word for word in (ONE, TWO, THREE) if word.encode() in held}
    assert found == {word for word in (ONE, TWO, THREE) if word.encode() in files}
    return found


DIES = """
import os, signal, sys
from flows.cli.main import main
from stores.milvus import MilvusStore

real = getattr(MilvusStore, {method!r})

def deletes_and_dies(self, *arguments):
    real(self, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(MilvusStore, {method!r}, deletes_and_dies)
sys.argv = ["sediment", "run", "--embedded"]
main()
"""


@pytest.mark.parametrize("method", ["delete_events", "delete_atoms"])
def test_a_kill_between_the_deletes_and_the_outcome_loses_nothing(
    cli: InProcess, method: str
) -> None:
    cli.run("forget", *ANA, "--session", "s1", "--yes")
    process = subprocess.run(
        [sys.executable, "-c", DIES.format(method=method)],
        env={**os.environ, **WIDE, "SEDIMENT_DATA_DIR": str(cli.data_dir)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert "applied" not in cli.json("audit")["ends"]
    cli.run("run", "--embedded")
    assert remembered(cli) == {THREE}
    assert remembered(cli, who=BOB) == {ONE}
    audit = cli.json("audit")
    assert audit["ends"] == ends_with(cli, forgotten=2, applied=1)
    assert audit["clean"]
    last = {record.key: record.value for record in cli.logged("sediment.l1.atoms")}
    assert sum(value is None for value in last.values()) == 2
    removed = [
        orjson.loads(record.value or b"")["removed_atom_ids"]
        for record in cli.logged("sediment.l2.jobs")
    ]
    assert len(removed[-1]) == 2
    shutil.rmtree(cli.data_dir / "milvus")
    cli.run("rebuild")
    assert remembered(cli) == {THREE}

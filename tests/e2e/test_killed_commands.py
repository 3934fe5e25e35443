"""Commands on a real broker that die with a part of what they write, and are given again.

Which of a command's writes it dies in follows from a seed. Nothing of it is to be seen
afterwards: the exports and the dead letters are those of commands that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import ANA, InProcess, write_lines
from tests.e2e.on_kafka import OnKafka
from tests.rig.events import at, body
from tests.rig.extraction_script import SCRIPTED_MODEL, answer
from tests.rig.kafka import KafkaBroker
from tests.rig.scripted_llm import CHAT, Received, ScriptedLlm, Step, refused, scripted_llm

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEED = 3
TURNS = 15

DIES = """
import os, signal, sys
from connectors.kafka.sink import KafkaAppender

left, append = int(sys.argv.pop(1)), KafkaAppender.append

def appends_a_part_and_dies(self, records):
    global left
    left -= 1
    if left:
        return append(self, records)
    append(self, records[: (len(records) * 2 + 4) // 5])  # of two windows, not the first whole
    os.kill(os.getpid(), signal.SIGKILL)

KafkaAppender.append = appends_a_part_and_dies
from flows.cli.main import main
main()
"""


def said() -> list[dict[str, Any]]:
    """Give two users' sessions that interleave; every fifth message names a city, and ends one."""
    events = []
    for turn in range(TURNS + 1):
        for user in ("ana", "bob"):
            fact = f"FACT: {user} likes dish {turn}."
            if turn % 5 == 2:
                fact = f"FACT[home.city]: {user} lives in town {turn}."
            event = body(f"{user}-{turn}", user_id=user, occurred_at=at(20 * turn).isoformat())
            ended = {"type": "session_end", "role": None, "content": None}
            events.append({**event, **({"content": fact} if turn < TURNS else ended)})
    return [{name: value for name, value in one.items() if value is not None} for one in events]


def unwell(request: Received) -> Step | None:
    """Refuse whatever mentions one dish: the last window of each user."""
    return refused(400) if request.path == CHAT and "dish 13" in request.prompt() else None


@dataclass(frozen=True)
class Site:
    """Topics of their own on the broker, and a data folder."""

    cli: InProcess
    topics: OnKafka

    def killed(self, write: int, *command: str) -> None:
        """Run a command as a process that dies in its ``write``-th write."""
        done = subprocess.run(
            [sys.executable, "-c", DIES, str(write), *command],
            env={**os.environ, **self.cli.env, "SEDIMENT_DATA_DIR": str(self.cli.data_dir)},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    def written(self, topic: str) -> int:
        return len(self.topics.read(topic))

    def flow(self) -> None:
        self.cli.run("run", "all", "--to-end")

    def export(self, folder: Path) -> dict[str, bytes]:
        """Export everything but scenes, whose dates are of their run."""
        self.cli.run("export", "--no-scenes", "--out", str(folder))
        found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}

    def letters(self) -> list[tuple[str, str]]:
        items = self.cli.json("dlq", "list", "--state", "all")["items"]
        return sorted((item["reason"], item["state"]) for item in items)


@pytest.fixture(scope="module")
def llm() -> Iterator[ScriptedLlm]:
    with scripted_llm(answer=answer, dimension=32) as server:
        yield server


def site(folder: Path, broker: KafkaBroker, llm: ScriptedLlm) -> Site:
    topics = OnKafka(broker, partitions=2)
    env = {
        **topics.env,
        "SEDIMENT_LLM_BASE_URL": llm.url,
        "SEDIMENT_LLM_MODEL": SCRIPTED_MODEL,
        "SEDIMENT_EMBEDDINGS_BASE_URL": llm.url,
        "SEDIMENT_EMBEDDINGS_DIMENSION": "32",
        "SEDIMENT_SCENE_WRITER": "rules",
        "SEDIMENT_SCENE_QUIET_S": "0",
    }
    return Site(InProcess(folder, env), topics)


@pytest.fixture
def fresh(tmp_path: Path, kafka_broker: KafkaBroker, llm: ScriptedLlm) -> Site:
    return site(tmp_path / "data", kafka_broker, llm)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: KafkaBroker, llm: ScriptedLlm
) -> tuple[Path, dict[str, bytes]]:
    """What commands that nobody disturbs lead to: an export, whole, and without scenes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    calm = site(folder / "data", kafka_broker, llm)
    calm.cli.run("ingest", str(write_lines(folder / "said.jsonl", *said())))
    calm.flow()
    calm.cli.run("export", "--out", str(folder / "whole"))
    return folder / "whole", calm.export(folder / "without-scenes")


def test_a_file_that_was_half_written_is_no_second_history(
    undisturbed: tuple[Path, dict[str, bytes]], fresh: Site, tmp_path: Path
) -> None:
    command = ("ingest", str(write_lines(tmp_path / "said.jsonl", *said())))
    fresh.killed(1, *command)
    assert 0 < fresh.written("l0.events") < len(said())
    fresh.cli.run(*command)
    fresh.flow()
    assert fresh.export(tmp_path / "export") == undisturbed[1]
    assert fresh.cli.json("audit")["clean"]


def test_an_import_that_was_killed_goes_on_where_it_was(
    undisturbed: tuple[Path, dict[str, bytes]], fresh: Site, tmp_path: Path
) -> None:
    """Events, atoms, or scenes and persona of a scope: of one of them only a part was written."""
    fresh.killed(random.Random(SEED).randint(1, 4), "import", str(undisturbed[0]))
    fresh.cli.run("import", str(undisturbed[0]))
    again = fresh.cli.json("import", str(undisturbed[0]))
    assert [again[layer]["written"] for layer in ("events", "atoms", "profiles")] == [0, 0, 0]
    assert fresh.written("l0.events") == len(said())
    fresh.cli.run("export", "--out", str(tmp_path / "export"))
    for path in undisturbed[0].rglob("*.*"):
        assert (tmp_path / "export" / path.relative_to(undisturbed[0])).read_bytes() == (
            path.read_bytes()
        )


def test_a_window_that_was_half_redriven_is_redriven(
    undisturbed: tuple[Path, dict[str, bytes]], fresh: Site, llm: ScriptedLlm, tmp_path: Path
) -> None:
    fresh.cli.run("ingest", str(write_lines(tmp_path / "said.jsonl", *said())))
    llm.script = unwell
    fresh.flow()
    llm.script = None
    assert fresh.letters() == [("refused", "open")] * 2
    before = fresh.written("l0.events")
    fresh.killed(1, "dlq", "redrive", "--yes")
    assert fresh.written("l0.events") == before + 4
    fresh.flow()
    assert fresh.letters() == [("refused", "open")] * 2
    fresh.cli.run("dlq", "redrive", "--yes")
    fresh.flow()
    assert fresh.letters() == [("refused", "resolved")] * 2
    atoms = "acme+helper+ana/atoms.jsonl"
    assert ids(fresh.export(tmp_path / "export")[atoms]) == ids(undisturbed[1][atoms])
    assert fresh.cli.json("audit")["clean"]


def ids(lines: bytes) -> set[str]:
    return {line.split(b'"atom_id":"')[1][:32].decode() for line in lines.splitlines()}


def test_what_a_person_asked_for_twice_is_done_twice_and_ends_the_same(
    fresh: Site, tmp_path: Path
) -> None:
    """A request whose command died behind its write, and was given again."""
    fresh.cli.run("ingest", str(write_lines(tmp_path / "said.jsonl", *said())))
    fresh.flow()
    command = ("forget", *ANA, "--event", "ana-2", "--yes")
    fresh.cli.run(*command)
    fresh.flow()
    once = fresh.cli.text("memories", "list", *ANA, "--json")
    fresh.cli.run(*command)
    fresh.flow()
    assert fresh.cli.text("memories", "list", *ANA, "--json") == once
    audit = fresh.cli.json("audit")
    assert (audit["clean"], audit["ends"]["applied"]) == (True, 2)
